use std::sync::Arc;

use super::{AdminOperation, Limiter, LimiterFuture, LimitsOfKey, Outcome};
use crate::clock::{Clock as _, SystemClock};
use crate::decision::{AcquireOptions, Decision, Verdict};

/// A limiter that allows requests while its store is unavailable.
///
/// In Redis, the hold of a 65th process on one key fails as if the store was unavailable, so its request has no limit.
///
/// Such a decision names no limit, and its source is [`DecisionSource::NoLimit`](crate::DecisionSource::NoLimit). Use
/// this if availability matters more than the limit. If the limit protects a service from overload, use
/// [`Fallback`](super::Fallback) instead. `FailOpen` is no `Fallback` with a limiter that allows all, because it supports
/// reservation ids, and copies no key.
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

    fn allow_if_unavailable<T: From<Decision> + Send + 'static>(&self, decided: LimiterFuture<T>) -> LimiterFuture<T> {
        if let Some(Ok(_)) = decided.as_ready() {
            return decided;
        }
        let clock = Arc::clone(&self.clock);
        decided.map_result(move |result| match result {
            Err(error) if error.is_unavailable() => Ok(Decision::without_limit(clock.now(), Verdict::Allowed).into()),
            result => result,
        })
    }
}

impl<Key: ?Sized, L: Limiter<Key>> Limiter<Key> for FailOpen<L> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        self.allow_if_unavailable(self.limiter.acquire(key, options))
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.allow_if_unavailable(self.limiter.peek(key, options))
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.limiter.limits_of(key, limits);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.limiter.administer(key, operation)
    }
}
