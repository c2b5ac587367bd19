//! Limits whose states lie in this process's memory.

mod alone;
mod blocks;
mod builder;
mod dynamic;
mod hasher;
mod limiter;
mod limits;
mod row;
mod share;
mod transaction;
mod usage;

pub use self::builder::MemoryBuilder;
pub use self::dynamic::DynLimit;
pub use self::hasher::DefaultHashBuilder;
pub use self::limiter::Memory;
pub use self::limits::{MemoryLimits, MemoryLimitsFor};
pub use self::usage::{KeyId, TopKey, Usage};
