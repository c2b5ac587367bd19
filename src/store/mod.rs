//! Where states are remembered.

mod memory;

pub use self::memory::{DefaultHashBuilder, DynLimit, Limits, LimitsFor, Memory, MemoryBuilder};
