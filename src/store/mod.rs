//! Stores: in memory and in Redis.

mod memory;
#[cfg(feature = "redis")]
mod redis;

pub use self::memory::{DefaultHashBuilder, DynLimit, KeyId, Memory, MemoryBuilder, MemoryLimits, TopKey, Usage};
#[cfg(feature = "redis-tls")]
pub use self::redis::RedisTls;
#[cfg(feature = "redis")]
pub use self::redis::{
    IntoRedisLimits, Lease, Redis, RedisBuilder, RedisCredentials, RedisFuture, RedisLimit, RedisServer,
};
#[cfg(feature = "redis-cell")]
pub use self::redis::{RedisCell, RedisCellBuilder};
