use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use pin_project::pin_project;

use super::{BoxFuture, Limiter};
use crate::decision::{AcquireOptions, Decision, Verdict};
use crate::error::Error;
use crate::runtime::{Instant, sleep};

/// The interval at which a caller asks again if held costs make its wait an estimate.
const ESTIMATE_RECHECK: Duration = Duration::from_millis(100);

/// Waits until the limiter allows a cost, and charges the key. For code without the middleware: jobs, messages.
///
/// # Order
///
/// | Limiter | Order of the callers |
/// |---|---|
/// | buckets and queues | first come, first served, in all processes: the limiter schedules the start when this function asks |
/// | windows, logs, and several limits of which one is idle | none: the function asks again after [`retry_after`](Decision::retry_after), and the limiter serves the first caller that asks |
///
/// A scheduled start is charged when the limiter schedules it: if the caller drops the future, the charge stays.
///
/// The queues of [`RateLimitLayer`](https://docs.rs/tower-ratelimit/latest/tower_ratelimit/struct.RateLimitLayer.html)
/// belong to the layer, so this function does not wait in them. On a bucket, a caller of this function and the requests
/// of a layer alternate, because the layer's queue books one start ahead. On a window it may overtake them.
///
/// [`AcquireOptions::max_delay`] bounds the wait; the default is no bound. The returned decision is a denial if the cost
/// [exceeds the limit](Decision::exceeds_limit), or if the wait would be longer than that bound. The function then
/// returns at once.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::limiter::until_ready;
/// use tower_ratelimit::{Gcra, Memory, Quota, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Memory::builder(Gcra::new(Quota::per_second(10)).burst(1)).clock(TokioClock::new()).build()?;
/// let started = tokio::time::Instant::now();
/// for _ in 0..5 {
///     until_ready(&limiter, "alice", 1).await?;
/// }
/// assert_eq!(started.elapsed(), Duration::from_millis(400));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Returns the limiter's error; an error for which [`is_config`](Error::is_config) holds outside of a tokio runtime with a
/// timer; and an error for which [`is_unsupported`](Error::is_unsupported) holds if the options ask for a hold.
pub async fn until_ready<Key, L>(limiter: &L, key: &Key, options: impl Into<AcquireOptions>) -> Result<Decision, Error>
where
    Key: ?Sized,
    L: Limiter<Key> + ?Sized,
{
    let options = options.into();
    if options.hold {
        return Err(Error::unsupported("until_ready failed: it cannot hold a cost; call `Limiter::hold`"));
    }
    let started = Instant::now();
    loop {
        let left = options.max_delay.map_or(Duration::MAX, |max| max.saturating_sub(started.elapsed()));
        let mut attempt = options;
        attempt.max_delay = Some(left);
        let decision = limiter.acquire(key, attempt).await?.decision;
        let wait = match decision.verdict() {
            Verdict::Denied { .. } if left.is_zero() => return Ok(decision),
            Verdict::Denied { retry_after } if decision.is_estimate() => retry_after.min(ESTIMATE_RECHECK).min(left),
            Verdict::Denied { retry_after } if retry_after <= left => retry_after,
            _ if decision.delay().is_zero() => return Ok(decision),
            _ => decision.delay(),
        };
        sleep(wait).ok_or_else(Error::without_timer)?.await;
        if decision.is_allowed() {
            return Ok(decision);
        }
    }
}

/// A stream whose items wait until the limiter allows each of them.
///
/// The stream reads an item of the inner stream, waits as [`until_ready`] does, and yields the item. An item is an error
/// if the limiter fails, or if the cost exceeds the limit.
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
pub struct LimitedStream<S: Stream, L, Key> {
    #[pin]
    stream: S,
    limiter: L,
    key: Key,
    options: AcquireOptions,
    waiting: Option<(S::Item, BoxFuture<Result<Decision, Error>>)>,
}

impl<S: Stream, L, Key> LimitedStream<S, L, Key> {
    /// Limits the items of `stream`, each of which costs one.
    pub fn new(stream: S, limiter: L, key: Key) -> Self {
        Self { stream, limiter, key, options: AcquireOptions::default(), waiting: None }
    }

    /// Sets the cost of each item.
    pub fn cost(mut self, cost: u64) -> Self {
        self.options.cost = cost;
        self
    }
}

impl<S, L, Key> Stream for LimitedStream<S, L, Key>
where
    S: Stream,
    L: Limiter<Key> + Clone + Send + Sync + 'static,
    Key: Clone + Send + Sync + 'static,
{
    type Item = Result<S::Item, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        loop {
            if let Some((_, decision)) = this.waiting {
                let decision = ready!(decision.as_mut().poll(cx));
                let item = this.waiting.take().map(|(item, _)| item);
                return Poll::Ready(match decision {
                    Err(error) => Some(Err(error)),
                    Ok(decision) if decision.exceeds_limit() => Some(Err(Error::config(
                        "limiting the stream failed: the cost of an item exceeds the limit; raise the limit's burst",
                    ))),
                    Ok(_) => item.map(Ok),
                });
            }
            let Some(item) = ready!(this.stream.as_mut().poll_next(cx)) else { return Poll::Ready(None) };
            let (limiter, key, options) = (this.limiter.clone(), this.key.clone(), *this.options);
            *this.waiting = Some((item, Box::pin(async move { until_ready(&limiter, &key, options).await })));
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let waiting = usize::from(self.waiting.is_some());
        let (lower, upper) = self.stream.size_hint();
        (lower.saturating_add(waiting), upper.and_then(|upper| upper.checked_add(waiting)))
    }
}

impl<S: Stream, L, Key> fmt::Debug for LimitedStream<S, L, Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedStream").field("is_waiting", &self.waiting.is_some()).finish_non_exhaustive()
    }
}
