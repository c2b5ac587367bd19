//! Events for metrics and logs.
//!
//! An [`Observer`] receives an event for the outcome of each request, and for what happens in the stores. Register
//! one by [`RateLimitLayer::observe`](crate::RateLimitLayer::observe) and
//! [`RedisBuilder::observe`](crate::RedisBuilder::observe). [`Memory::report_usage`](crate::Memory::report_usage) emits the
//! memory usage to an observer. Without an observer, a request costs one comparison more. `Metrics` (feature
//! `metrics`) and `Tracing` (feature `tracing`) are ready-made observers.
//!
//! **No event carries a key**, so logs cannot contain one by mistake. Only the error about a foreign value in Redis names
//! the key there. To find the keys that use most of a limit, call [`Memory::top_keys`](crate::Memory::top_keys).

mod event;
mod first_requests;
#[cfg(feature = "metrics")]
mod metrics;
mod observer;
mod observers;
mod outcome_guard;
#[cfg(feature = "tracing")]
mod tracing;

pub use self::event::{Direction, Event, Reason, ShedCause, Stage, WaitEnd};
pub(crate) use self::first_requests::FirstRequests;
#[cfg(feature = "metrics")]
pub use self::metrics::Metrics;
pub use self::observer::Observer;
pub(crate) use self::observers::{Observers, WarningKind};
pub(crate) use self::outcome_guard::OutcomeGuard;
#[cfg(feature = "tracing")]
pub use self::tracing::Tracing;
