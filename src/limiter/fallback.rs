use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;

use super::future::{Acquisition, LimiterFuture};
use super::{AdminOperation, Limiter, Outcome, admin_methods};
use crate::decision::{AcquireOptions, Decision, DecisionSource};
use crate::error::Error;

/// A limiter that asks another one while its own store can't answer.
///
/// Typically Redis with [`Memory`](crate::Memory) behind it, whose quota is the shared one divided by the number of
/// processes: so that together they let through what they should, and a single one not more than its share. While the first
/// limiter can't answer (an error for which [`is_unavailable`](Error::is_unavailable) holds), the second one decides, and its
/// decisions say so: [`DecisionSource::Fallback`](crate::DecisionSource::Fallback). What each of them counted, the other does not know: after an
/// outage a key may have up to what both let through.
///
/// `set_usage`, `block`, `unblock` and `reset` go to both. What they answer is the first one's answer.
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
/// let alone = Memory::new(FixedWindow::new(Quota::per_minute(1000 / PROCESSES)));
/// let limiter = Fallback::new(shared, alone);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Fallback<P, F> {
    first: P,
    second: F,
}

impl<P, F> Fallback<P, F> {
    /// Asks `first`, and `second` where that can't answer.
    pub const fn new(first: P, second: F) -> Self {
        Self { first, second }
    }

    admin_methods!();
}

impl<Key, P, F> Limiter<Key> for Fallback<P, F>
where
    Key: ToOwned + ?Sized + 'static,
    Key::Owned: Send + 'static,
    P: Limiter<Key> + 'static,
    F: Limiter<Key> + Clone + Send + Sync + 'static,
{
    type Future = FallbackFuture<Key, P, F>;

    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<Self::Future> {
        match self.first.acquire(key, ask) {
            Acquisition::Ready(Err(error)) if error.is_unavailable() => match self.second.acquire(key, ask) {
                Acquisition::Ready(result) => Acquisition::Ready(result.map(by_second)),
                Acquisition::Pending(future) => Acquisition::Pending(FallbackFuture::Second { future }),
            },
            Acquisition::Ready(result) => Acquisition::Ready(result),
            Acquisition::Pending(future) => {
                let second = Some((self.second.clone(), key.to_owned(), ask));
                Acquisition::Pending(FallbackFuture::First { future, second })
            }
        }
    }

    fn peek(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision> {
        let (first, second, key) = (self.first.peek(key, ask), self.second.clone(), key.to_owned());
        match first.try_ready() {
            Ok(Err(error)) if error.is_unavailable() => second.peek(key.borrow(), ask).map(from_second),
            Ok(result) => LimiterFuture::ready(result),
            Err(first) => LimiterFuture::pending(async move {
                match first.await {
                    Err(error) if error.is_unavailable() => {
                        let peeked = second.peek(key.borrow(), ask);
                        peeked.await.map(from_second)
                    }
                    result => result,
                }
            }),
        }
    }

    fn cached_denial(&self, key: &Key, ask: AcquireOptions) -> Option<Decision> {
        self.first.cached_denial(key, ask)
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.second.administer(key, operation).detach();
        self.first.administer(key, operation)
    }
}

fn by_second(outcome: Outcome) -> Outcome {
    Outcome { decision: from_second(outcome.decision), ..outcome }
}

fn from_second(decision: Decision) -> Decision {
    decision.with_source(DecisionSource::Fallback)
}

/// A decision on its way, from the one limiter or the other.
#[pin_project(project = Projection)]
#[must_use = "a decision that is not awaited may not be made"]
#[allow(missing_debug_implementations, reason = "named by the limiter only")]
pub enum FallbackFuture<Key: ToOwned + ?Sized, P: Limiter<Key>, F: Limiter<Key>> {
    /// The first one's.
    #[doc(hidden)]
    First {
        #[pin]
        future: P::Future,
        second: Option<(F, Key::Owned, AcquireOptions)>,
    },
    /// The second one's.
    #[doc(hidden)]
    Second {
        #[pin]
        future: F::Future,
    },
}

impl<Key, P, F> Future for FallbackFuture<Key, P, F>
where
    Key: ToOwned + ?Sized,
    P: Limiter<Key>,
    F: Limiter<Key>,
{
    type Output = Result<Outcome, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.as_mut().project() {
                Projection::First { future, second } => match ready!(future.poll(cx)) {
                    Err(error) if error.is_unavailable() => {
                        let Some((limiter, key, ask)) = second.take() else { return Poll::Ready(Err(error)) };
                        match limiter.acquire(key.borrow(), ask) {
                            Acquisition::Ready(result) => return Poll::Ready(result.map(by_second)),
                            Acquisition::Pending(future) => self.set(Self::Second { future }),
                        }
                    }
                    result => return Poll::Ready(result),
                },
                Projection::Second { future } => return future.poll(cx).map(|result| result.map(by_second)),
            }
        }
    }
}
