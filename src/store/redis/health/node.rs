use std::sync::{Arc, PoisonError, RwLock};

use super::circuit_breaker::CircuitBreaker;

/// The state of one Redis node. Each node has its own, so a dead node does not delay the calls to others.
pub(crate) struct NodeState {
    pub(crate) index: usize,
    pub(crate) breaker: CircuitBreaker,
}

impl NodeState {
    fn new(index: usize) -> Self {
        Self { index, breaker: CircuitBreaker::new() }
    }
}

/// The nodes of a limiter's server, created on first use. Only a cluster has more than one.
pub(super) struct Nodes {
    first: Arc<NodeState>,
    others: RwLock<Vec<Arc<NodeState>>>,
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self { first: Arc::new(NodeState::new(0)), others: RwLock::default() }
    }

    pub(super) fn get(&self, index: usize) -> Arc<NodeState> {
        let Some(other) = index.checked_sub(1) else { return Arc::clone(&self.first) };
        if let Some(node) = self.others.read().unwrap_or_else(PoisonError::into_inner).get(other) {
            return Arc::clone(node);
        }
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        while others.len() <= other {
            let node = Arc::new(NodeState::new(others.len() + 1));
            others.push(node);
        }
        Arc::clone(&others[other])
    }
}
