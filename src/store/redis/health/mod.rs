//! Which nodes respond: a circuit breaker per node, and the probes that close it.
//!
//! Calls that a node did not answer open its breaker. While the breaker is open, operations fail at once, and a task
//! probes the node. The first probe that succeeds closes the breaker, with or without traffic. If the runtime of that
//! task is not driven, one call per second takes the place of the probe.

mod circuit_breaker;
mod node;
mod server_health;

pub(crate) use self::node::NodeState;
pub(crate) use self::server_health::ServerHealth;
