//! Constraints on the whole crate: allocations of a decision, memory of waiting requests, dependencies between modules,
//! messages of the compiler, hidden items, the names in the documentation, and the one generator of random numbers.
//!
//! This binary has a counting global allocator, which `allocation_counter` installs.

mod allocations;
mod architecture;
mod extension_points;
mod hidden_items;
mod ids;
mod messages;
mod prose;
mod random_numbers;
mod readme;
mod testing_page;
mod waiting;

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
