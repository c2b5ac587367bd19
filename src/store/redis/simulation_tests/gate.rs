//! Background tasks that are not polled, as in a runtime that nobody drives.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use pin_project::pin_project;

thread_local! {
    /// The wakers of the tasks that wait, while the gate is shut. Each simulation runs in one thread.
    static WAITING: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
}

/// From now on, no background task is polled.
pub(super) fn shut() {
    WAITING.with_borrow_mut(|waiting| waiting.get_or_insert_default().clear());
}

pub(super) fn open() {
    let waiting = WAITING.take();
    waiting.into_iter().flatten().for_each(Waker::wake);
}

/// A background task that is polled while the gate is open.
#[pin_project]
pub(crate) struct Gated<F>(#[pin] F);

impl<F> Gated<F> {
    pub(crate) fn new(task: F) -> Self {
        Self(task)
    }
}

impl<F: Future> Future for Gated<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let is_shut = WAITING
            .with_borrow_mut(|waiting| waiting.as_mut().map(|waiting| waiting.push(cx.waker().clone())).is_some());
        if is_shut { Poll::Pending } else { self.project().0.poll(cx) }
    }
}
