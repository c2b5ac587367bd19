use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::time::Instant;

use super::node::{NodeState, Nodes};
use crate::error::Error;
use crate::observe::{Event, ShedCause};
use crate::store::inner::Observers;
use crate::store::redis::connect::Connector;

/// The server of one limiter, and the state of its nodes.
pub(crate) struct ServerHealth {
    /// The limiter's name in events.
    pub(crate) limiter: String,
    pub(crate) server: Arc<dyn Connector>,
    pub(crate) observers: Observers,
    nodes: Nodes,
}

impl ServerHealth {
    pub(crate) fn new(limiter: String, server: Arc<dyn Connector>, observers: Observers) -> Self {
        Self { limiter, server, observers, nodes: Nodes::new() }
    }

    pub(crate) fn node(&self, index: usize) -> Arc<NodeState> {
        self.nodes.get(index)
    }

    /// Records that a node responded.
    pub(crate) fn record_success(&self, node: &NodeState) {
        if node.breaker.success() {
            self.emit(|| Event::Breaker { store: &self.limiter, error: None });
        }
    }

    /// Records that a node did not respond to a call that started at `started_at`.
    ///
    /// A misconfigured runtime is not a failure of the node: other runtimes may use the same limiter.
    pub(crate) fn record_failure(&self, node: &NodeState, started_at: Instant, error: &Error) {
        if !error.is_config() && node.breaker.failure(started_at, error) {
            self.emit(|| Event::Breaker { store: &self.limiter, error: Some(error) });
        }
    }

    /// Emits an event for a call with `size` operations, if an observer existed when the call started.
    pub(crate) fn record_call(&self, size: usize, started_at: Option<std::time::Instant>, error: Option<&Error>) {
        if let Some(started_at) = started_at {
            let store = &self.limiter;
            self.emit(|| Event::Batch { store, size, elapsed: started_at.elapsed(), error });
        }
    }

    /// Emits an event for decisions that were dropped uncharged, because they could not be answered in time.
    pub(crate) fn record_shed(&self, cause: ShedCause, count: usize) {
        if count > 0 {
            self.emit(|| Event::Shed { store: &self.limiter, cause, count });
        }
    }

    /// Emits an event. A panic of an observer ends here, because the calling task carries the calls of many requests.
    fn emit<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        // The panic hook has reported the panic.
        let _ = catch_unwind(AssertUnwindSafe(|| self.observers.emit(event)));
    }
}
