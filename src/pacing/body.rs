use std::error::Error as StdError;
use std::fmt;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use crate::decision::{Decision, LimitStatus};
use crate::error::Error;
use crate::limiter::LimiterFuture;
use crate::observe::{Direction, Event, Observers};
use crate::response::BoxError;

/// Waits until the limiter allows so many bytes.
pub(super) type AllowBytes = Box<dyn Fn(u64) -> LimiterFuture<Decision> + Send + Sync>;

/// A body whose bytes wait for a limiter: see the [module](super).
#[pin_project]
pub struct PacedBody<B> {
    #[pin]
    body: B,
    /// `None` if the body passes unchanged.
    pace: Option<Pace>,
}

/// The pace of one body.
pub(super) struct Pace {
    allow: Result<AllowBytes, Error>,
    direction: Direction,
    observers: Observers,
    chunk: u64,
    /// Whether the next chunk lets other streams run first.
    yields: bool,
    /// Bytes that the inner body has returned, and that have not passed.
    rest: Bytes,
    wait: Option<LimiterFuture<Decision>>,
}

const MIN_CHUNK: u64 = 1 << 10;
const MAX_CHUNK: u64 = 1 << 16;

/// The time in which the rate admits a chunk.
const CHUNK_TIME: Duration = Duration::from_millis(20);

impl<B> PacedBody<B> {
    pub(super) fn new(body: B, pace: Option<Pace>) -> Self {
        Self { body, pace }
    }
}

impl Pace {
    /// Creates the pace of a body whose bytes a limiter allows, or that ends with an error.
    pub(super) fn new(allow: Result<AllowBytes, Error>, direction: Direction, observers: Observers) -> Self {
        let (rest, chunk) = (Bytes::new(), MIN_CHUNK);
        Self { allow, direction, observers, chunk, yields: false, rest, wait: None }
    }

    /// Waits until the limiter allows the next chunk. Returns `None` if no limit applies.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        loop {
            let bytes = self.chunk.min(self.rest.len() as u64);
            let wait = match &mut self.wait {
                Some(wait) => wait,
                // The timer wakes all streams of a key together. Otherwise the first one would take what the others leave.
                None if std::mem::take(&mut self.yields) => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                none => none.insert(self.allow.as_ref().map_err(Error::clone)?(bytes)),
            };
            let decision = ready!(Pin::new(wait).poll(cx));
            self.wait = None;
            let decision = decision?;
            if decision.is_exempt() {
                return Poll::Ready(Ok(None));
            }
            let limit = decision.most_restrictive();
            self.adapt(limit);
            if decision.is_allowed() {
                let (direction, limit, waited) = (self.direction, limit.map(LimitStatus::name), decision.delay());
                self.observers.emit(|| Event::Paced { direction, limit, bytes, waited, error: None });
                return Poll::Ready(Ok(Some(self.rest.split_to(usize::try_from(bytes).unwrap_or(usize::MAX)))));
            }
            // Otherwise the chunk was larger than the burst, which is known now.
            if !decision.exceeds_limit() || self.chunk >= bytes {
                return Poll::Ready(Err(Error::unavailable(
                    "pacing a body failed: the limiter allows no chunk within `max_wait`; raise `max_wait` or the rate",
                )));
            }
        }
    }

    /// Adapts the chunk to the rate, and yields while less than half of the burst remains.
    fn adapt(&mut self, limit: Option<&LimitStatus>) {
        let Some(limit) = limit.map(LimitStatus::snapshot) else { return };
        self.yields = limit.remaining < limit.limit / 2;
        let Some(window) = limit.window.filter(|window| !window.is_zero()) else { return };
        let of_rate = u128::from(limit.limit) * CHUNK_TIME.as_micros() / window.as_micros().max(1);
        let of_rate = u64::try_from(of_rate).unwrap_or(u64::MAX).clamp(MIN_CHUNK, MAX_CHUNK);
        self.chunk = of_rate.min(limit.limit / 2).max(1);
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> Body for PacedBody<B> {
    type Data = Bytes;
    /// The error of the inner body as it is, or an error whose text says nothing about the server and whose source is the
    /// [`Error`] of the limiter.
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        loop {
            if let Some(pace) = this.pace.as_mut().filter(|pace| !pace.rest.is_empty()) {
                match ready!(pace.poll_chunk(cx)) {
                    Ok(Some(chunk)) => return Poll::Ready(Some(Ok(Frame::data(chunk)))),
                    Ok(None) => {
                        let rest = std::mem::take(&mut pace.rest);
                        *this.pace = None;
                        return Poll::Ready(Some(Ok(Frame::data(rest))));
                    }
                    Err(error) => {
                        let (direction, waited) = (pace.direction, Duration::ZERO);
                        let event = || Event::Paced { direction, limit: None, bytes: 0, waited, error: Some(&error) };
                        pace.observers.emit(event);
                        return Poll::Ready(Some(Err(Box::new(CutOff(error)))));
                    }
                }
            }
            let frame = match ready!(this.body.as_mut().poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(frame) => frame.map_err(|error| without_wrapper(error.into()))?,
            };
            let Some(pace) = this.pace.as_mut() else { return Poll::Ready(Some(Ok(frame))) };
            match frame.into_data() {
                Ok(data) if data.is_empty() => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(data) => pace.rest = data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.pace.as_ref().is_none_or(|pace| pace.rest.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.pace.as_ref().map_or(0, |pace| pace.rest.len() as u64);
        let inner = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper().and_then(|upper| upper.checked_add(rest)) {
            hint.set_upper(upper);
        }
        hint
    }
}

/// Removes axum's wrapper of errors, which axum's body adds again: an extractor unwraps a fixed number of them.
fn without_wrapper(error: BoxError) -> BoxError {
    #[cfg(feature = "axum")]
    let error = error.downcast::<axum::Error>().map_or_else(|error| error, |wrapper| wrapper.into_inner());
    error
}

/// The error of a body that no limiter lets pass. Servers send its text to clients.
#[derive(Debug)]
struct CutOff(Error);

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rate limiter let no more of the body pass")
    }
}

impl StdError for CutOff {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

impl<B: Default> Default for PacedBody<B> {
    fn default() -> Self {
        Self::new(B::default(), None)
    }
}

impl<B: From<Bytes>> From<Bytes> for PacedBody<B> {
    fn from(bytes: Bytes) -> Self {
        Self::new(B::from(bytes), None)
    }
}

impl_debug!([B] PacedBody<B> {});
