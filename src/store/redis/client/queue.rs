use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::operation::QueuedOperation;
use crate::error::Error;

/// The maximum weight of one batch: enough to spread a call's fixed costs, and little enough that the script blocks the
/// server for at most about half a millisecond.
const MAX_BATCH_WEIGHT: usize = 128;

/// The operations that wait for the worker task of one runtime and node.
pub(crate) struct OperationQueue {
    state: Mutex<QueueState>,
    notify: Notify,
    /// The limiter was dropped.
    closed: AtomicBool,
}

struct QueueState {
    pending: VecDeque<QueuedOperation>,
    /// The worker task has ended with its runtime.
    is_stopped: bool,
}

impl OperationQueue {
    pub(crate) fn new() -> Self {
        let state = QueueState { pending: VecDeque::new(), is_stopped: false };
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
        state.pending.push_back(operation);
        let is_first = state.pending.len() == 1;
        drop(state);
        // If the queue was not empty, the worker has been notified and has not looked since.
        if is_first {
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

    pub(crate) fn is_empty(&self) -> bool {
        self.state().pending.is_empty()
    }

    /// Takes the next batch, in the order of arrival, without cancelled operations.
    pub(crate) fn take_batch(&self) -> Vec<QueuedOperation> {
        let mut state = self.state();
        let mut weight = 0;
        let mut batch = Vec::with_capacity(state.pending.len().min(MAX_BATCH_WEIGHT));
        while let Some(next) = state.pending.front() {
            weight += next.total_weight();
            if weight > MAX_BATCH_WEIGHT && !batch.is_empty() {
                break;
            }
            let Some(operation) = state.pending.pop_front() else { break };
            if !operation.is_cancelled() {
                batch.push(operation);
            }
        }
        batch
    }

    /// Drops cancelled operations. Without this they would accumulate while no connection can be opened.
    pub(crate) fn drop_cancelled(&self) {
        self.state().pending.retain(|operation| !operation.is_cancelled());
    }

    pub(crate) fn fail_all(&self, error: &Error) {
        let pending = std::mem::take(&mut self.state().pending);
        for operation in pending {
            operation.complete(Err(error.clone()));
        }
    }

    /// Waits until an operation is added, or the queue is closed.
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
