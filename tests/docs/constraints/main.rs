//! Constraints on the whole crate: allocations of a decision, memory of waiting requests, dependencies between modules,
//! messages of the compiler, and hidden items. `scripts/texts` checks what texts say.
//!
//! This binary has a counting global allocator, which `allocation_counter` installs.

mod allocations;
mod architecture;
mod extension_points;
mod hidden_items;
mod ids;
mod messages;
mod waiting;

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
