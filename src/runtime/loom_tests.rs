//! The runtime of loom's models: each task is a thread, and no time passes.

use std::future::Future;
use std::ops::Add;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

pub(crate) use super::no_timer::{Sleep, sleep};
use crate::sync::Mutex;

/// A time of a clock that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(Duration::from_secs(1_000_000))
    }

    pub(crate) fn checked_add(self, span: Duration) -> Option<Self> {
        self.0.checked_add(span).map(Self)
    }

    pub(crate) fn checked_sub(self, span: Duration) -> Option<Self> {
        self.0.checked_sub(span).map(Self)
    }

    pub(crate) fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0 + span)
    }
}

pub(crate) fn has_timer() -> bool {
    true
}

loom::lazy_static! {
    static ref RUNTIME: Arc<Mutex<Runtime>> = Arc::default();
}

/// The runtime in which tasks are spawned, and the wakers of its tasks.
#[derive(Default)]
struct Runtime {
    number: usize,
    wakers: Vec<Waker>,
}

/// Runs the future in a thread, until the runtime shuts down.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    let runtime = Arc::clone(&RUNTIME);
    let number = runtime.lock().expect("no panic").number;
    let task = Task { runtime, number, future: Some(Box::pin(future)) };
    loom::thread::spawn(move || block_on(task));
}

/// Drops the tasks of the runtime. Later tasks run in another one.
pub(crate) fn shut_down() {
    let wakers = {
        let mut runtime = RUNTIME.lock().expect("no panic");
        runtime.number += 1;
        std::mem::take(&mut runtime.wakers)
    };
    wakers.into_iter().for_each(Waker::wake);
}

struct Task {
    /// A task may be polled last when the model has ended, and its statics with it.
    runtime: Arc<Mutex<Runtime>>,
    number: usize,
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let runs = {
            let mut runtime = self.runtime.lock().expect("no panic");
            runtime.wakers.push(cx.waker().clone());
            runtime.number == self.number
        };
        match &mut self.future {
            Some(future) if runs => future.as_mut().poll(cx),
            future => {
                *future = None;
                Poll::Ready(())
            }
        }
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let thread = Arc::new(Thread(loom::sync::Notify::new()));
    let waker = Waker::from(Arc::clone(&thread));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread.0.wait();
    }
}

struct Thread(loom::sync::Notify);

impl Wake for Thread {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}
