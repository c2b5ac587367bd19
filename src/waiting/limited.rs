//! A stream and a sink whose items wait for a limiter.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future as _;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_sink::Sink;
use pin_project::pin_project;

use super::caller::Caller;
use crate::decision::{AcquireOptions, Costs, Decision};
use crate::error::Error;
use crate::limiter::{Limiter, LimiterFuture};

/// The limit of the items of one key.
struct Admission<L, Key, Item> {
    caller: Caller<Key, Key, L>,
    cost: CostOf<Item>,
    wait: Option<LimiterFuture<Decision>>,
}

/// Returns the cost of an item.
type CostOf<Item> = Box<dyn Fn(&Item) -> Costs + Send + Sync>;

impl<L: Limiter<Key>, Key: Hash + Send + Sync + 'static, Item> Admission<L, Key, Item> {
    fn new(limiter: L, key: Key) -> Self {
        Self { caller: Caller::new(limiter, key), cost: Box::new(|_| Costs::from(1)), wait: None }
    }

    /// Waits until the limiter allows the item.
    fn poll(&mut self, item: &Item, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let ask = || self.caller.until_ready(AcquireOptions::from((self.cost)(item)));
        let wait = self.wait.get_or_insert_with(ask);
        let decision = ready!(Pin::new(wait).poll(cx));
        self.wait = None;
        Poll::Ready(match decision? {
            decision if decision.exceeds_limit() => Err(Error::config(
                "limiting an item failed: its cost exceeds the limit; lower the cost, or raise the limit's burst",
            )),
            decision if decision.is_allowed() => Ok(()),
            _ => Err(Error::unavailable(
                "limiting an item failed: the limiter denies the key for more than a year; see what blocks the key",
            )),
        })
    }
}

/// A stream whose items wait until the limiter allows each of them.
///
/// The stream reads an item of the inner stream, waits as [`until_ready`](super::until_ready) does, and yields the item.
/// An item is an error if the limiter fails or denies the key for more than a year, or if the cost exceeds the limit.
///
/// ```
/// use futures_util::{StreamExt, TryStreamExt, stream};
/// use tower_ratelimit::waiting::LimitedStream;
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
pub struct LimitedStream<S: Stream, L, Key> {
    #[pin]
    stream: S,
    admission: Admission<L, Key, S::Item>,
    waiting: Option<S::Item>,
}

impl<S: Stream, L: Limiter<Key>, Key: Hash + Send + Sync + 'static> LimitedStream<S, L, Key> {
    /// Limits the items of `stream`, each of which costs one.
    pub fn new(stream: S, limiter: L, key: Key) -> Self {
        Self { stream, admission: Admission::new(limiter, key), waiting: None }
    }

    /// Sets the cost of each item: a number, such as its bytes, or [`Costs`] in units.
    ///
    /// An item that costs more than the limit's burst is an error.
    pub fn cost<C: Into<Costs>>(mut self, cost: impl Fn(&S::Item) -> C + Send + Sync + 'static) -> Self {
        self.admission.cost = Box::new(move |item| cost(item).into());
        self
    }
}

impl<S: Stream, L: Limiter<Key>, Key: Hash + Send + Sync + 'static> Stream for LimitedStream<S, L, Key> {
    type Item = Result<S::Item, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        if this.waiting.is_none() {
            *this.waiting = ready!(this.stream.as_mut().poll_next(cx));
        }
        let Some(item) = this.waiting.as_ref() else { return Poll::Ready(None) };
        let allowed = ready!(this.admission.poll(item, cx));
        let item = this.waiting.take();
        Poll::Ready(allowed.map(|()| item).transpose())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let waiting = usize::from(self.waiting.is_some());
        let (lower, upper) = self.stream.size_hint();
        (lower.saturating_add(waiting), upper.and_then(|upper| upper.checked_add(waiting)))
    }
}

impl_debug!([S: Stream, L, Key] LimitedStream<S, L, Key> {});

/// A sink that passes an item on when the limiter allows it: the sending half of a WebSocket, for example.
///
/// The sink keeps one item, which waits as [`until_ready`](super::until_ready) does: `send` returns when the inner sink has
/// accepted the item. The sink returns an error if the limiter fails or denies the key for more than a year, or if the cost
/// exceeds the limit. The item is lost then.
///
/// ```
/// use futures_util::{SinkExt, sink};
/// use tower_ratelimit::waiting::LimitedSink;
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
pub struct LimitedSink<S, L, Key, Item> {
    #[pin]
    sink: S,
    admission: Admission<L, Key, Item>,
    waiting: Option<Item>,
}

impl<S: Sink<Item>, L: Limiter<Key>, Key: Hash + Send + Sync + 'static, Item> LimitedSink<S, L, Key, Item> {
    /// Limits the items that `sink` accepts, each of which costs one.
    pub fn new(sink: S, limiter: L, key: Key) -> Self {
        Self { sink, admission: Admission::new(limiter, key), waiting: None }
    }

    /// Sets the cost of each item: a number, such as its bytes, or [`Costs`] in units.
    ///
    /// An item that costs more than the limit's burst is an error.
    pub fn cost<C: Into<Costs>>(mut self, cost: impl Fn(&Item) -> C + Send + Sync + 'static) -> Self {
        self.admission.cost = Box::new(move |item| cost(item).into());
        self
    }

    /// Passes the waiting item on.
    fn poll_waiting(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LimitedSinkError<S::Error>>> {
        let mut this = self.project();
        let Some(item) = this.waiting.as_ref() else { return Poll::Ready(Ok(())) };
        // The sink first: a sink that is closed or full charges nothing.
        ready!(this.sink.as_mut().poll_ready(cx)).map_err(LimitedSinkError::Sink)?;
        let allowed = ready!(this.admission.poll(item, cx));
        let item = this.waiting.take();
        allowed.map_err(LimitedSinkError::Limiter)?;
        let sent = item.map_or(Ok(()), |item| this.sink.start_send(item));
        Poll::Ready(sent.map_err(LimitedSinkError::Sink))
    }
}

impl<S: Sink<Item>, L: Limiter<Key>, Key: Hash + Send + Sync + 'static, Item> Sink<Item>
    for LimitedSink<S, L, Key, Item>
{
    type Error = LimitedSinkError<S::Error>;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        ready!(self.as_mut().poll_waiting(cx))?;
        self.project().sink.poll_ready(cx).map_err(LimitedSinkError::Sink)
    }

    fn start_send(self: Pin<&mut Self>, item: Item) -> Result<(), Self::Error> {
        *self.project().waiting = Some(item);
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        ready!(self.as_mut().poll_waiting(cx))?;
        self.project().sink.poll_flush(cx).map_err(LimitedSinkError::Sink)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        ready!(self.as_mut().poll_waiting(cx))?;
        self.project().sink.poll_close(cx).map_err(LimitedSinkError::Sink)
    }
}

impl_debug!([S, L, Key, Item] LimitedSink<S, L, Key, Item> {});

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
