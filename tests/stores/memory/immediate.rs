//! Limiters in memory, and their results: they decide immediately and never fail.

use std::hash::Hash;

use tower_ratelimit::limiter::{Held, LimiterFuture, Outcome};
use tower_ratelimit::store::MemoryLimits;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock, Decision, DynLimit, FixedWindow, Gcra, IntoLimit, LeakyBucket, LeakyQueue,
    Limit, Limiter, ManualClock, Memory, Quota, SelectAlgorithm, SlidingLog, SlidingWindow, SubKeyOf, TokenBucket,
};

/// Builds a limiter of few keys.
pub(crate) fn memory<Key, L>(limits: L, clock: &(impl Clock + Clone + 'static)) -> Memory<Key, L>
where
    Key: ?Sized,
    L: MemoryLimits<Key>,
{
    Memory::builder(limits).max_keys(100).clock(clock.clone()).build().expect("valid limits")
}

/// Builds a limiter of few keys with one limit, which has the same type inside for every limit.
pub(crate) fn boxed<Key, L>(limit: L, clock: &ManualClock) -> BoxLimiter<Key>
where
    Key: ?Sized + 'static,
    L: IntoLimit,
    L::Selector: SelectAlgorithm<Key>,
    L::SubKeyFn: SubKeyOf<Key>,
    <L::SubKeyFn as SubKeyOf<Key>>::SubKey: Hash,
{
    boxed_limits(vec![DynLimit::new(limit)], clock)
}

/// Returns a limit of ten a minute by each algorithm.
pub(crate) fn every_limit(name: &'static str) -> [DynLimit<str>; 8] {
    const TEN: Quota = Quota::per_minute(10);
    [
        DynLimit::new(Limit::new(name, Gcra::new(TEN))),
        DynLimit::new(Limit::new(name, TokenBucket::new(TEN))),
        DynLimit::new(Limit::new(name, LeakyBucket::new(TEN))),
        DynLimit::new(Limit::new(name, LeakyQueue::new(TEN).max_waiting(9))),
        DynLimit::new(Limit::new(name, FixedWindow::new(TEN))),
        DynLimit::new(Limit::new(name, SlidingWindow::new(TEN))),
        DynLimit::new(Limit::new(name, SlidingWindow::new(TEN).weighted())),
        DynLimit::new(Limit::new(name, SlidingLog::new(TEN))),
    ]
}

/// Builds a limiter of few keys, without its type.
pub(crate) fn boxed_limits<Key, L>(limits: L, clock: &(impl Clock + Clone + 'static)) -> BoxLimiter<Key>
where
    Key: ?Sized + 'static,
    L: MemoryLimits<Key> + 'static,
{
    BoxLimiter::new(memory(limits, clock))
}

pub(crate) fn ready<T>(future: LimiterFuture<T>) -> T {
    future.try_ready().expect("memory decides immediately").expect("memory never fails")
}

pub(crate) fn acquire<Key: ?Sized>(
    limiter: &(impl Limiter<Key> + ?Sized),
    key: &Key,
    options: impl Into<AcquireOptions>,
) -> Outcome {
    ready(limiter.acquire(key, options.into()))
}

/// Holds a cost, which the limiter must allow.
pub(crate) fn hold<Key: ?Sized>(
    limiter: &(impl Limiter<Key> + ?Sized),
    key: &Key,
    options: impl Into<AcquireOptions>,
) -> Held {
    acquire(limiter, key, options.into().hold()).held.expect("the limit allows the hold")
}

pub(crate) fn peek<Key: ?Sized>(
    limiter: &(impl Limiter<Key> + ?Sized),
    key: &Key,
    options: impl Into<AcquireOptions>,
) -> Decision {
    ready(limiter.peek(key, options.into()))
}

/// Returns what the most restrictive limit has left for a request of cost one.
pub(crate) fn remaining<Key: ?Sized>(limiter: &(impl Limiter<Key> + ?Sized), key: &Key) -> u64 {
    peek(limiter, key, 1).remaining().expect("a limit applies")
}
