//! The seam between whoever asks and whatever decides, and limiters made of limiters.

mod boxed;
mod denied;
mod fail_open;
mod fallback;
mod held;
mod reply;
mod reservation;
mod seam;
mod two_phase;

pub use self::boxed::BoxLimiter;
pub use self::denied::{DeniedCache, DeniedCacheFuture};
pub use self::fail_open::{FailOpen, FailOpenFuture};
pub use self::fallback::{Fallback, FallbackFuture};
pub use self::held::Held;
pub use self::reply::{Acquire, BoxFuture, Reply};
pub use self::reservation::Reservation;
pub use self::seam::{Limiter, Outcome};
pub use self::two_phase::{TwoPhase, TwoPhaseFuture};
