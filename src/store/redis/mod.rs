//! Limits that many processes share, in Redis.

mod bound_limit;
mod builder;
mod cell;
mod client;
mod cluster;
mod conflicts;
mod connect;
mod health;
mod holds;
mod key_format;
mod limiter;
mod limits;
mod script;
mod server;

pub use self::builder::RedisBuilder;
pub use self::cell::{RedisCell, RedisCellBuilder};
pub use self::client::RedisFuture;
#[cfg(feature = "redis-tls")]
pub use self::connect::tls::RedisTls;
pub use self::limiter::Redis;
pub use self::limits::{IntoRedisLimits, RedisLimit};
pub use self::server::RedisServer;
