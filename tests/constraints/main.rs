//! What the crate as a whole keeps to: the allocations of a decision and the order of the modules.

mod allocations;
mod architecture;
