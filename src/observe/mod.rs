//! Seeing what happens: an [`Observer`] is told what becomes of each request, and what the stores live through.
//!
//! [`RateLimitLayer::observe`](crate::RateLimitLayer::observe) takes one, and so does
//! [`RedisBuilder::observe`](crate::RedisBuilder::observe); [`Memory::report_usage`](crate::Memory::report_usage) tells one how full it is.
//! Without an observer a request costs one comparison more than nothing. Two are ready-made: `Metrics` (feature `metrics`) and
//! `Tracing` (feature `tracing`).
//!
//! **No event carries a key**, so none is ever logged by mistake. Who uses most of a limit is for
//! [`Memory::top_keys`](crate::Memory::top_keys) to say.

mod event;
#[cfg(feature = "metrics")]
mod metrics;
mod observer;
mod observers;
mod outcome_guard;
#[cfg(feature = "tracing")]
mod tracing;

pub use self::event::{Event, Stage};
#[cfg(feature = "metrics")]
pub use self::metrics::Metrics;
pub use self::observer::Observer;
pub(crate) use self::observers::Observers;
pub(crate) use self::outcome_guard::OutcomeGuard;
#[cfg(feature = "tracing")]
pub use self::tracing::Tracing;
