use std::sync::{Arc, PoisonError, RwLock};

use tokio::time::Instant;

use super::circuit_breaker::CircuitBreaker;
use crate::error::Error;
use crate::observe::{Event, ShedCause};
use crate::store::inner::Observers;
use crate::store::redis::connect::{Connector, Failure};

/// The server of one limiter, and the state of its nodes.
pub(crate) struct ServerHealth {
    /// The limiter's name in events.
    pub(crate) limiter: String,
    pub(crate) server: Arc<dyn Connector>,
    pub(crate) observers: Observers,
    first_node: Arc<NodeState>,
    /// Created on first use. Only a cluster has more than one node.
    other_nodes: RwLock<Vec<Arc<NodeState>>>,
}

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

impl ServerHealth {
    pub(crate) fn new(limiter: String, server: Arc<dyn Connector>, observers: Observers) -> Self {
        Self { limiter, server, observers, first_node: Arc::new(NodeState::new(0)), other_nodes: RwLock::default() }
    }

    pub(crate) fn node(&self, index: usize) -> Arc<NodeState> {
        let Some(other) = index.checked_sub(1) else { return Arc::clone(&self.first_node) };
        if let Some(node) = self.other_nodes.read().unwrap_or_else(PoisonError::into_inner).get(other) {
            return Arc::clone(node);
        }
        let mut others = self.other_nodes.write().unwrap_or_else(PoisonError::into_inner);
        while others.len() <= other {
            let node = Arc::new(NodeState::new(others.len() + 1));
            others.push(node);
        }
        Arc::clone(&others[other])
    }

    /// Records the end of a call that started at `started_at`. A failure to which the server responded shows that the node
    /// works.
    pub(crate) fn record_end(&self, node: &NodeState, started_at: Instant, failure: Option<&Failure>) {
        if let Some(failure) = failure.filter(|failure| !failure.server_responded) {
            self.record_failure(node, started_at, &failure.error);
        } else if node.breaker.success() {
            self.observers.emit_in_task(|| Event::Breaker { store: &self.limiter, error: None });
        }
    }

    /// Records that a node did not respond to a call that started at `started_at`.
    ///
    /// A misconfigured runtime is not a failure of the node: other runtimes may use the same limiter.
    pub(crate) fn record_failure(&self, node: &NodeState, started_at: Instant, error: &Error) {
        if !error.is_config() && node.breaker.failure(started_at, error) {
            self.observers.emit_in_task(|| Event::Breaker { store: &self.limiter, error: Some(error) });
        }
    }

    /// Emits an event for a call with `size` operations, if an observer existed when the call started.
    pub(crate) fn record_call(&self, size: usize, started_at: Option<std::time::Instant>, error: Option<&Error>) {
        if let Some(started_at) = started_at {
            let store = &self.limiter;
            self.observers.emit_in_task(|| Event::Batch { store, size, elapsed: started_at.elapsed(), error });
        }
    }

    /// Emits an event for decisions that were dropped uncharged, because they could not be answered in time.
    pub(crate) fn record_shed(&self, cause: ShedCause, count: usize) {
        if count > 0 {
            self.observers.emit_in_task(|| Event::Shed { store: &self.limiter, cause, count });
        }
    }
}
