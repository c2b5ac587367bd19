use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;

use super::future::{Acquisition, LimiterFuture};
use super::{AdminOperation, Limiter, LimitsOfKey, Outcome, limiter_methods, options_for_both};
use crate::decision::{AcquireOptions, Decision, DecisionSource};
use crate::error::Error;

/// A limiter that uses a secondary limiter while the store of its primary limiter is unavailable.
///
/// Typically the primary limiter is in Redis and the secondary in [`Memory`](crate::Memory). Divide the quota of the
/// secondary by the number of processes, so that all processes together stay near the shared limit.
///
/// If the primary limiter returns an error for which [`is_unavailable`](Error::is_unavailable) holds, the secondary
/// limiter decides. The source of its decisions is [`DecisionSource::Fallback`](crate::DecisionSource::Fallback). The
/// two limiters do not share usage: after an outage a key may have used up to the sum of both limits.
///
/// Costs in [units](crate::Limit::cost_of) may name the units of both limiters. Each limiter charges those that its limits
/// name.
///
/// `set_usage`, `block`, `unblock` and `reset` run on both limiters and return the result of the primary.
///
/// ```
/// use tower_ratelimit::limiter::Fallback;
/// use tower_ratelimit::{FixedWindow, Memory, Quota};
/// # #[cfg(feature = "redis")]
/// # fn f() -> Result<(), tower_ratelimit::Error> {
/// use tower_ratelimit::{Redis, RedisServer};
///
/// const PROCESSES: u64 = 4;
/// let server = RedisServer::open("redis://127.0.0.1")?;
/// let shared = Redis::<str>::new(server, "api", FixedWindow::new(Quota::per_minute(1000)));
/// let local = Memory::<str, _>::new(FixedWindow::new(Quota::per_minute(1000 / PROCESSES)));
/// let limiter = Fallback::new(shared, local);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Fallback<P, S> {
    primary: P,
    secondary: S,
}

impl<P, S> Fallback<P, S> {
    /// Creates a limiter that asks `secondary` while `primary` is unavailable.
    pub const fn new(primary: P, secondary: S) -> Self {
        Self { primary, secondary }
    }

    limiter_methods!();

    #[inline]
    fn checked<Key: ?Sized>(&self, options: AcquireOptions) -> Result<AcquireOptions, Error>
    where
        P: Limiter<Key>,
        S: Limiter<Key>,
    {
        options_for_both("`Fallback`", &self.primary, &self.secondary, options)
    }
}

impl<Key, P, S> Limiter<Key> for Fallback<P, S>
where
    Key: ToOwned + ?Sized + 'static,
    Key::Owned: Send + 'static,
    P: Limiter<Key> + 'static,
    S: Limiter<Key> + Clone,
{
    type Future = FallbackFuture<Key, P, S>;

    fn acquire(&self, key: &Key, options: AcquireOptions) -> Acquisition<Self::Future> {
        let options = match self.checked(options) {
            Ok(options) => options,
            Err(error) => return Acquisition::Ready(Err(error)),
        };
        match self.primary.acquire(key, options) {
            Acquisition::Ready(Err(error)) if error.is_unavailable() => match self.secondary.acquire(key, options) {
                Acquisition::Ready(result) => Acquisition::Ready(result.map(tag_secondary)),
                Acquisition::Pending(future) => {
                    Acquisition::Pending(FallbackFuture { state: State::Secondary { future } })
                }
            },
            Acquisition::Ready(result) => Acquisition::Ready(result),
            Acquisition::Pending(future) => {
                let secondary = Some((self.secondary.clone(), key.to_owned(), options));
                Acquisition::Pending(FallbackFuture { state: State::Primary { future, secondary } })
            }
        }
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        let options = match self.checked(options) {
            Ok(options) => options,
            Err(error) => return LimiterFuture::ready(Err(error)),
        };
        match self.primary.peek(key, options).try_ready() {
            Ok(Err(error)) if error.is_unavailable() => self.secondary.peek(key, options).map(mark_fallback),
            Ok(result) => LimiterFuture::ready(result),
            Err(primary) => {
                let (secondary, key) = (self.secondary.clone(), key.to_owned());
                LimiterFuture::pending(async move {
                    match primary.await {
                        Err(error) if error.is_unavailable() => {
                            let peeked = secondary.peek(key.borrow(), options);
                            peeked.await.map(mark_fallback)
                        }
                        result => result,
                    }
                })
            }
        }
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.primary.limits_of(key, limits);
        self.secondary.limits_of(key, limits);
    }

    fn visit_units(&self, visit: &mut dyn FnMut(&'static str)) {
        self.primary.visit_units(visit);
        self.secondary.visit_units(visit);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        if let AdminOperation::Settle { .. } = operation {
            return LimiterFuture::unsupported("settling failed: `Fallback` does not support reservation ids");
        }
        self.secondary.administer(key, operation).detach();
        self.primary.administer(key, operation)
    }
}

fn tag_secondary(outcome: Outcome) -> Outcome {
    Outcome { decision: mark_fallback(outcome.decision), ..outcome }
}

fn mark_fallback(decision: Decision) -> Decision {
    decision.with_source(DecisionSource::Fallback)
}

/// The future of a [`Fallback`] decision.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
#[allow(missing_debug_implementations, unreachable_pub, reason = "named by an associated type only")]
pub struct FallbackFuture<Key: ToOwned + ?Sized, P: Limiter<Key>, S: Limiter<Key>> {
    #[pin]
    state: State<Key, P, S>,
}

#[pin_project(project = Projection)]
enum State<Key: ToOwned + ?Sized, P: Limiter<Key>, S: Limiter<Key>> {
    Primary {
        #[pin]
        future: P::Future,
        secondary: Option<(S, Key::Owned, AcquireOptions)>,
    },
    Secondary {
        #[pin]
        future: S::Future,
    },
}

impl<Key, P, S> Future for FallbackFuture<Key, P, S>
where
    Key: ToOwned + ?Sized,
    P: Limiter<Key>,
    S: Limiter<Key>,
{
    type Output = Result<Outcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                Projection::Primary { future, secondary } => match ready!(future.poll(cx)) {
                    Err(error) if error.is_unavailable() => {
                        let Some((limiter, key, options)) = secondary.take() else { return Poll::Ready(Err(error)) };
                        match limiter.acquire(key.borrow(), options) {
                            Acquisition::Ready(result) => return Poll::Ready(result.map(tag_secondary)),
                            Acquisition::Pending(future) => state.set(State::Secondary { future }),
                        }
                    }
                    result => return Poll::Ready(result),
                },
                Projection::Secondary { future } => return future.poll(cx).map(|result| result.map(tag_secondary)),
            }
        }
    }
}
