//! A stream and a sink whose items wait for a limiter.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_sink::Sink;
use pin_project::pin_project;

use super::Limiter;
use super::until_ready::Wait;
use crate::decision::{AcquireOptions, Costs};
use crate::error::Error;

/// The limit of the items of one key.
struct Admission<L: Limiter<Key>, Key> {
    limiter: L,
    key: Key,
    options: AcquireOptions,
    /// Boxed, so that the stream and the sink are `Unpin`: otherwise callers of `next` and `send` would have to pin them.
    wait: Option<Pin<Box<Wait<L::Future>>>>,
}

impl<L: Limiter<Key>, Key> Admission<L, Key> {
    fn new(limiter: L, key: Key) -> Self {
        Self { limiter, key, options: AcquireOptions::default(), wait: None }
    }

    /// Waits until the limiter allows the next item.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let wait = self.wait.get_or_insert_with(|| Box::pin(Wait::new(self.options)));
        let decision = ready!(wait.as_mut().poll(&self.limiter, &self.key, cx));
        self.wait = None;
        Poll::Ready(match decision? {
            decision if decision.exceeds_limit() => Err(Error::config(
                "limiting an item failed: its cost exceeds the limit; lower the cost, or raise the limit's burst",
            )),
            _ => Ok(()),
        })
    }
}

/// A stream whose items wait until the limiter allows each of them.
///
/// The stream reads an item of the inner stream, waits as [`until_ready`](super::until_ready) does, and yields the item.
/// It promises no order among streams, sinks and layers on one limiter.
/// An item is an error if the limiter fails, or if the cost exceeds the limit.
///
/// ```
/// use futures_util::{StreamExt, TryStreamExt, stream};
/// use tower_ratelimit::limiter::LimitedStream;
/// use tower_ratelimit::{Gcra, Memory, Quota, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Memory::builder(Gcra::new(Quota::per_second(10)).burst(1)).clock(TokioClock::new()).build()?;
/// let events = LimitedStream::new(stream::iter(["a", "b", "c"]), limiter, "alice".to_owned());
/// let sent: Vec<_> = events.try_collect().await?;
/// assert_eq!(sent, ["a", "b", "c"]);
/// # Ok(())
/// # }
/// ```
#[pin_project]
#[must_use = "streams do nothing unless polled"]
pub struct LimitedStream<S: Stream, L: Limiter<Key>, Key> {
    #[pin]
    stream: S,
    admission: Admission<L, Key>,
    waiting: Option<S::Item>,
}

impl<S: Stream, L: Limiter<Key>, Key> LimitedStream<S, L, Key> {
    /// Limits the items of `stream`, each of which costs one.
    pub fn new(stream: S, limiter: L, key: Key) -> Self {
        Self { stream, admission: Admission::new(limiter, key), waiting: None }
    }

    /// Sets the cost of each item: a number, or [`Costs`] in units.
    pub fn cost(mut self, cost: impl Into<Costs>) -> Self {
        self.admission.options.set_costs(cost.into());
        self
    }
}

impl<S: Stream, L: Limiter<Key>, Key> Stream for LimitedStream<S, L, Key> {
    type Item = Result<S::Item, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        if this.waiting.is_none() {
            *this.waiting = ready!(this.stream.as_mut().poll_next(cx));
            if this.waiting.is_none() {
                return Poll::Ready(None);
            }
        }
        let allowed = ready!(this.admission.poll(cx));
        let item = this.waiting.take();
        Poll::Ready(allowed.map(|()| item).transpose())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let waiting = usize::from(self.waiting.is_some());
        let (lower, upper) = self.stream.size_hint();
        (lower.saturating_add(waiting), upper.and_then(|upper| upper.checked_add(waiting)))
    }
}

impl<S: Stream, L: Limiter<Key>, Key> fmt::Debug for LimitedStream<S, L, Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedStream").field("is_waiting", &self.waiting.is_some()).finish_non_exhaustive()
    }
}

/// A sink that accepts an item when the limiter allows it: the sending half of a WebSocket, for example.
///
/// `poll_ready`, which `send` calls, waits as [`until_ready`](super::until_ready) does and charges the next item. It
/// returns an error if the limiter fails, or if the cost exceeds the limit. It promises no order among streams, sinks and
/// layers on one limiter.
///
/// ```
/// use futures_util::{SinkExt, sink};
/// use tower_ratelimit::limiter::LimitedSink;
/// use tower_ratelimit::{Gcra, Memory, Quota, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Memory::builder(Gcra::new(Quota::per_second(10)).burst(1)).clock(TokioClock::new()).build()?;
/// let mut socket = LimitedSink::new(sink::drain(), limiter, "alice".to_owned());
/// let started = tokio::time::Instant::now();
/// for message in ["a", "b", "c"] {
///     socket.send(message).await?;
/// }
/// assert_eq!(started.elapsed().as_millis(), 200);
/// # Ok(())
/// # }
/// ```
#[pin_project]
#[must_use = "sinks do nothing unless polled"]
pub struct LimitedSink<S, L: Limiter<Key>, Key> {
    #[pin]
    sink: S,
    admission: Admission<L, Key>,
    /// The next item is charged.
    is_admitted: bool,
}

impl<S, L: Limiter<Key>, Key> LimitedSink<S, L, Key> {
    /// Limits the items that `sink` accepts, each of which costs one.
    pub fn new(sink: S, limiter: L, key: Key) -> Self {
        Self { sink, admission: Admission::new(limiter, key), is_admitted: false }
    }

    /// Sets the cost of each item: a number, or [`Costs`] in units.
    pub fn cost(mut self, cost: impl Into<Costs>) -> Self {
        self.admission.options.set_costs(cost.into());
        self
    }
}

impl<S: Sink<Item>, L: Limiter<Key>, Key, Item> Sink<Item> for LimitedSink<S, L, Key> {
    type Error = LimitedSinkError<S::Error>;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let this = self.project();
        // The sink first: a sink that is closed or full charges nothing.
        ready!(this.sink.poll_ready(cx)).map_err(LimitedSinkError::Sink)?;
        if !*this.is_admitted {
            ready!(this.admission.poll(cx)).map_err(LimitedSinkError::Limiter)?;
            *this.is_admitted = true;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, item: Item) -> Result<(), Self::Error> {
        let this = self.project();
        *this.is_admitted = false;
        this.sink.start_send(item).map_err(LimitedSinkError::Sink)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.project().sink.poll_flush(cx).map_err(LimitedSinkError::Sink)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.project().sink.poll_close(cx).map_err(LimitedSinkError::Sink)
    }
}

impl<S, L: Limiter<Key>, Key> fmt::Debug for LimitedSink<S, L, Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedSink").field("is_admitted", &self.is_admitted).finish_non_exhaustive()
    }
}

/// The error of a [`LimitedSink`].
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "the inner sink or the limiter")]
pub enum LimitedSinkError<E> {
    /// The limiter failed, or the cost of the item exceeds the limit.
    Limiter(Error),
    /// The inner sink failed.
    Sink(E),
}

impl<E: fmt::Display> fmt::Display for LimitedSinkError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limiter(error) => error.fmt(f),
            Self::Sink(error) => error.fmt(f),
        }
    }
}

impl<E: StdError + 'static> StdError for LimitedSinkError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Limiter(error) => error.source(),
            Self::Sink(error) => error.source(),
        }
    }
}
