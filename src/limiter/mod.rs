//! The seam between whoever asks and whatever decides.

mod boxed;
mod reply;
mod reservation;
mod seam;

pub use self::boxed::BoxLimiter;
pub use self::reply::{Acquire, BoxFuture, Reply};
pub use self::reservation::Reservation;
pub use self::seam::{Limiter, Outcome, Receipt};
