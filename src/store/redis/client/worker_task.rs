use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use tokio::sync::Notify;

use crate::store::inner::BoxFuture;

/// The worker of one queue. Its task polls it, and a lone caller that finds it idle polls it in place of the task.
///
/// Otherwise the caller wakes the task, and the task the connection's task. A runtime of several threads runs so long a chain
/// on several threads. Benchmarks: `redis callers 1` and `redis holding callers 1` on two client threads.
pub(super) struct WorkerTask {
    worker: Mutex<Worker>,
    notify: Notify,
    /// The worker waits for a lone caller.
    is_idle: AtomicBool,
}

struct Worker {
    /// `None` if the worker has ended.
    future: Option<BoxFuture<()>>,
    /// The waker of the task.
    waker: Waker,
}

impl Worker {
    fn poll(&mut self) -> Poll<()> {
        // A panic drops the future.
        let Some(mut future) = self.future.take() else { return Poll::Ready(()) };
        let polled = future.as_mut().poll(&mut Context::from_waker(&self.waker));
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled
    }
}

impl WorkerTask {
    pub(super) fn new() -> Self {
        let worker = Worker { future: None, waker: Waker::noop().clone() };
        Self { worker: Mutex::new(worker), notify: Notify::new(), is_idle: AtomicBool::new(false) }
    }

    pub(super) fn set(&self, future: Option<BoxFuture<()>>) {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner).future = future;
    }

    /// Polls the worker in its task.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        worker.waker.clone_from(context.waker());
        worker.poll()
    }

    pub(super) fn has_panicked(&self) -> bool {
        self.worker.is_poisoned()
    }

    /// Notifies the worker, which the task then polls.
    pub(super) fn notify(&self) {
        self.notify.notify_one();
    }

    /// Polls the worker if it is idle, or notifies it. Only within its runtime.
    pub(super) fn poll_or_notify(&self) {
        if self.is_idle.swap(false, Ordering::SeqCst)
            && let Ok(mut worker) = self.worker.try_lock()
        {
            let polled = catch_unwind(AssertUnwindSafe(|| worker.poll()));
            if matches!(polled, Ok(Poll::Pending)) {
                return;
            }
            worker.waker.wake_by_ref();
        }
        self.notify();
    }

    /// Discards a notification of earlier operations.
    pub(super) fn clear_notification(&self) {
        let _ = self.notify.notified().now_or_never();
    }

    /// Waits for a notification. If `is_idle`, the notifying caller may poll the worker.
    pub(super) async fn notified(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Ordering::SeqCst);
        let mut notified = pin!(self.notify.notified());
        poll_fn(|context| {
            let is_polled = is_idle && !self.is_idle.load(Ordering::SeqCst);
            if is_polled { Poll::Ready(()) } else { notified.as_mut().poll(context) }
        })
        .await;
        self.is_idle.store(false, Ordering::SeqCst);
    }
}
