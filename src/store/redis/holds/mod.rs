//! Holds.

pub(crate) mod registry;
pub(crate) mod session;
