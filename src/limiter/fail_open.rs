use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project::pin_project;

use super::future::{Acquisition, LimiterFuture};
use super::{AdminOperation, Limiter, Outcome, admin_methods};
use crate::clock::{Clock, SystemClock};
use crate::decision::{AcquireOptions, Decision, Verdict};
use crate::error::Error;

/// A limiter that lets requests pass while its store can't answer.
///
/// Such a decision names no limit, and says where it comes from: [`DecisionSource::Policy`](crate::DecisionSource::Policy). It is the choice
/// where being up matters more than the limit; where the limit protects something that would go down without it, choose a
/// [`Fallback`](super::Fallback).
#[derive(Clone, Debug)]
pub struct FailOpen<L, C = SystemClock> {
    limiter: L,
    clock: Arc<C>,
}

impl<L> FailOpen<L> {
    /// Asks `limiter`, and lets pass where that can't answer.
    pub fn new(limiter: L) -> Self {
        Self { limiter, clock: Arc::default() }
    }
}

impl<L, C> FailOpen<L, C> {
    admin_methods!();
}

impl<Key: ?Sized, L: Limiter<Key>, C: Clock> Limiter<Key> for FailOpen<L, C> {
    type Future = FailOpenFuture<L::Future, C>;

    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<Self::Future> {
        match self.limiter.acquire(key, ask) {
            Acquisition::Ready(result) => Acquisition::Ready(pass(result, &*self.clock)),
            Acquisition::Pending(future) => {
                Acquisition::Pending(FailOpenFuture { future, clock: Arc::clone(&self.clock) })
            }
        }
    }

    fn peek(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision> {
        // What `acquire` would answer.
        let clock = Arc::clone(&self.clock);
        match self.limiter.peek(key, ask).try_ready() {
            Ok(result) => LimiterFuture::ready(pass(result, &*clock)),
            Err(reply) => LimiterFuture::pending(async move { pass(reply.await, &*clock) }),
        }
    }

    fn cached_denial(&self, key: &Key, ask: AcquireOptions) -> Option<Decision> {
        self.limiter.cached_denial(key, ask)
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.limiter.administer(key, operation)
    }
}

fn pass<T: From<Decision>>(result: Result<T, Error>, clock: &impl Clock) -> Result<T, Error> {
    match result {
        Err(error) if error.is_unavailable() => Ok(Decision::by_policy(clock.now(), Verdict::Allowed).into()),
        result => result,
    }
}

/// A decision on its way, which lets pass if it can't be made.
#[pin_project]
#[derive(Debug)]
#[must_use = "a decision that is not awaited may not be made"]
pub struct FailOpenFuture<F, C> {
    #[pin]
    future: F,
    clock: Arc<C>,
}

impl<F: Future<Output = Result<Outcome, Error>>, C: Clock> Future for FailOpenFuture<F, C> {
    type Output = Result<Outcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        this.future.poll(cx).map(|result| pass(result, &**this.clock))
    }
}
