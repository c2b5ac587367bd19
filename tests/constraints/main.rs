//! Constraints on the whole crate: allocations of a decision, memory of waiting requests, dependencies between modules,
//! messages of the compiler, hidden items, and the names in the documentation.
//!
//! This binary has a counting global allocator, which `allocation_counter` installs.

mod allocations;
mod architecture;
mod extension_points;
mod hidden_items;
mod ids;
mod messages;
mod prose;
mod readme;
mod testing_page;
mod waiting;
