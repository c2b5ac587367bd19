//! The Redis client of one limiter: queues operations, sends them in batches, and completes them from the script's
//! replies.
//!
//! A caller adds an operation to the [queue](queue) of its runtime and of the node that holds its keys, and waits for
//! the result until its deadline. The [worker task](worker) of that queue takes batches and [sends](dispatch) each as
//! one call of the script.
//!
//! # At most once
//!
//! The worker sends an operation once, and again only after a reply that the server did not run it (NOSCRIPT, TRYAGAIN,
//! a redirection), or once more after a reply that nothing was charged. A missing reply proves nothing, so an operation
//! without a reply fails, and may have been charged.
//!
//! # Overload
//!
//! A decision that cannot be answered in time is not charged. The [queue](queue) fails it before it is sent. If it is
//! delayed after that, the script fails it: each call carries the latest time at which the script may start. The
//! [load control](load_control) measures the calls, and sets the number of calls in flight and the size of batches.

mod batch;
mod batch_weight;
mod completion;
mod config;
mod dispatch;
mod hold;
mod load_control;
#[cfg(test)]
mod lone_caller_tests;
mod operation;
mod pending_decision;
mod queue;
mod results;
mod shared_worker;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::Instant;

use self::completion::reply_of;
pub(crate) use self::completion::{Completion, OperationResult, by_deadline, reply_lost};
pub(crate) use self::config::{ClientConfig, ServerClock};
use self::dispatch::execute;
pub(crate) use self::operation::{OperationKind, OperationTarget, QueuedOperation};
pub(crate) use self::pending_decision::{IdOperation, PendingDecision};
use self::queue::OperationQueue;
use self::worker::run_worker;
use super::connect::{Connection, no_runtime, runtime_ends};
use super::health::NodeState;
use crate::decision::Decision;
use crate::error::Error;
use crate::limiter::LimiterFuture;
use crate::store::inner::runtime::sleep;

/// The queues and worker tasks of a limiter. They outlive a replacement of the limits.
pub(crate) struct Client {
    pub(crate) config: Arc<ClientConfig>,
    /// One for each runtime and node: a worker task, and its connection, end with their runtime.
    workers: Mutex<Vec<WorkerHandle>>,
}

struct WorkerHandle {
    runtime: Id,
    node: usize,
    queue: Arc<OperationQueue>,
}

impl Client {
    /// The number of queues that an operation is offered to. The worker of the first may have ended. If a new worker
    /// has ended as well, the runtime is shutting down, and drops every task that is spawned.
    const MAX_ATTEMPTS: usize = 2;

    pub(crate) fn new(config: ClientConfig) -> Self {
        Self { config: Arc::new(config), workers: Mutex::default() }
    }

    /// Queues a decision.
    pub(crate) fn submit_decision<T: From<Decision> + Send + 'static>(
        &self,
        operation: impl FnOnce(oneshot::Sender<OperationResult>) -> Result<QueuedOperation, Error>,
    ) -> Result<LimiterFuture<T>, Error> {
        self.submit(operation, true, |completion| match completion {
            Completion::Decided(decision, _) => Ok(decision.into()),
            _ => Err(reply_lost()),
        })
    }

    /// Queues an operation without a value.
    pub(crate) fn submit_operation(
        &self,
        operation: impl FnOnce(oneshot::Sender<OperationResult>) -> Result<QueuedOperation, Error>,
    ) -> LimiterFuture<()> {
        LimiterFuture::of_result(self.submit(operation, false, |_| Ok(())))
    }

    /// Queues an operation, and reads its result.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        operation: impl FnOnce(oneshot::Sender<OperationResult>) -> Result<QueuedOperation, Error>,
        is_decision: bool,
        read: impl FnOnce(Completion) -> Result<T, Error> + Send + 'static,
    ) -> Result<LimiterFuture<T>, Error> {
        let timer = sleep(self.config.deadline).ok_or_else(no_runtime)?;
        let reply = self.enqueue(operation, is_decision.then(|| timer.deadline()))?;
        let config = Arc::clone(&self.config);
        Ok(LimiterFuture::pending(async move {
            by_deadline(async { read(reply_of(reply).await?) }, timer, || config.timeout_message()).await
        }))
    }

    /// Queues an operation, and returns the receiver of its result. An operation with a deadline (`answer_by`) fails if
    /// it cannot be answered by then.
    ///
    /// # Errors
    ///
    /// At once if the circuit breaker is open, or no worker task can run.
    pub(crate) fn enqueue(
        &self,
        operation: impl FnOnce(oneshot::Sender<OperationResult>) -> Result<QueuedOperation, Error>,
        answer_by: Option<Instant>,
    ) -> Result<oneshot::Receiver<OperationResult>, Error> {
        let health = &self.config.health;
        let is_cluster = health.server.is_cluster();
        if !is_cluster {
            // Before the operation is built, so that a rejected one costs nothing.
            health.node(0).breaker.check()?;
        }
        let (sender, receiver) = oneshot::channel();
        let mut operation = operation(sender)?;
        operation.answer_by = answer_by;
        let mut node = 0;
        if is_cluster {
            node = health.server.node_of_slot(operation.target.slot());
            health.node(node).breaker.check()?;
        }
        for _ in 0..Self::MAX_ATTEMPTS {
            match self.queue_for(node)?.push(operation) {
                Ok(()) => return Ok(receiver),
                Err(returned) => {
                    self.workers().retain(|worker| !worker.queue.is_stopped());
                    operation = returned;
                }
            }
        }
        Err(runtime_ends())
    }

    /// Returns the queue of the current runtime and this node. Spawns its worker task on first use.
    fn queue_for(&self, node: usize) -> Result<Arc<OperationQueue>, Error> {
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        let id = runtime.id();
        let mut workers = self.workers();
        if let Some(known) = workers.iter().find(|worker| worker.runtime == id && worker.node == node) {
            return Ok(Arc::clone(&known.queue));
        }
        workers.retain(|worker| !worker.queue.is_stopped());
        let (state, queue) = (self.config.health.node(node), Arc::new(OperationQueue::new()));
        runtime.spawn(run_worker(Arc::clone(&self.config), state, Arc::clone(&queue)));
        workers.push(WorkerHandle { runtime: id, node, queue: Arc::clone(&queue) });
        Ok(queue)
    }

    fn workers(&self) -> MutexGuard<'_, Vec<WorkerHandle>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for worker in self.workers.get_mut().unwrap_or_else(PoisonError::into_inner) {
            worker.queue.close();
        }
    }
}

/// Runs operations with the same limits in one call, and returns their results.
pub(crate) async fn call_once(
    config: &Arc<ClientConfig>,
    node: &Arc<NodeState>,
    connection: Arc<dyn Connection>,
    operations: Vec<(OperationTarget, OperationKind)>,
) -> Result<Vec<Completion>, Error> {
    let mut replies = Vec::new();
    let operations = operations.into_iter().map(|(target, kind)| {
        let (sender, reply) = oneshot::channel();
        replies.push(reply);
        target.operation(kind, sender)
    });
    let operations = operations.collect();
    // The end of the call has the answers.
    drop(execute(config, node, connection, operations, None).await);
    let mut results = Vec::new();
    for reply in replies {
        results.push(reply_of(reply).await?);
    }
    Ok(results)
}
