//! Which nodes respond: a circuit breaker per node.
//!
//! Calls that a node did not answer open its breaker. While the breaker is open, operations fail at once, but for one call in
//! 200 ms, which tests the node.

mod circuit_breaker;
mod server_health;

pub(crate) use self::server_health::{NodeState, ServerHealth};
