//! The store in this process's memory.
//!
//! A decision locks what it reads, decides and writes: see `table`. What the states alone determine is a `plain` case, or
//! a `chain` of limits of any types. All else is a `transaction`.

mod acquire;
mod builder;
mod chain;
mod charged;
mod clock;
mod hasher;
mod hold_by_id;
mod limit_info;
mod limit_table;
mod limiter;
mod limits;
mod part;
mod plain;
mod replace;
mod reservations;
mod save;
mod settlement;
mod table;
mod transaction;
mod transaction_limit;
mod usage;
mod when_full;

pub use self::builder::MemoryBuilder;
pub use self::limiter::Memory;
pub use self::limits::MemoryLimits;
pub use self::replace::DynLimit;
pub use self::usage::{KeyId, TopKey, Usage};
pub use self::when_full::WhenFull;

#[cfg(all(test, not(loom)))]
mod map_store_tests;
