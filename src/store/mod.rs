//! Where states are remembered.

mod memory;

pub use self::memory::{
    DefaultHashBuilder, DynLimit, HeavyKey, KeyId, Limits, LimitsFor, Memory, MemoryBuilder, Usage,
};
