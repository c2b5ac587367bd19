//! Background tasks that are not polled, as in a runtime that nobody drives.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use pin_project::pin_project;

thread_local! {
    /// Each simulation runs in one thread.
    static GATE: RefCell<Gate> = const { RefCell::new(Gate { spawned: 0, shut: 0, waiting: Vec::new() }) };
}

struct Gate {
    /// The number of background tasks so far.
    spawned: u64,
    /// Tasks with a number below this are not polled.
    shut: u64,
    /// The wakers of the tasks that wait.
    waiting: Vec<Waker>,
}

/// From now on, no background task is polled: no runtime is driven.
pub(super) fn shut() {
    GATE.with_borrow_mut(|gate| gate.shut = u64::MAX);
}

/// From now on, the background tasks so far are not polled: their runtime is parked, while another one goes on.
pub(super) fn park() {
    GATE.with_borrow_mut(|gate| gate.shut = gate.shut.max(gate.spawned));
}

pub(super) fn open() {
    let waiting = GATE.with_borrow_mut(|gate| {
        gate.shut = 0;
        std::mem::take(&mut gate.waiting)
    });
    waiting.into_iter().for_each(Waker::wake);
}

/// A background task that is polled while the gate is open for it.
#[pin_project]
pub(crate) struct Gated<F> {
    number: u64,
    #[pin]
    task: F,
}

impl<F> Gated<F> {
    pub(crate) fn new(task: F) -> Self {
        let number = GATE.with_borrow_mut(|gate| {
            gate.spawned += 1;
            gate.spawned - 1
        });
        Self { number, task }
    }
}

impl<F: Future> Future for Gated<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let is_shut = GATE.with_borrow_mut(|gate| {
            let is_shut = self.number < gate.shut;
            if is_shut {
                gate.waiting.push(cx.waker().clone());
            }
            is_shut
        });
        if is_shut { Poll::Pending } else { self.project().task.poll(cx) }
    }
}
