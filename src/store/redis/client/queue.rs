use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::batch_weight::BatchWeight;
use super::operation::{OperationKind, QueuedOperation};
use super::shared_worker::SharedWorker;
use crate::error::Error;

/// The operations that wait for the worker task of one runtime and node.
///
/// # Load shedding
///
/// Decisions that cannot be answered in time are not sent: the queue drops them when a batch would take them. Operations
/// are taken in the order of arrival, so these are the oldest ones.
///
/// If the queue has not been empty for a whole deadline, more arrives than the server decides. Then the queue may not
/// grow to the length at which every decision is answered just before its deadline: decisions fail after half of the
/// time that they could wait, as in `CoDel` (RFC 8289). The other half is left for delays that the
/// estimate of the call time does not know.
///
/// # Batches
///
/// All operations of a batch have the same limits. After a replacement of the limits, batches of the earlier limits and of
/// the later ones alternate.
pub(crate) struct OperationQueue {
    state: Mutex<QueueState>,
    notify: Notify,
    pub(super) worker: SharedWorker,
    /// The limiter was dropped.
    closed: AtomicBool,
}

struct QueueState {
    pending: VecDeque<QueuedOperation>,
    /// Their total weight.
    weight: usize,
    /// The weight of a full batch.
    full_weight: usize,
    /// The operations at the front that wait for a call in flight.
    passed_over: usize,
    /// When the queue was last empty, but for those.
    empty_at: Instant,
    /// The worker task has ended with its runtime.
    is_stopped: bool,
}

/// The operations that leave the queue together.
pub(super) struct TakenBatch {
    pub(super) batch: Vec<QueuedOperation>,
    /// Decisions that cannot be answered in time. They are not sent.
    pub(super) late: Vec<QueuedOperation>,
}

/// What a batch may contain.
pub(super) struct BatchBounds {
    pub(super) now: Instant,
    /// The limiter's deadline.
    pub(super) deadline: Duration,
    /// The estimated time from sending to the reply.
    pub(super) call_time: Duration,
    /// The first decision is sent whatever the estimate is, because no other call will correct the estimate.
    pub(super) is_probe: bool,
    pub(super) max_weight: usize,
}

impl OperationQueue {
    /// The operations that a batch passes over at most: with each batch they are looked at again.
    const MAX_WAITING: usize = 1_024;

    pub(crate) fn new() -> Self {
        let state = QueueState {
            pending: VecDeque::new(),
            weight: 0,
            full_weight: BatchWeight::INITIAL,
            passed_over: 0,
            empty_at: Instant::now(),
            is_stopped: false,
        };
        Self {
            state: Mutex::new(state),
            notify: Notify::new(),
            worker: SharedWorker::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Adds an operation. A lone caller then polls the worker.
    ///
    /// # Errors
    ///
    /// Returns the operation if the worker task has ended.
    #[allow(clippy::result_large_err, reason = "the caller queues the operation elsewhere")]
    pub(crate) fn push(&self, operation: QueuedOperation) -> Result<(), QueuedOperation> {
        let mut state = self.state();
        if state.is_stopped {
            return Err(operation);
        }
        // Limits that are replaced report their leases under a lock.
        let may_poll = !matches!(operation.kind, OperationKind::Lease(_));
        let before = state.weight;
        state.weight += operation.total_weight();
        state.pending.push_back(operation);
        // The worker looks at the queue when it receives its first operation, and when it contains a full batch. At any
        // other time the worker knows that the queue is not empty.
        let is_full = before < state.full_weight && state.weight >= state.full_weight;
        let is_first = state.pending.len() == state.passed_over + 1;
        let must_notify = is_first || is_full;
        if is_first {
            state.empty_at = Instant::now();
        }
        drop(state);
        if must_notify && !(may_poll && self.worker.poll_in_caller()) {
            self.notify.notify_one();
        }
        Ok(())
    }

    /// Closes the queue. The worker task sends the queued operations, and ends.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state().is_stopped
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The weight of the waiting operations.
    pub(super) fn waiting(&self) -> usize {
        self.state().weight
    }

    /// Adds operations once more, in front of all others.
    pub(super) fn ask_again(&self, operations: Vec<QueuedOperation>) {
        if !operations.is_empty() {
            self.state().put_back(operations);
        }
    }

    /// Takes the next batch, in the order of arrival, and the decisions before its end that cannot be answered in time.
    ///
    /// An operation that may not be sent while other calls are in flight keeps its place, and holds up no others unless very
    /// many of them wait.
    pub(super) fn take_batch(&self, bounds: &BatchBounds, must_wait: impl Fn(&QueuedOperation) -> bool) -> TakenBatch {
        let mut state = self.state();
        state.full_weight = bounds.max_weight;
        let mut taken =
            TakenBatch { batch: Vec::with_capacity(state.pending.len().min(bounds.max_weight)), late: Vec::new() };
        let (mut weight, mut waiting, earliest) = (0, Vec::new(), state.earliest_answer(bounds));
        while let Some(next) = state.pending.front() {
            let fits = (weight + next.total_weight() <= bounds.max_weight || taken.batch.is_empty())
                && taken.batch.first().is_none_or(|first| Arc::ptr_eq(&first.target.limits, &next.target.limits));
            let is_late = next.answer_by.is_some_and(|answer_by| answer_by < earliest);
            let waits = !is_late && !bounds.is_probe && must_wait(next);
            if !is_late && !fits || waits && waiting.len() >= Self::MAX_WAITING {
                break;
            }
            let Some(operation) = state.pop() else { break };
            if waits {
                waiting.push(operation);
                continue;
            }
            if operation.is_cancelled() {
                continue;
            }
            if is_late && !(bounds.is_probe && taken.batch.is_empty() && !operation.is_second) {
                taken.late.push(operation);
                continue;
            }
            weight += operation.total_weight();
            taken.batch.push(operation);
        }
        state.passed_over = waiting.len();
        if state.pending.is_empty() {
            state.empty_at = bounds.now;
        }
        state.put_back(waiting);
        taken
    }

    /// Drops cancelled operations. Without this they would accumulate while no connection can be opened.
    pub(crate) fn drop_cancelled(&self) {
        let mut state = self.state();
        let mut pending = std::mem::take(&mut state.pending);
        pending.retain(|operation| !operation.is_cancelled());
        state.weight = pending.iter().map(QueuedOperation::total_weight).sum();
        // The next operation may wake the worker without need.
        state.passed_over = 0;
        state.pending = pending;
    }

    pub(crate) fn fail_all(&self, error: &Error) {
        let mut state = self.state();
        let pending = std::mem::take(&mut state.pending);
        // Unlocked before the results are sent: a caller that wakes may add its next operation.
        (state.weight, state.passed_over) = (0, 0);
        drop(state);
        for operation in pending {
            if mistake!(WaitingCallsAreNotAnswered) {
                continue;
            }
            operation.complete(Err(error.clone()));
        }
    }

    /// Discards a notification of earlier operations.
    pub(super) fn clear_notification(&self) {
        let _ = self.notify.notified().now_or_never();
    }

    /// Waits until an operation is added to an empty queue, a full batch waits, or the queue is closed.
    pub(crate) async fn notified(&self) {
        self.notify.notified().await;
    }

    /// The worker task has ended: fails all operations, and rejects others.
    pub(crate) fn stop(&self, error: &Error) {
        self.state().is_stopped = true;
        self.fail_all(error);
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn put_back(&mut self, operations: Vec<QueuedOperation>) {
        for operation in operations.into_iter().rev() {
            self.weight += operation.total_weight();
            self.pending.push_front(operation);
        }
    }

    fn pop(&mut self) -> Option<QueuedOperation> {
        let operation = self.pending.pop_front()?;
        self.weight -= operation.total_weight();
        Some(operation)
    }

    /// Returns the earliest deadline at which a decision that is sent now is worth sending.
    fn earliest_answer(&self, bounds: &BatchBounds) -> Instant {
        let spare = bounds.deadline.saturating_sub(bounds.call_time);
        let is_standing = bounds.now.saturating_duration_since(self.empty_at) > bounds.deadline;
        bounds.now + bounds.call_time + if is_standing { spare / 2 } else { Duration::ZERO }
    }
}
