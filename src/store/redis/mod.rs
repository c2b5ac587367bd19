//! Limits that many processes share, in Redis.

mod batch;
mod breaker;
mod builder;
mod call;
mod calls;
mod cell;
#[cfg(feature = "redis-cluster")]
mod cluster;
mod connection;
mod failure;
mod keys;
mod lane;
mod limiter;
mod limits;
mod line;
mod lines;
mod neighbours;
mod order;
mod row;
mod script;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
mod server;
mod slot;
#[cfg(feature = "redis-tls")]
mod tls;
mod trade;
mod twin;

pub use self::builder::RedisBuilder;
pub use self::cell::{RedisCell, RedisCellBuilder};
pub use self::limiter::Redis;
pub use self::limits::{IntoRedisLimits, RedisLimit};
pub use self::lines::RedisFuture;
pub use self::server::RedisServer;
#[cfg(feature = "redis-tls")]
pub use self::tls::RedisTls;
