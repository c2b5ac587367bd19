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
//! in portions: it answers half of all operations that wait for a reply or for an answer, at most a full batch, lets these
//! callers run, and sends what they queue before it answers the next portion. So at least two calls alternate.
//!
//! # Order
//!
//! Operations are sent in the order of arrival on one connection, so a single server runs them in that order. The
//! worker opens another connection only while no call is in flight, so a call on the new connection cannot overtake one
//! on the old connection. An operation that is asked once more comes behind the operations of later calls.
//!
//! # Lone callers
//!
//! After some calls of one operation each, the next caller [polls the worker](super::shared_worker) in place of waking the
//! worker task.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::batch::LatestStart;
use super::completion::Answers;
use super::config::ClientConfig;
use super::dispatch::execute;
use super::load_control::LoadControl;
use super::operation::QueuedOperation;
use super::queue::{OperationQueue, TakenBatch};
use crate::error::Error;
use crate::observe::ShedCause;
use crate::store::redis::connect::Connection;
use crate::store::redis::health::NodeState;

/// After so many calls of one operation each, the worker takes the caller to be alone. With fewer, operations that arrive
/// together after a lone one would travel in two calls.
pub(super) const LONE_CALLS: u32 = 4;

/// Sends a queue's operations until the limiter is dropped.
pub(super) fn run_worker(
    config: Arc<ClientConfig>,
    node: Arc<NodeState>,
    queue: Arc<OperationQueue>,
) -> impl Future<Output = ()> + Send {
    // Created before the first poll: a runtime that shuts down drops the task without polling it.
    let guard = WorkerGuard(Arc::clone(&queue));
    guard.0.worker.start(Box::pin(worker_loop(config, node, queue)));
    async move {
        let guard = guard;
        poll_fn(|cx| guard.0.worker.poll(cx)).await;
    }
}

async fn worker_loop(config: Arc<ClientConfig>, node: Arc<NodeState>, queue: Arc<OperationQueue>) {
    let (config, node, queue) = (&config, &node, &*queue);
    let mut connection: Option<Arc<dyn Connection>> = None;
    let mut calls = FuturesUnordered::new();
    // Never ends. After a poll of all entries `FuturesUnordered` would wake the task. Benchmark: `redis callers 1`.
    calls.push(Either::Right(pending()));
    let mut answers = Answers::default();
    let mut control = LoadControl::new(config.deadline);
    // The last calls that had one operation each, while no other was in flight.
    let mut lone_calls = 0_u32;
    loop {
        // A call with holds is sent before the next batch is taken: its sessions count then.
        let mut must_send = false;
        while !must_send && control.accepts_call(queue.waiting()) {
            // Under constant load there is always a call in flight: no other call begins on a connection that was left.
            connection = connection.filter(|connection| !connection.is_left());
            // Callers with results must not wait for a connection. Their call has just ended on this one.
            if control.is_idle() && answers.0.is_empty() {
                // The server may close an idle connection, or restart. What was not sent yet can be sent on another one.
                let is_usable = match &connection {
                    Some(connection) => control.has_just_replied() || connection.is_open().await,
                    None => false,
                };
                if !is_usable {
                    control.reset_connection();
                    connection = connect(config, node, queue).await;
                }
            }
            // Calls in flight may have lost the connection: the worker opens another one once they have ended.
            let Some(open) = &connection else { break };
            // The worker looks at the queue now.
            queue.clear_notification();
            let TakenBatch { batch, late } =
                queue.take_batch(&control.admission(), |operation| operation.must_wait(&config.holds));
            if batch.is_empty() && late.is_empty() {
                break;
            }
            drop_late(config, late);
            if !batch.is_empty() {
                let latest_start = latest_start(config, &control, &batch);
                let is_alone = batch.len() == 1 && control.is_idle();
                lone_calls = if is_alone { lone_calls.saturating_add(1) } else { 0 };
                must_send = batch.iter().any(QueuedOperation::is_hold);
                let sent = control.record_sent(&batch);
                let call = execute(config, node, Arc::clone(open), batch, latest_start);
                calls.push(Either::Left(call.map(move |end| (sent, end))));
            }
        }
        let ended = if answers.0.is_empty() && !must_send {
            let is_lone = lone_calls >= LONE_CALLS;
            if control.is_idle() {
                if queue.is_closed() {
                    return;
                }
                if is_lone {
                    wait_for_caller(queue).await;
                } else {
                    wait_for_operations(queue, false).await;
                }
                continue;
            }
            // A call may end after the notification was consumed. The loop looks at the queue in any case.
            match select(calls.next(), pin!(wait_for_operations(queue, is_lone))).await {
                Either::Left((ended, _)) => ended,
                Either::Right(_) => None,
            }
        } else {
            // The first poll sends the new calls, unless an earlier one has ended.
            calls.next().now_or_never().flatten()
        };
        if let Some((sent, end)) = ended {
            control.record_ended(&sent, end.replied, end.run.as_ref());
            if end.must_reconnect {
                connection.take().into_iter().for_each(|lost| lost.give_up());
            }
            if let Some(mut run) = end.run {
                queue.ask_again(run.again);
                answers.0.append(&mut run.answers.0);
            }
        } else if !answers.0.is_empty() {
            answers.complete(control.portion(answers.0.len()));
            if !(answers.0.is_empty() && control.is_idle()) {
                // The callers that have their answers run now.
                yield_now().await;
            }
        }
    }
}

/// Opens a connection. Callers meanwhile wait by their own deadlines. Each deadline without a connection, and an attempt
/// that fails, are a failure for the circuit breaker.
async fn connect(
    config: &Arc<ClientConfig>,
    node: &Arc<NodeState>,
    queue: &OperationQueue,
) -> Option<Arc<dyn Connection>> {
    let mut attempt = pin!(config.health.server.open(node.index, config.deadline));
    loop {
        let started_at = Instant::now();
        let error = match select(&mut attempt, pin!(sleep(config.deadline))).await {
            Either::Left((Ok(connection), _)) => return Some(connection),
            Either::Left((Err(failure), _)) => {
                config.health.record_failure(node, started_at, &failure.error);
                queue.fail_all(&failure.error);
                return None;
            }
            Either::Right(_) => Error::unavailable(format!(
                "connecting to Redis ({}) failed: no connection within the deadline of {:?}; check that the server is \
                 reachable",
                config.health.server.describe(),
                config.deadline
            )),
        };
        config.health.record_failure(node, started_at, &error);
        queue.drop_cancelled();
    }
}

/// Waits until the queue notifies the worker, and then for the callers that are ready to run: their operations travel in
/// the same call. Benchmarks: `redis spread 64`; without the exception for a lone caller, `redis callers 1`; with it also
/// while other calls are in flight, `redis callers 8` on two threads.
async fn wait_for_operations(queue: &OperationQueue, is_lone: bool) {
    queue.notified().await;
    if !is_lone {
        yield_now().await;
    }
}

/// Waits until a lone caller polls the worker after it has added its operation, or until the queue notifies the worker.
async fn wait_for_caller(queue: &OperationQueue) {
    let mut notified = pin!(queue.notified());
    queue.worker.set_waits_for_caller(true);
    poll_fn(|cx| if queue.waiting() > 0 { Poll::Ready(()) } else { notified.as_mut().poll(cx) }).await;
    queue.worker.set_waits_for_caller(false);
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
fn latest_start(config: &ClientConfig, control: &LoadControl, batch: &[QueuedOperation]) -> Option<LatestStart> {
    // Each node of a cluster has its own clock, and a redirection may lead to any node.
    let is_unknown = config.clock.is_some() || config.health.server.is_cluster();
    if is_unknown || batch.iter().any(|operation| operation.is_second) {
        return None;
    }
    // The decisions of a batch were queued one shortly after the other.
    control.latest_start(batch.iter().filter_map(|operation| operation.answer_by).max()?)
}

/// Drop guard of the worker task: fails queued operations; the next caller spawns a new worker.
struct WorkerGuard(Arc<OperationQueue>);

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        self.0.worker.end();
        self.0.stop(&Error::unavailable(if std::thread::panicking() {
            "the call to Redis was lost: the worker task panicked; report the panic message"
        } else {
            "the call to Redis was lost: the runtime is shutting down; end all requests before their tokio runtime"
        }));
    }
}
