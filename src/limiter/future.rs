use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;

use super::Outcome;
use crate::error::Error;
use crate::sync::POLLED_AFTER_COMPLETION;

/// A future on the heap.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The answer to [`acquire`](super::Limiter::acquire): ready now, or on its way. It can be awaited either way.
#[must_use = "an answer that is not looked at decides nothing"]
#[allow(clippy::exhaustive_enums, reason = "a caller tells the two apart to save the future")]
#[allow(clippy::large_enum_variant, reason = "what is ready must not be boxed")]
pub enum Acquisition<F> {
    /// Decided.
    Ready(Result<Outcome, Error>),
    /// Being decided elsewhere.
    Pending(F),
}

impl<F: Future<Output = Result<Outcome, Error>>> IntoFuture for Acquisition<F> {
    type Output = Result<Outcome, Error>;
    type IntoFuture = AcquireFuture<F>;

    fn into_future(self) -> AcquireFuture<F> {
        match self {
            Self::Ready(result) => AcquireFuture::Ready(Some(result)),
            Self::Pending(future) => AcquireFuture::Pending(future),
        }
    }
}

impl<F> fmt::Debug for Acquisition<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(result) => f.debug_tuple("Ready").field(result).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

mod acquire_future {
    use super::{Error, Outcome, pin_project};

    /// An [`Acquisition`](super::Acquisition) as a future. Polling it again after it was ready panics, as with any future.
    #[pin_project(project = Projection)]
    #[allow(missing_debug_implementations, unreachable_pub, reason = "private, reached by its trait")]
    #[allow(clippy::large_enum_variant, reason = "what is ready must not be boxed")]
    pub enum AcquireFuture<F> {
        Ready(Option<Result<Outcome, Error>>),
        Pending(#[pin] F),
    }
}

use self::acquire_future::{AcquireFuture, Projection};

impl<F: Future<Output = Result<Outcome, Error>>> Future for AcquireFuture<F> {
    type Output = Result<Outcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            Projection::Ready(result) => Poll::Ready(result.take().expect("a decision was polled after it was ready")),
            Projection::Pending(future) => future.poll(cx),
        }
    }
}

/// The answer to the rarer operations of a limiter: ready now, or on its way. Await it either way.
///
/// # Panics
///
/// Polling it again after it was ready panics, as with any future.
#[must_use = "an operation that is not awaited may not be done"]
pub struct LimiterFuture<T>(State<T>);

enum State<T> {
    Ready(Option<Result<T, Error>>),
    Pending(BoxFuture<Result<T, Error>>),
}

impl<T> LimiterFuture<T> {
    /// Done.
    pub fn ready(result: Result<T, Error>) -> Self {
        Self(State::Ready(Some(result)))
    }

    /// Being done elsewhere.
    pub fn pending(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(State::Pending(Box::pin(future)))
    }

    /// Not done, as the limiter does not have this operation.
    pub fn unsupported(message: &'static str) -> Self {
        Self::ready(Err(Error::unsupported(message)))
    }

    /// Changes what comes of it.
    pub fn map<U>(self, f: impl FnOnce(T) -> U + Send + 'static) -> LimiterFuture<U>
    where
        T: Send + 'static,
    {
        match self.0 {
            State::Ready(result) => LimiterFuture(State::Ready(result.map(|result| result.map(f)))),
            State::Pending(future) => LimiterFuture::pending(async move { future.await.map(f) }),
        }
    }

    /// This one and another, done at the same time: what comes of both, whatever it is.
    pub(crate) fn with<U>(mut self, mut other: LimiterFuture<U>) -> LimiterFuture<(Result<T, Error>, Result<U, Error>)>
    where
        T: Unpin + Send + 'static,
        U: Unpin + Send + 'static,
    {
        if let (State::Ready(first), State::Ready(second)) = (&mut self.0, &mut other.0)
            && let (Some(first), Some(second)) = (first.take(), second.take())
        {
            return LimiterFuture::ready(Ok((first, second)));
        }
        let (mut first, mut second) = (None, None);
        LimiterFuture::pending(poll_fn(move |cx| {
            if first.is_none() {
                first = done(Pin::new(&mut self).poll(cx));
            }
            if second.is_none() {
                second = done(Pin::new(&mut other).poll(cx));
            }
            match (first.take(), second.take()) {
                (Some(first), Some(second)) => Poll::Ready(Ok((first, second))),
                (still, missing) => {
                    (first, second) = (still, missing);
                    Poll::Pending
                }
            }
        }))
    }

    /// Goes on with what comes of it.
    pub(crate) fn then<U>(
        self,
        f: impl FnOnce(Result<T, Error>) -> Result<U, Error> + Send + 'static,
    ) -> LimiterFuture<U>
    where
        T: Unpin + Send + 'static,
    {
        match self.try_ready() {
            Ok(result) => LimiterFuture::ready(f(result)),
            Err(reply) => LimiterFuture::pending(async move { f(reply.await) }),
        }
    }

    /// The same, and done to its end even if it is dropped before: see [`detach`](Self::detach).
    pub(crate) fn complete_on_drop(self) -> Self
    where
        T: Unpin + Send + 'static,
    {
        match self.0 {
            State::Ready(result) => Self(State::Ready(result)),
            pending @ State::Pending(_) => Self::pending(CompleteOnDrop(Some(Self(pending)))),
        }
    }

    /// Lets it be done without waiting for it: for what is done when something is dropped.
    ///
    /// What is ready is done. What is still going on is left to the tokio runtime if there is one (feature `timer`), and
    /// else is abandoned.
    pub fn detach(self)
    where
        T: Send + 'static,
    {
        if let State::Pending(future) = self.0 {
            crate::runtime::spawn(async move {
                let _ = future.await;
            });
        }
    }

    /// The result, if it is there already; else the reply again.
    ///
    /// # Errors
    ///
    /// The reply itself, which is then to be awaited.
    pub fn try_ready(self) -> Result<Result<T, Error>, Self> {
        match self.0 {
            State::Ready(Some(result)) => Ok(result),
            other => Err(Self(other)),
        }
    }
}

fn done<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Ready(ready) => Some(ready),
        Poll::Pending => None,
    }
}

/// A reply that goes on when it is dropped.
struct CompleteOnDrop<T: Send + 'static>(Option<LimiterFuture<T>>);

impl<T: Unpin + Send + 'static> Future for CompleteOnDrop<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(self.0.as_mut().expect(POLLED_AFTER_COMPLETION)).poll(cx));
        self.0 = None;
        Poll::Ready(result)
    }
}

impl<T: Send + 'static> Drop for CompleteOnDrop<T> {
    fn drop(&mut self) {
        if let Some(reply) = self.0.take() {
            reply.detach();
        }
    }
}

impl<T: Unpin> Future for LimiterFuture<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Ready(result) => Poll::Ready(result.take().expect(POLLED_AFTER_COMPLETION)),
            State::Pending(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for LimiterFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Ready(_) => "LimiterFuture::Ready",
            State::Pending(_) => "LimiterFuture::Pending",
        })
    }
}
