//! The future of a worker task, which a lone caller polls in place of the task.
//!
//! tokio runs at most three tasks in a row on the thread that wakes them, and then wakes another thread. A decision has
//! four: connection, worker, caller, worker. A caller that polls the worker saves the fourth, and the thread. Benchmark:
//! `redis callers 1` on several threads.
//!
//! Only the worker task owns the future, and only this task is woken by it. So a caller may go at any time, and a caller
//! that polls with little of its cooperative budget left delays no call: the future then wakes the task.
//!
//! A caller polls while it queues an operation, so it may run what a worker runs: a connector and observers, but no other
//! caller. If these decide, the future is locked, and they notify the worker.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::store::inner::BoxFuture;

#[derive(Default)]
pub(super) struct SharedWorker {
    /// The future, and the waker of the worker task. `None` before the start and after the end.
    run: Mutex<Option<(BoxFuture<()>, Waker)>>,
    /// The future waits for the next operation of a lone caller. Changes only while `run` is locked.
    waits_for_caller: AtomicBool,
}

impl SharedWorker {
    pub(super) fn start(&self, run: BoxFuture<()>) {
        *self.run() = Some((run, Waker::noop().clone()));
    }

    /// Drops the future, which owns the queue that contains this.
    pub(super) fn end(&self) {
        let run = self.run().take();
        // Unlocked: the callers of lost operations are woken.
        drop(run);
    }

    pub(super) fn set_waits_for_caller(&self, waits: bool) {
        self.waits_for_caller.store(waits, Ordering::Relaxed);
    }

    /// Polls the future in the worker task.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut run = self.run();
        let Some((run, waker)) = &mut *run else { return Poll::Ready(()) };
        waker.clone_from(cx.waker());
        run.as_mut().poll(cx)
    }

    /// Polls the future in a caller, if it waits for that. Returns `false` if the caller must notify the worker.
    pub(super) fn poll_in_caller(&self) -> bool {
        // Another thread polls the future, or this one does.
        let Ok(mut run) = self.run.try_lock() else { return false };
        let Some((run, waker)) = &mut *run else { return false };
        if !self.waits_for_caller.load(Ordering::Relaxed) {
            return false;
        }
        let polled = catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(&mut Context::from_waker(waker))));
        if !matches!(polled, Ok(Poll::Pending)) {
            // A panic must not end the caller. It ends the task, because a future that has panicked panics again.
            waker.wake_by_ref();
        }
        true
    }

    fn run(&self) -> MutexGuard<'_, Option<(BoxFuture<()>, Waker)>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
