//! The layer, its service, and the future of a response.

mod config;
pub mod cost;
mod future;
#[cfg(feature = "tonic")]
mod grpc_name;
mod layer;
mod pending;
mod scheduled;
mod service;
mod settlement;

pub use self::config::MissingKeyPolicy;
pub use self::future::ResponseFuture;
pub use self::layer::RateLimitLayer;
pub use self::service::RateLimit;
