//! The rate limit layer, its service and its response future.

mod config;
pub mod cost;
mod future;
mod in_flight;
mod join;
mod layer;
mod parts;
mod pending;
pub(crate) mod queue;
mod request_end;
mod service;
mod settlement;

pub use self::config::MissingKeyPolicy;
pub use self::future::ResponseFuture;
pub use self::in_flight::{InFlightBody, InFlightGuard};
pub use self::layer::RateLimitLayer;
#[cfg(feature = "serde")]
pub(crate) use self::request_end::BodyEnd;
pub use self::service::RateLimit;
