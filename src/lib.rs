//! Rate limiting.
pub mod algorithm;
mod clock;
mod decision;
mod error;
mod future;
pub mod key;
mod layer;
pub mod limit;
pub mod limiter;
#[cfg(feature = "serde")]
pub mod policy;
mod quota;
pub mod response;
mod service;
mod settings;
pub mod store;
mod sync;
mod table;
pub mod tariff;
mod timer;
mod turn;

pub use crate::algorithm::{FixedWindow, Gcra, LeakyBucket, LeakyQueue, SlidingLog, SlidingWindow, TokenBucket};
#[cfg(feature = "timer")]
pub use crate::clock::TokioClock;
pub use crate::clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use crate::decision::{Ask, Decision, Figures, Reading, Source, Standing, Verdict};
pub use crate::error::Error;
pub use crate::future::ResponseFuture;
pub use crate::key::{ExtractKey, PeerIp};
pub use crate::layer::RateLimitLayer;
pub use crate::limit::{Limit, per_key};
pub use crate::limiter::{BoxLimiter, Limiter};
pub use crate::quota::{Quota, QuotaError};
pub use crate::response::{Admission, Http, Respond};
pub use crate::service::RateLimit;
pub use crate::settings::WhenMissing;
pub use crate::store::{DynLimit, Memory, MemoryBuilder};
