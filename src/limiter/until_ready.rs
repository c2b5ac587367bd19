use std::future::{Future, IntoFuture as _, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project::pin_project;

use super::future::AcquireFuture;
use super::{Limiter, Outcome};
use crate::decision::{AcquireOptions, Decision, Verdict};
use crate::error::Error;
use crate::runtime::{Instant, Sleep, sleep};

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
/// With several limits in one limiter, such as one of each tenant and one of all, a tenant at its own limit can keep the
/// others from the shared limit. Use one limiter for each limit, and call the function on one after the other.
///
/// A scheduled start is charged when the limiter schedules it: if the caller drops the future, the charge stays.
///
/// The queues of [`RateLimitLayer`](https://docs.rs/tower-ratelimit/latest/tower_ratelimit/struct.RateLimitLayer.html)
/// belong to the layer, so this function does not wait in them: it may overtake the requests of a layer. On a bucket both
/// have their places in the limiter's schedule.
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
    let mut wait = pin!(Wait::new(options.into()));
    poll_fn(|cx| wait.as_mut().poll(limiter, key, cx)).await
}

/// The wait of one caller until the limiter allows its cost.
#[pin_project]
pub(super) struct Wait<F> {
    options: AcquireOptions,
    started: Instant,
    #[pin]
    step: Step<F>,
}

#[pin_project(project = StepProjection)]
enum Step<F> {
    Ask,
    Decide(#[pin] AcquireFuture<F>),
    /// Until the start of an allowed request, or until the next ask.
    Sleep(#[pin] Sleep, Option<Decision>),
}

impl<F: Future<Output = Result<Outcome, Error>>> Wait<F> {
    pub(super) fn new(options: AcquireOptions) -> Self {
        Self { options, started: Instant::now(), step: Step::Ask }
    }

    pub(super) fn poll<Key, L>(
        self: Pin<&mut Self>,
        limiter: &L,
        key: &Key,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>>
    where
        Key: ?Sized,
        L: Limiter<Key, Future = F> + ?Sized,
    {
        let mut this = self.project();
        if this.options.hold || this.options.until_end {
            return Poll::Ready(Err(Error::unsupported(
                "until_ready failed: it cannot hold a cost; call `hold` of the limiter",
            )));
        }
        let left = || this.options.max_delay.map_or(Duration::MAX, |max| max.saturating_sub(this.started.elapsed()));
        loop {
            let next = match this.step.as_mut().project() {
                StepProjection::Ask => {
                    let attempt = this.options.max_delay(left());
                    Step::Decide(limiter.acquire(key, attempt).into_future())
                }
                StepProjection::Decide(decision) => {
                    let decision = ready!(decision.poll(cx))?.decision;
                    let Some(wait) = wait_after(&decision, left()) else { return Poll::Ready(Ok(decision)) };
                    let sleep = sleep(wait).ok_or_else(Error::no_timer)?;
                    Step::Sleep(sleep, Some(decision).filter(Decision::is_allowed))
                }
                StepProjection::Sleep(sleep, allowed) => {
                    ready!(sleep.poll(cx));
                    match allowed.take() {
                        Some(decision) => return Poll::Ready(Ok(decision)),
                        None => Step::Ask,
                    }
                }
            };
            this.step.set(next);
        }
    }
}

/// Returns the time until the caller starts or asks again; `None` if the decision is final.
fn wait_after(decision: &Decision, left: Duration) -> Option<Duration> {
    match decision.verdict() {
        Verdict::Denied { .. } if left.is_zero() => None,
        Verdict::Denied { retry_after } if decision.is_estimate() => Some(retry_after.min(ESTIMATE_RECHECK).min(left)),
        Verdict::Denied { retry_after } if retry_after <= left => Some(retry_after),
        Verdict::AllowedAfter(delay) => Some(delay),
        _ => None,
    }
}
