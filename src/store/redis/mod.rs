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
mod core;
mod drive;
mod failure;
mod holds;
mod keys;
mod lane;
mod limiter;
mod limits;
mod line;
mod lines;
mod link;
mod neighbours;
mod order;
mod probe;
mod reply;
mod row;
mod script;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
mod server;
mod session;
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
