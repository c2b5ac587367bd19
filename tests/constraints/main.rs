//! Constraints on the whole crate: allocations of a decision, memory of waiting requests, and dependencies
//! between modules.
//!
//! This binary has a counting global allocator, which `allocation_counter` installs.

mod allocations;
mod architecture;
mod waiting;
