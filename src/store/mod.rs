//! Where states are remembered.

mod memory;
#[cfg(feature = "redis")]
mod redis;

pub use self::memory::{
    DefaultHashBuilder, DynLimit, KeyId, Memory, MemoryBuilder, MemoryLimits, MemoryLimitsFor, TopKey, Usage,
};
#[cfg(feature = "redis-tls")]
pub use self::redis::RedisTls;
#[cfg(feature = "redis")]
pub use self::redis::{
    IntoRedisLimits, Redis, RedisBuilder, RedisCell, RedisCellBuilder, RedisFuture, RedisLimit, RedisServer,
};
