use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::{Either, select};
use redis::{Cmd, RedisError};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use super::circuit_breaker::{Attendance, CircuitBreaker};
use super::node::{NodeState, Nodes};
use crate::error::Error;
use crate::observe::{Event, ShedCause};
use crate::store::inner::{Observers, runtime};
use crate::store::redis::background;
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
    /// If a node was not probed for so long, a call takes the place of the probe.
    patience: Duration,
    /// The command that a probe sends after a write, such as SCRIPT LOAD.
    probe_command: ArcSwap<Cmd>,
    /// Classifies an error of a probe.
    classify: fn(RedisError) -> Failure,
}

impl ServerHealth {
    /// Some intervals of the probing task.
    const MIN_PATIENCE: Duration = Duration::from_secs(1);

    pub(crate) fn new(
        limiter: String,
        server: RedisServer,
        observers: Observers,
        (prefix, deadline): (String, Duration),
        probe_command: Cmd,
        classify: fn(RedisError) -> Failure,
    ) -> Self {
        let probe_command = ArcSwap::from_pointee(probe_command);
        // A call that takes the place of a probe lasts for at most its deadline, so there is one at a time.
        let patience = deadline.max(Self::MIN_PATIENCE);
        Self { limiter, server, observers, prefix, nodes: Nodes::new(), patience, probe_command, classify }
    }

    /// Replaces the command that probes send.
    pub(crate) fn set_probe_command(&self, command: Cmd) {
        self.probe_command.store(Arc::new(command));
    }

    pub(crate) fn node(&self, index: usize) -> Arc<NodeState> {
        self.nodes.get(index)
    }

    /// Returns an error if the node's breaker is open, and then makes sure that a task probes the node.
    ///
    /// If nobody has probed the node for a while, the call takes the place of the probe, and no error is returned.
    pub(crate) fn check_breaker(self: &Arc<Self>, node: &Arc<NodeState>) -> Result<(), Error> {
        let result = node.breaker.check();
        // The probing task may have ended with its runtime, or makes no progress because its runtime is not driven.
        if result.is_err() && self.attend(node) {
            return Ok(());
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
            self.attend(node);
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

    /// Makes sure that a task probes a node whose breaker is open. Returns whether the caller must take the place of the
    /// probe.
    fn attend(self: &Arc<Self>, node: &Arc<NodeState>) -> bool {
        let Ok(runtime) = Handle::try_current() else { return false };
        let Attendance { starts_prober, is_trial } = node.breaker.attend(runtime.id(), self.patience);
        if let Some(number) = starts_prober {
            // Created before the task is spawned: a runtime that shuts down drops the task before the first poll.
            let guard = ProbingGuard { node: Arc::clone(node), number };
            background::spawn(&runtime, run_prober(Arc::downgrade(self), guard));
        }
        is_trial
    }

    /// Checks that a node is reachable and accepts writes, and runs the probe command. Stores the connection as idle.
    async fn probe(&self, node: &NodeState) -> Result<(), Error> {
        // A node without slots receives no calls, and may have left the cluster.
        let Some((key, slot)) = self.server.probe_key(node.index, &self.prefix) else { return Ok(()) };
        let connection = self.server.connect(node.index).await.map_err(|failure| failure.error)?;
        let mut write = redis::cmd("SET");
        write.arg(key).arg("").arg("PX").arg(1);
        for command in [Arc::new(write), self.probe_command.load_full()] {
            if let Err(error) = connection.call(slot, command).await {
                return Err((self.classify)(error).error);
            }
        }
        node.store_idle(connection);
        Ok(())
    }
}

/// Probes a node until a probe succeeds, the breaker is closed, or another task probes.
async fn run_prober(health: Weak<ServerHealth>, guard: ProbingGuard) {
    let node = Arc::clone(&guard.node);
    // The upgrade fails once the limiter is dropped.
    while let Some(health) = health.upgrade() {
        match probe_until_replaced(&health, &guard).await {
            None => return,
            Some(Ok(())) => {
                // Dropped before the breaker closes: if the breaker opens again at once, another task must start.
                drop(guard);
                health.record_success(&node);
                return;
            }
            // This runtime cannot connect. A caller in another runtime starts another task.
            Some(Err(error)) if error.is_config() => return,
            Some(Err(_)) => drop(health),
        }
        sleep(CircuitBreaker::PROBE_INTERVAL).await;
    }
}

/// Probes a node once. Returns `None` if the task must end.
async fn probe_until_replaced(health: &ServerHealth, guard: &ProbingGuard) -> Option<Result<(), Error>> {
    let mut probe = pin!(timeout(CONNECT_TIMEOUT, health.probe(&guard.node)));
    while guard.node.breaker.is_probed_by(guard.number) {
        let progress = pin!(sleep(CircuitBreaker::PROBE_INTERVAL));
        if let Either::Left((result, _)) = select(&mut probe, progress).await {
            return Some(result.unwrap_or_else(|_| Err(Error::unavailable("the probe has timed out"))));
        }
    }
    None
}

/// Drop guard of the probing task: if its runtime drops the task, another runtime may start one.
struct ProbingGuard {
    node: Arc<NodeState>,
    number: u64,
}

impl Drop for ProbingGuard {
    fn drop(&mut self) {
        self.node.breaker.end_probing(self.number);
    }
}
