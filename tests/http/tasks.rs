//! Tasks of one type.
#![allow(dead_code, reason = "each binary uses a part")]

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{AbortHandle, JoinError, JoinHandle};

/// A future of any type. Tasks are boxed: for each type of a future the compiler generates the code of both of tokio's
/// schedulers.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub(crate) fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> Boxed<T> {
    Box::pin(future)
}

/// Spawns a task.
pub(crate) fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Task<T> {
    Task { handle: tokio::spawn(boxed(async { Box::new(future.await) as Output })), output: PhantomData }
}

/// The output of a task, of any type for the same reason.
type Output = Box<dyn Any + Send>;

/// A task, which returns a `T`.
pub(crate) struct Task<T> {
    handle: JoinHandle<Output>,
    output: PhantomData<fn() -> T>,
}

impl<T> Task<T> {
    pub(crate) fn abort(&self) {
        self.handle.abort();
    }

    pub(crate) fn abort_handle(&self) -> AbortHandle {
        self.handle.abort_handle()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }
}

impl<T: 'static> Future for Task<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.handle).poll(cx).map_ok(|output| *output.downcast().expect("the output of this task"))
    }
}

/// Spawns the tasks of hyper's connections.
#[derive(Clone)]
pub(crate) struct BoxExecutor;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for BoxExecutor {
    fn execute(&self, future: F) {
        spawn(future);
    }
}
