use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::batch_weight::BatchWeight;
use super::operation::{OperationKind, QueuedOperation};
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
pub(crate) struct OperationQueue {
    state: Mutex<QueueState>,
    notify: Notify,
    /// The limiter was dropped.
    closed: AtomicBool,
}

struct QueueState {
    pending: VecDeque<QueuedOperation>,
    /// The total weight of the operations.
    weight: usize,
    /// The number of updates of sessions, which have no deadline.
    updates: usize,
    holds: usize,
    /// The weight of a full batch.
    full_weight: usize,
    /// When the queue was last empty.
    empty_at: Instant,
    /// The worker task has ended with its runtime.
    is_stopped: bool,
}

/// The queued operations.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    /// Zero if there is no operation.
    pub(super) weight: usize,
    pub(super) has_holds: bool,
}

/// The operations that leave the queue together.
pub(super) struct Taken {
    pub(super) batch: Vec<QueuedOperation>,
    /// Decisions that cannot be answered in time. They are not sent.
    pub(super) late: Vec<QueuedOperation>,
}

/// What a batch may contain.
pub(super) struct Admission {
    pub(super) now: Instant,
    /// The limiter's deadline.
    pub(super) deadline: Duration,
    /// The estimated time from sending to the reply.
    pub(super) call_time: Duration,
    /// The first decision is sent whatever the estimate is, because no other call will correct the estimate.
    pub(super) is_probe: bool,
    pub(super) max_weight: usize,
    /// The maximum number of operations with a deadline.
    pub(super) max_decisions: usize,
}

impl OperationQueue {
    /// The maximum number of queued updates. The update of a session carries all its settlements, so an update that is
    /// rejected loses nothing: the renewal task sends the next one.
    const MAX_UPDATES: usize = 10_000;

    pub(crate) fn new() -> Self {
        let state = QueueState {
            pending: VecDeque::new(),
            weight: 0,
            updates: 0,
            holds: 0,
            full_weight: BatchWeight::INITIAL,
            empty_at: Instant::now(),
            is_stopped: false,
        };
        Self { state: Mutex::new(state), notify: Notify::new(), closed: AtomicBool::new(false) }
    }

    /// Adds an operation.
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
        if is_update(&operation) {
            if state.updates >= Self::MAX_UPDATES {
                drop(state);
                operation.complete(Err(too_many_updates()));
                return Ok(());
            }
            state.updates += 1;
        }
        state.holds += usize::from(operation.is_hold());
        let before = state.weight;
        state.weight += operation.total_weight();
        state.pending.push_back(operation);
        // The worker looks at the queue when it receives its first operation, and when it contains a full batch. At any
        // other time the worker knows that the queue is not empty.
        let is_full = before < state.full_weight && state.weight >= state.full_weight;
        let must_notify = state.pending.len() == 1 || is_full;
        if state.pending.len() == 1 {
            state.empty_at = Instant::now();
        }
        drop(state);
        if must_notify {
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

    pub(super) fn waiting(&self) -> Waiting {
        let state = self.state();
        Waiting { weight: state.weight, has_holds: state.holds > 0 }
    }

    /// Takes the next batch, in the order of arrival, and the decisions before its end that cannot be answered in time.
    pub(super) fn take_batch(&self, admission: &Admission) -> Taken {
        let mut state = self.state();
        state.full_weight = admission.max_weight;
        let (mut weight, mut decisions, mut probes) = (0, 0, admission.is_probe);
        let (mut batch, mut late) = (Vec::with_capacity(state.pending.len().min(admission.max_weight)), Vec::new());
        let earliest = state.earliest_answer(admission);
        while let Some(next) = state.pending.front() {
            let fits = (weight + next.total_weight() <= admission.max_weight || batch.is_empty())
                && (decisions < admission.max_decisions || next.answer_by.is_none());
            let is_late = next.answer_by.is_some_and(|answer_by| answer_by < earliest);
            if !fits && !is_late {
                break;
            }
            let Some(operation) = state.pop() else { break };
            if operation.is_cancelled() {
                continue;
            }
            if is_late && !(probes && batch.is_empty()) {
                late.push(operation);
                continue;
            }
            probes = false;
            weight += operation.total_weight();
            decisions += usize::from(operation.answer_by.is_some());
            batch.push(operation);
        }
        Taken { batch, late }
    }

    /// Drops cancelled operations. Without this they would accumulate while no connection can be opened.
    pub(crate) fn drop_cancelled(&self) {
        let mut state = self.state();
        let mut pending = std::mem::take(&mut state.pending);
        pending.retain(|operation| !operation.is_cancelled());
        state.weight = pending.iter().map(QueuedOperation::total_weight).sum();
        state.holds = pending.iter().filter(|operation| operation.is_hold()).count();
        state.pending = pending;
    }

    pub(crate) fn fail_all(&self, error: &Error) {
        let mut state = self.state();
        let pending = std::mem::take(&mut state.pending);
        (state.weight, state.updates, state.holds) = (0, 0, 0);
        drop(state);
        for operation in pending {
            operation.complete(Err(error.clone()));
        }
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
    fn pop(&mut self) -> Option<QueuedOperation> {
        let operation = self.pending.pop_front()?;
        self.weight -= operation.total_weight();
        self.updates -= usize::from(is_update(&operation));
        self.holds -= usize::from(operation.is_hold());
        Some(operation)
    }

    /// Returns the earliest deadline at which a decision that is sent now is worth sending.
    fn earliest_answer(&self, admission: &Admission) -> Instant {
        let spare = admission.deadline.saturating_sub(admission.call_time);
        let is_standing = admission.now.saturating_duration_since(self.empty_at) > admission.deadline;
        admission.now + admission.call_time + if is_standing { spare / 2 } else { Duration::ZERO }
    }
}

fn is_update(operation: &QueuedOperation) -> bool {
    matches!(operation.kind, OperationKind::Update(_))
}

fn too_many_updates() -> Error {
    Error::unavailable(
        "the settlement was not sent to Redis yet: too many settlements are queued; the client sends it again by itself",
    )
}
