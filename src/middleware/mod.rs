//! The rate limit layer, its service and its response future.

mod config;
pub mod cost;
mod future;
mod join;
mod layer;
mod parts;
mod pending;
mod queue;
mod service;
mod settlement;

pub use self::config::MissingKeyPolicy;
pub use self::future::ResponseFuture;
pub use self::layer::RateLimitLayer;
pub use self::service::RateLimit;
