//! Stores: in memory, in Redis, and limits for [a store of your own](StoreLimits).

mod custom;
#[cfg(all(test, not(loom)))]
mod escalating_tests;
mod inner;
pub(crate) mod memory;
#[cfg(all(test, feature = "redis", not(loom)))]
mod naming_tests;
#[cfg(feature = "redis")]
pub(crate) mod redis;
/// The slot of a lease, for its loom models: the other modules of the feature `redis` do not build with loom.
#[cfg(all(test, loom, not(feature = "redis")))]
mod redis {
    mod lease {
        #[allow(dead_code, reason = "the models use a part of it")]
        mod slot;
        mod slot_loom_tests;
    }
}

pub use self::custom::{IntoStoreLimits, StoreLimit, StoreLimits, StoreTransaction, StoreWrite};
#[allow(unused_imports, reason = "few features use them, and the documentation links to them")]
pub(crate) use self::memory::{DynLimit, Memory};
pub use self::memory::{KeyId, MemoryLimits, TopKey, Usage};
#[cfg(feature = "redis-cell")]
pub use self::redis::RedisCellBuilder;
#[cfg(all(any(test, fuzzing), feature = "redis"))]
#[doc(hidden)]
pub use self::redis::check_any_replies;
#[cfg(feature = "redis")]
pub use self::redis::{IntoRedisLimits, Lease, RedisLimit};
#[cfg(feature = "redis")]
#[allow(unused_imports, reason = "few features use them, and the documentation links to them")]
pub(crate) use self::redis::{Redis, RedisServer};
