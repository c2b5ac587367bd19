use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project::pin_project;

use super::future::{Acquisition, LimiterFuture};
use super::{AdminOperation, Limiter, LimitsOfKey, Outcome, limiter_methods};
use crate::clock::{Clock as _, SystemClock};
use crate::decision::{AcquireOptions, Decision, Verdict};
use crate::error::Error;

/// A limiter that allows requests while its store is unavailable.
///
/// Such a decision names no limit, and its source is [`DecisionSource::Policy`](crate::DecisionSource::Policy). Use
/// this if availability matters more than the limit. If the limit protects a service from overload, use
/// [`Fallback`](super::Fallback) instead: it needs a second limiter, which `FailOpen` does not.
#[derive(Clone, Debug)]
pub struct FailOpen<L> {
    limiter: L,
    clock: Arc<SystemClock>,
}

impl<L> FailOpen<L> {
    /// Wraps a limiter.
    pub fn new(limiter: L) -> Self {
        Self { limiter, clock: Arc::default() }
    }

    limiter_methods!();
}

impl<Key: ?Sized, L: Limiter<Key>> Limiter<Key> for FailOpen<L> {
    type Future = FailOpenFuture<L::Future>;

    fn acquire(&self, key: &Key, options: AcquireOptions) -> Acquisition<Self::Future> {
        match self.limiter.acquire(key, options) {
            Acquisition::Ready(result) => Acquisition::Ready(allow_if_unavailable(result, &self.clock)),
            Acquisition::Pending(future) => {
                Acquisition::Pending(FailOpenFuture { future, clock: Arc::clone(&self.clock) })
            }
        }
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        let clock = Arc::clone(&self.clock);
        self.limiter.peek(key, options).map_result(move |result| allow_if_unavailable(result, &clock))
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.limiter.limits_of(key, limits);
    }

    fn visit_units(&self, visit: &mut dyn FnMut(&'static str)) {
        self.limiter.visit_units(visit);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.limiter.administer(key, operation)
    }
}

fn allow_if_unavailable<T: From<Decision>>(result: Result<T, Error>, clock: &SystemClock) -> Result<T, Error> {
    match result {
        Err(error) if error.is_unavailable() => Ok(Decision::by_policy(clock.now(), Verdict::Allowed).into()),
        result => result,
    }
}

/// The future of a [`FailOpen`] decision.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
#[allow(missing_debug_implementations, unreachable_pub, reason = "named by an associated type only")]
pub struct FailOpenFuture<F> {
    #[pin]
    future: F,
    clock: Arc<SystemClock>,
}

impl<F: Future<Output = Result<Outcome, Error>>> Future for FailOpenFuture<F> {
    type Output = Result<Outcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        this.future.poll(cx).map(|result| allow_if_unavailable(result, this.clock))
    }
}
