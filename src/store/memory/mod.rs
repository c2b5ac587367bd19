//! The store in this process's memory.
//!
//! A decision on limits whose types are known takes the fast path of `decide`, if it applies. All else is a
//! `transaction`.

mod algorithm_eviction;
mod blocks;
mod builder;
mod deadlines;
mod decide;
mod due_holds;
mod flights;
mod hasher;
mod hold;
mod hold_by_id;
mod limit_info;
mod limit_table;
mod limiter;
mod limits;
mod replace;
mod reservations;
mod save;
mod transaction;
mod transaction_limit;
mod usage;

pub use self::builder::MemoryBuilder;
pub use self::hasher::DefaultHashBuilder;
pub use self::limiter::Memory;
pub use self::limits::MemoryLimits;
pub use self::replace::DynLimit;
pub use self::usage::{KeyId, TopKey, Usage};

#[cfg(all(test, not(loom)))]
mod lock_tests;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod map_store_tests;
