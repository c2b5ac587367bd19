//! Health.

pub(crate) mod circuit_breaker;
pub(crate) mod node;
pub(crate) mod probe;
