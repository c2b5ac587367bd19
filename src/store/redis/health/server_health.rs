use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use redis::{Cmd, RedisError};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use super::circuit_breaker::CircuitBreaker;
use super::node::{NodeState, Nodes};
use crate::error::Error;
use crate::observe::{Event, Observers, ShedCause};
use crate::runtime;
use crate::store::redis::connect::{CONNECT_TIMEOUT, Failure, no_runtime};
use crate::store::redis::server::RedisServer;

/// The server of one limiter, and the state of its nodes.
pub(crate) struct ServerHealth {
    /// The limiter's name in events.
    pub(crate) limiter: String,
    pub(crate) server: RedisServer,
    pub(crate) observers: Observers,
    /// The prefix of all keys.
    pub(crate) prefix: String,
    nodes: Nodes,
    /// The command that a probe sends after a write, such as SCRIPT LOAD.
    probe_command: Arc<Cmd>,
    /// Classifies an error of a probe.
    classify: fn(RedisError) -> Failure,
}

impl ServerHealth {
    pub(crate) fn new(
        limiter: String,
        server: RedisServer,
        observers: Observers,
        prefix: String,
        probe_command: Cmd,
        classify: fn(RedisError) -> Failure,
    ) -> Self {
        let probe_command = Arc::new(probe_command);
        Self { limiter, server, observers, prefix, nodes: Nodes::new(), probe_command, classify }
    }

    pub(crate) fn node(&self, index: usize) -> Arc<NodeState> {
        self.nodes.get(index)
    }

    /// Returns an error if the node's breaker is open, and then makes sure that a task probes the node.
    pub(crate) fn check_breaker(self: &Arc<Self>, node: &Arc<NodeState>) -> Result<(), Error> {
        let result = node.breaker.check();
        if result.is_err() {
            // The probing task may have ended with its runtime.
            self.start_probing(node);
        }
        result
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
    pub(crate) fn record_failure(self: &Arc<Self>, node: &Arc<NodeState>, started_at: Instant, error: &Error) {
        if !error.is_config() && node.breaker.failure(started_at, error) {
            self.start_probing(node);
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

    /// Probes all nodes: see [`Redis::health_check`](crate::Redis::health_check).
    pub(crate) async fn check(&self) -> Result<(), Error> {
        let timer = runtime::sleep(CONNECT_TIMEOUT).ok_or_else(no_runtime)?;
        let checked = async {
            self.server.discover_nodes().await.map_err(|failure| failure.error)?;
            for index in 0..self.server.node_count() {
                let node = self.node(index);
                self.probe(&node).await?;
                self.record_success(&node);
            }
            Ok(())
        };
        match select(pin!(checked), pin!(timer)).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(Error::unavailable(format!(
                "health check failed: Redis ({}) did not respond within {CONNECT_TIMEOUT:?}; check that the server is \
                 reachable",
                self.server.describe(),
            ))),
        }
    }

    /// Starts the task that probes a node while its breaker is open.
    ///
    /// Does nothing if that task runs already, or outside of a tokio runtime.
    fn start_probing(self: &Arc<Self>, node: &Arc<NodeState>) {
        let Ok(runtime) = Handle::try_current() else { return };
        if !node.breaker.begin_probing() {
            return;
        }
        // Created before the task is spawned: a runtime that shuts down drops the task before the first poll.
        let guard = ProbingGuard(Arc::clone(node));
        let health = Arc::downgrade(self);
        runtime.spawn(async move {
            let node = Arc::clone(&guard.0);
            // The upgrade fails once the limiter is dropped.
            while let Some(health) = health.upgrade() {
                match timeout(CONNECT_TIMEOUT, health.probe(&node)).await {
                    Ok(Ok(())) => {
                        // Dropped before the breaker closes: if the breaker opens again at once, another task must
                        // start.
                        drop(guard);
                        health.record_success(&node);
                        return;
                    }
                    // This runtime cannot connect. A caller in another runtime starts another task.
                    Ok(Err(error)) if error.is_config() => return,
                    _ => drop(health),
                }
                sleep(CircuitBreaker::PROBE_INTERVAL).await;
            }
        });
    }

    /// Checks that a node is reachable and accepts writes, and runs the probe command. Stores the connection as idle.
    async fn probe(&self, node: &NodeState) -> Result<(), Error> {
        // A node without slots receives no calls, and may have left the cluster.
        let Some((key, slot)) = self.server.probe_key(node.index, &self.prefix) else { return Ok(()) };
        let connection = self.server.connect(node.index).await.map_err(|failure| failure.error)?;
        let mut write = redis::cmd("SET");
        write.arg(key).arg("").arg("PX").arg(1);
        for command in [Arc::new(write), Arc::clone(&self.probe_command)] {
            if let Err(error) = connection.call(slot, command).await {
                return Err((self.classify)(error).error);
            }
        }
        node.store_idle(connection);
        Ok(())
    }
}

/// Drop guard of the probing task: if its runtime drops the task, another runtime may start one.
struct ProbingGuard(Arc<NodeState>);

impl Drop for ProbingGuard {
    fn drop(&mut self) {
        self.0.breaker.end_probing();
    }
}
