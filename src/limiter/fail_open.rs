use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project::pin_project;

use super::reply::{Acquire, Reply};
use super::seam::{Limiter, Outcome};
use crate::clock::{Clock, SystemClock};
use crate::decision::{Ask, Decision, Verdict};
use crate::error::Error;

/// A limiter that lets requests pass while its store can't answer.
///
/// Such a decision names no limit, and says where it comes from: [`Source::Policy`](crate::Source::Policy). It is the choice
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

impl<Key: ?Sized, L: Limiter<Key>, C: Clock> Limiter<Key> for FailOpen<L, C> {
    type Future = FailOpenFuture<L::Future, C>;

    fn acquire(&self, key: &Key, ask: Ask) -> Acquire<Self::Future> {
        match self.limiter.acquire(key, ask) {
            Acquire::Ready(result) => Acquire::Ready(pass(result, &*self.clock)),
            Acquire::Pending(future) => Acquire::Pending(FailOpenFuture { future, clock: Arc::clone(&self.clock) }),
        }
    }

    fn peek(&self, key: &Key, ask: Ask) -> Reply<Decision> {
        // What `acquire` would answer.
        let clock = Arc::clone(&self.clock);
        match self.limiter.peek(key, ask).try_ready() {
            Ok(result) => Reply::ready(pass(result, &*clock)),
            Err(reply) => Reply::pending(async move { pass(reply.await, &*clock) }),
        }
    }

    fn remembered_denial(&self, key: &Key, ask: Ask) -> Option<Decision> {
        self.limiter.remembered_denial(key, ask)
    }

    fn set(&self, limit: &str, key: &Key, used: u64) -> Reply<()> {
        self.limiter.set(limit, key, used)
    }

    fn block(&self, limit: &str, key: &Key, span: Duration) -> Reply<()> {
        self.limiter.block(limit, key, span)
    }

    fn forgive(&self, limit: &str, key: &Key) -> Reply<()> {
        self.limiter.forgive(limit, key)
    }

    fn reset(&self, key: &Key) -> Reply<()> {
        self.limiter.reset(key)
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
