//! Rate limiting.
pub mod algorithm;
mod clock;
mod decision;
mod error;
mod limit;
pub mod limiter;
mod quota;
mod store;
mod sync;
mod table;

pub use crate::algorithm::{FixedWindow, Gcra, LeakyBucket, TokenBucket};
pub use crate::clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use crate::decision::{Ask, Decision, Figures, Reading, Source, Standing, Verdict};
pub use crate::error::Error;
pub use crate::limit::{Limit, per_key};
pub use crate::limiter::{BoxLimiter, Limiter};
pub use crate::quota::{Quota, QuotaError};
pub use crate::store::{DynLimit, Memory, MemoryBuilder};
