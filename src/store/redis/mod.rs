//! Limits that many processes share, in Redis.

mod batch;
mod breaker;
mod builder;
mod connection;
mod failure;
mod keys;
mod limiter;
mod limits;
mod line;
mod neighbours;
mod order;
mod row;
mod script;
mod server;
mod twin;

pub use self::builder::RedisBuilder;
pub use self::limiter::{Redis, RedisFuture};
pub use self::limits::{IntoRedisLimits, RedisLimit};
pub use self::server::RedisServer;
