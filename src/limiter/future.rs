use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::error::Error;
use crate::sync::POLLED_AFTER_COMPLETION;

/// A boxed future.
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The future of a limiter's decision or operation. It may be ready without a poll, and then takes no allocation.
///
/// # Panics
///
/// If it is polled after completion.
#[must_use = "an operation may not run unless its future is awaited"]
pub struct LimiterFuture<T>(State<T>);

// Without a box: an immediate decision must not allocate.
enum State<T> {
    Ready(Option<Result<T, Error>>),
    Pending(BoxFuture<Result<T, Error>>),
}

impl<T> LimiterFuture<T> {
    /// Creates a future that is ready.
    #[inline]
    pub fn ready(result: Result<T, Error>) -> Self {
        Self(State::Ready(Some(result)))
    }

    /// Boxes a future.
    pub fn pending(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(State::Pending(Box::pin(future)))
    }

    /// Creates a future that is ready with an error for which [`is_unsupported`](Error::is_unsupported) holds.
    pub fn unsupported(message: &'static str) -> Self {
        Self::ready(Err(Error::unsupported(message)))
    }

    /// Returns the future, or one that is ready with the error that has prevented it.
    pub(crate) fn of_result(started: Result<Self, Error>) -> Self {
        started.unwrap_or_else(|error| Self::ready(Err(error)))
    }

    /// Maps the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U + Send + 'static) -> LimiterFuture<U>
    where
        T: Send + 'static,
    {
        self.map_result(|result| result.map(f))
    }

    /// Joins this future with another: both run concurrently, and each result is returned, also if the other is an
    /// error.
    pub(crate) fn join<U>(mut self, mut other: LimiterFuture<U>) -> LimiterFuture<(Result<T, Error>, Result<U, Error>)>
    where
        T: Send + 'static,
        U: Send + 'static,
    {
        if let Some(both) = take_both(&mut self, &mut other) {
            return LimiterFuture::ready(Ok(both));
        }
        LimiterFuture::pending(poll_fn(move |cx| {
            self.poll_in_place(cx);
            other.poll_in_place(cx);
            take_both(&mut self, &mut other).map_or(Poll::Pending, |both| Poll::Ready(Ok(both)))
        }))
    }

    /// Polls a pending future, and keeps its result.
    fn poll_in_place(&mut self, cx: &mut Context<'_>) {
        if let State::Pending(future) = &mut self.0
            && let Poll::Ready(result) = future.as_mut().poll(cx)
        {
            *self = Self::ready(result);
        }
    }

    /// Maps the result.
    pub(crate) fn map_result<U>(
        self,
        f: impl FnOnce(Result<T, Error>) -> Result<U, Error> + Send + 'static,
    ) -> LimiterFuture<U>
    where
        T: Send + 'static,
    {
        match self.try_ready() {
            Ok(result) => LimiterFuture::ready(f(result)),
            Err(future) => LimiterFuture::pending(async move { f(future.await) }),
        }
    }

    /// Returns a future that [detaches](Self::detach) itself if it is dropped before completion.
    pub(crate) fn complete_on_drop(self) -> Self
    where
        T: Send + 'static,
    {
        match self.0 {
            State::Ready(result) => Self(State::Ready(result)),
            pending @ State::Pending(_) => Self::pending(CompleteOnDrop(Some(Self(pending)))),
        }
    }

    /// Runs the operation to completion in the background, for operations that a destructor starts.
    ///
    /// A pending future runs in the current tokio runtime (feature `timer`). Without a runtime it is dropped.
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

    /// Returns the result if it is ready.
    ///
    /// # Errors
    ///
    /// Returns the future itself if it is pending.
    #[inline]
    pub fn try_ready(self) -> Result<Result<T, Error>, Self> {
        match self.0 {
            State::Ready(Some(result)) => Ok(result),
            other => Err(Self(other)),
        }
    }

    /// Returns a reference to the result if it is ready.
    #[inline]
    pub(crate) fn as_ready(&self) -> Option<&Result<T, Error>> {
        match &self.0 {
            State::Ready(result) => result.as_ref(),
            State::Pending(_) => None,
        }
    }
}

impl LimiterFuture<()> {
    /// Joins this operation with another. Both must succeed.
    pub(crate) fn and(self, other: Self) -> Self {
        self.join(other).map_result(|joined| joined.and_then(|(first, second)| first.and(second)))
    }
}

/// Returns both results if both are ready.
fn take_both<T, U>(
    first: &mut LimiterFuture<T>,
    second: &mut LimiterFuture<U>,
) -> Option<(Result<T, Error>, Result<U, Error>)> {
    match (&mut first.0, &mut second.0) {
        (State::Ready(first), State::Ready(second)) => first.take().zip(second.take()),
        _ => None,
    }
}

/// A future that detaches itself if it is dropped before completion.
struct CompleteOnDrop<T: Send + 'static>(Option<LimiterFuture<T>>);

impl<T: Send + 'static> Future for CompleteOnDrop<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(self.0.as_mut().expect(POLLED_AFTER_COMPLETION)).poll(cx));
        self.0 = None;
        Poll::Ready(result)
    }
}

impl<T: Send + 'static> Drop for CompleteOnDrop<T> {
    fn drop(&mut self) {
        if let Some(future) = self.0.take() {
            future.detach();
        }
    }
}

// A value is not pinned: it moves out when the future is polled.
impl<T> Unpin for LimiterFuture<T> {}

impl<T> Future for LimiterFuture<T> {
    type Output = Result<T, Error>;

    #[inline]
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
