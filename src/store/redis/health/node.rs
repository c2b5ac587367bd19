use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

use super::circuit_breaker::CircuitBreaker;
use crate::store::redis::connect::Connection;

/// The state of one Redis node. Each node has its own, so a dead node does not delay the calls to others.
pub(crate) struct NodeState {
    pub(crate) index: usize,
    pub(crate) breaker: CircuitBreaker,
    idle_connection: Mutex<Option<IdleConnection>>,
}

/// A connection that a probe opened and tested. The first call after the probe uses it, and opens no other.
struct IdleConnection {
    connection: Arc<dyn Connection>,
    /// The runtime of the task that reads from the connection. The task ends with its runtime.
    runtime: Id,
    opened_at: Instant,
}

impl NodeState {
    /// The age at which an idle connection is dropped. A proxy or a NAT may have dropped it without an end of file.
    const MAX_IDLE: Duration = Duration::from_secs(30);

    fn new(index: usize) -> Self {
        Self { index, breaker: CircuitBreaker::new(), idle_connection: Mutex::default() }
    }

    pub(super) fn store_idle(&self, connection: Box<dyn Connection>) {
        let (connection, runtime) = (Arc::from(connection), Handle::current().id());
        *self.idle() = Some(IdleConnection { connection, runtime, opened_at: Instant::now() });
    }

    /// Takes the idle connection, if it is not too old and belongs to the current runtime.
    pub(crate) fn take_idle(&self) -> Option<Arc<dyn Connection>> {
        let mut idle = self.idle();
        idle.take_if(|idle| idle.opened_at.elapsed() >= Self::MAX_IDLE);
        idle.take_if(|idle| idle.runtime == Handle::current().id()).map(|idle| idle.connection)
    }

    fn idle(&self) -> MutexGuard<'_, Option<IdleConnection>> {
        self.idle_connection.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use redis::{Cmd, RedisError, Value};
    use tokio::runtime::Builder;
    use tokio::time::advance;

    use super::{Connection, NodeState};
    use crate::limiter::BoxFuture;

    struct StubConnection;

    impl Connection for StubConnection {
        fn call(&self, _slot: u16, _command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
            Box::pin(std::future::ready(Ok(Value::Nil)))
        }

        fn is_open(&self) -> BoxFuture<bool> {
            Box::pin(std::future::ready(true))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn take_idle_drops_an_old_connection() {
        let node = NodeState::new(0);
        node.store_idle(Box::new(StubConnection));
        advance(NodeState::MAX_IDLE / 2).await;
        assert!(node.take_idle().is_some() && node.take_idle().is_none());
        node.store_idle(Box::new(StubConnection));
        advance(NodeState::MAX_IDLE).await;
        assert!(node.take_idle().is_none());
    }

    #[test]
    fn take_idle_returns_no_connection_of_another_runtime() {
        let (node, runtime) = (NodeState::new(0), || Builder::new_current_thread().build().expect("a runtime"));
        let owner = runtime();
        owner.block_on(async { node.store_idle(Box::new(StubConnection)) });
        assert!(runtime().block_on(async { node.take_idle().is_none() }));
        assert!(owner.block_on(async { node.take_idle().is_some() }));
    }
}
