//! The worker task of one runtime and node, which sends the queued operations.
//!
//! # Batching
//!
//! While few calls are in flight, the worker sends an operation at once. Operations that arrive while more calls are in
//! flight wait in the queue, and travel together in the next call. So a lone operation is not delayed, and under load
//! the cost of a call is shared (group commit).
//!
//! # Overlapping calls
//!
//! When a call ends, its callers queue their next decisions at about the same time. If all of them travelled in one call,
//! the server would be idle while the client works, and the client while the server works. So the worker answers callers
//! in portions: it answers one portion, lets these callers run, and sends what they queue before it answers the next
//! portion. A portion is at most a full batch, and at most one half of all operations that wait for a reply or for an answer.
//! So at least two calls alternate. On a slow link the time of the client does not matter, so one call is cheaper.
//!
//! The order matters: a call must be on the socket before the next portion is answered. Otherwise the server reads several
//! calls at once, and replies to all of them at the same time. That also happens if the server takes longer to wake up than
//! the client for a portion, or if both share a core. Then nothing overlaps, and one call is cheaper. So after calls that
//! have ended together, the worker sends some rounds whole before it tries portions again. Calls that alternate keep the
//! server awake, so they go on alternating.
//!
//! # Order
//!
//! Operations are sent in the order of arrival on one connection, so a single server runs them in that order. The
//! worker opens another connection only while no call is in flight, so a call on the new connection cannot overtake one
//! on the old connection.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::task::yield_now;

use super::completion::Answers;
use super::config::ClientConfig;
use super::dispatch::execute;
use super::link::Link;
use super::load_control::LoadControl;
use super::operation::QueuedOperation;
use super::queue::{OperationQueue, TakenBatch};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::observe::ShedCause;
use crate::store::redis::health::NodeState;

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
    let mut link = Link::new(config, node, queue);
    let mut calls = FuturesUnordered::new();
    let mut answers = Answers::default();
    let mut control = LoadControl::new(config.deadline);
    loop {
        // The worker looks at the queue now.
        queue.clear_notification();
        while control.accepts_call(queue.waiting()) {
            // Callers with results must not wait for a connection. Their call has just ended on this one.
            if calls.is_empty() && answers.is_empty() {
                link.prepare(&mut control).await;
            }
            // Calls in flight may have lost the connection: the worker opens another one once they have ended.
            let Some(connection) = link.connection() else { break };
            let TakenBatch { batch, late } = queue.take_batch(&control.admission());
            if batch.is_empty() && late.is_empty() {
                break;
            }
            drop_late(config, late);
            if !batch.is_empty() {
                let latest_start = latest_start(config, &control, &batch);
                let sent = control.record_sent(&batch);
                let call = execute(config, node, Arc::clone(connection), batch, latest_start);
                calls.push(async move { (sent, call.await) });
            }
        }
        let ended = if answers.is_empty() {
            if calls.is_empty() {
                if !mistake!(WorkerOfDroppedLimiterStays) && queue.is_closed() {
                    return;
                }
                link.wait_while_idle(&mut control, pin!(wait_for_operations(queue))).await;
                continue;
            }
            // A call may end after the notification was consumed. The loop looks at the queue in any case.
            match select(calls.next(), pin!(wait_for_operations(queue))).await {
                Either::Left((ended, _)) => ended,
                Either::Right(_) => None,
            }
        } else {
            // The first poll sends the new calls.
            calls.next().now_or_never().flatten()
        };
        if let Some((sent, end)) = ended {
            control.record_ended(&sent, end.replied, end.run.as_ref());
            if end.must_reconnect && !mistake!(SilentConnectionIsKept) {
                link.lose();
            }
            if let Some(run) = end.run {
                if !answers.is_empty() && calls.is_empty() {
                    control.record_together();
                }
                answers.append(run.answers);
            }
        } else if !answers.is_empty() {
            answers.complete(control.portion(answers.len()));
            // The callers that have their answers run now.
            yield_now().await;
        }
    }
}

/// Waits until the queue notifies the worker, and then for the callers that are ready to run: their operations travel in
/// the same call. Benchmark: `redis spread 64`.
async fn wait_for_operations(queue: &OperationQueue) {
    queue.notified().await;
    yield_now().await;
}

/// Fails decisions that cannot be answered in time.
fn drop_late(config: &ClientConfig, late: Vec<QueuedOperation>) {
    if late.is_empty() {
        return;
    }
    config.health.record_shed(ShedCause::NotSent, late.len());
    let error = Error::unavailable(format!(
        "the decision was not sent to Redis, and nothing is charged: no reply can arrive within the deadline of {:?} at \
         the current load; add capacity, or raise `deadline`",
        config.deadline
    ));
    for operation in late {
        operation.complete(Err(error.clone()));
    }
}

/// Returns the time of the server after which the script makes no decision of a batch.
fn latest_start(config: &ClientConfig, control: &LoadControl, batch: &[QueuedOperation]) -> Option<Timestamp> {
    // Each node of a cluster has its own clock, and a redirection may lead to any node.
    if mistake!(DecisionsHaveNoDeadline) || config.clock.is_some() || config.health.server.is_cluster() {
        return None;
    }
    // The decisions of a batch were queued one shortly after the other.
    control.latest_start(batch.iter().filter_map(|operation| operation.answer_by).max()?)
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
