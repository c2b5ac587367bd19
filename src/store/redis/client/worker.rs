//! The worker task of one runtime and node, which sends the queued operations.
//!
//! # Batching
//!
//! While no call is in flight, the worker sends an operation at once. Operations that arrive while calls are in flight
//! wait in the queue, and travel together in the next call. So a lone operation is not delayed, and under load the cost
//! of a call is shared (group commit).
//!
//! # Order
//!
//! Operations are sent in the order of arrival on one connection, so a single server runs them in that order. The
//! worker opens another connection only while no call is in flight, so a call on the new connection cannot overtake one
//! on the old connection.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep};

use super::config::ClientConfig;
use super::dispatch::execute;
use super::queue::OperationQueue;
use crate::error::Error;
use crate::store::redis::connect::Connection;
use crate::store::redis::health::NodeState;

/// The maximum number of calls in flight. The server then always has a call to run, while other calls are on the
/// network or their replies are processed.
const MAX_IN_FLIGHT: usize = 4;

/// Sends a queue's operations until the limiter is dropped.
pub(super) fn run_worker(
    config: Arc<ClientConfig>,
    node: Arc<NodeState>,
    queue: Arc<OperationQueue>,
) -> impl Future<Output = ()> + Send {
    // Created before the first poll: a runtime that shuts down drops the task without polling it.
    let guard = WorkerGuard(Arc::clone(&queue));
    async move {
        let _guard = guard;
        worker_loop(&config, &node, &queue).await;
    }
}

async fn worker_loop(config: &Arc<ClientConfig>, node: &Arc<NodeState>, queue: &OperationQueue) {
    let mut connection = None;
    let mut calls = FuturesUnordered::new();
    loop {
        while calls.len() < MAX_IN_FLIGHT && !queue.is_empty() {
            if calls.is_empty() {
                connection = usable_connection(connection, config, node, queue).await;
            }
            // Calls in flight may have lost the connection: the worker opens another one once they have ended.
            let Some(connection) = &connection else { break };
            let batch = queue.take_batch();
            if !batch.is_empty() {
                calls.push(execute(config, node, Arc::clone(connection), batch));
            }
        }
        if calls.is_empty() {
            if queue.is_closed() {
                return;
            }
            queue.notified().await;
            continue;
        }
        let accepts_calls = calls.len() < MAX_IN_FLIGHT && connection.is_some();
        let must_reconnect = if accepts_calls {
            match select(calls.next(), pin!(queue.notified())).await {
                Either::Left((ended, _)) => ended,
                Either::Right(_) => continue,
            }
        } else {
            calls.next().await
        };
        if must_reconnect == Some(true) {
            connection = None;
        }
    }
}

/// Returns the last connection, if it is still open, else the node's idle connection, else a new one.
///
/// The server may have closed an idle connection, or restarted. So a connection is checked before the first of several
/// concurrent calls: operations that were not sent on a closed connection can be sent on another one, and nothing is
/// ever sent twice.
async fn usable_connection(
    last: Option<Arc<dyn Connection>>,
    config: &Arc<ClientConfig>,
    node: &Arc<NodeState>,
    queue: &OperationQueue,
) -> Option<Arc<dyn Connection>> {
    for connection in [last, node.take_idle()].into_iter().flatten() {
        if connection.is_open().await {
            return Some(connection);
        }
    }
    connect(config, node, queue).await
}

/// Opens a connection. Callers meanwhile wait by their own deadlines.
async fn connect(
    config: &Arc<ClientConfig>,
    node: &Arc<NodeState>,
    queue: &OperationQueue,
) -> Option<Arc<dyn Connection>> {
    let health = &config.health;
    let mut connecting = health.server.connect(node.index);
    loop {
        let started_at = Instant::now();
        let error = match select(&mut connecting, pin!(sleep(config.deadline))).await {
            Either::Left((Ok(connection), _)) => return Some(Arc::from(connection)),
            Either::Left((Err(failure), _)) => {
                health.record_failure(node, started_at, &failure.error);
                queue.fail_all(&failure.error);
                return None;
            }
            Either::Right(_) => Error::unavailable(format!(
                "connecting to Redis ({}) failed: no connection within the deadline of {:?}; check that the server is \
                 reachable",
                health.server.describe(),
                config.deadline
            )),
        };
        health.record_failure(node, started_at, &error);
        queue.drop_cancelled();
        // While the breaker is open, the probing task connects, and leaves its connection as the node's idle one.
        if node.breaker.check().is_err() {
            queue.fail_all(&error);
            return None;
        }
    }
}

/// Drop guard of the worker task: fails queued operations; the next caller spawns a new worker.
struct WorkerGuard(Arc<OperationQueue>);

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        self.0.stop(&Error::unavailable(if std::thread::panicking() {
            "the call to Redis was lost: the worker task panicked; report the panic message"
        } else {
            "the call to Redis was lost: the runtime is shutting down; end all requests before their tokio runtime"
        }));
    }
}
