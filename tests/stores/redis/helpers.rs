//! Helpers that several tests share.

use std::time::Duration;

use tower_ratelimit::limiter::{Held, Outcome};
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Calendar, Clock, Error, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limiter, Quota,
    Redis, RedisServer, SlidingLog, SlidingWindow, TokenBucket,
};

use crate::process::wait_until;
use crate::server::Server;

/// A deadline that only a hanging call misses, for tests without deadlines as their subject.
pub(crate) const LONG_DEADLINE: Duration = Duration::from_secs(120);

/// A limit above the load of any test.
pub(crate) const AMPLE: Quota = Quota::per_hour(1_000_000_000);

/// The hold expiry where time is virtual and no holds are renewed in time.
pub(crate) const ONE_DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn redis_limiter<Key: ?Sized>(
    server: RedisServer,
    name: &str,
    limits: impl IntoRedisLimits<Key>,
) -> Redis<Key> {
    Redis::builder(server, name, limits).deadline(LONG_DEADLINE).build().expect("limits")
}

/// Acquires, and panics if the call hangs.
pub(crate) async fn acquire<Key: ?Sized>(
    limiter: &impl Limiter<Key>,
    key: &Key,
    options: AcquireOptions,
) -> Result<Outcome, Error> {
    tokio::time::timeout(LONG_DEADLINE * 2, limiter.acquire(key, options)).await.expect("no decision hangs")
}

/// Holds a cost that the limit allows.
pub(crate) async fn hold<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, cost: u64) -> Held {
    acquire(limiter, key, AcquireOptions::cost(cost).hold())
        .await
        .expect("an answer")
        .held
        .expect("the limit allows the hold")
}

pub(crate) async fn is_allowed<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> bool {
    acquire(limiter, key, AcquireOptions::default()).await.expect("an answer").decision.is_allowed()
}

fn one(
    server: &RedisServer,
    name: &'static str,
    clock: Option<&(impl Clock + Clone)>,
    limits: impl IntoRedisLimits<str>,
) -> (&'static str, BoxLimiter<str>) {
    let mut builder = Redis::builder(server.clone(), name, limits).deadline(LONG_DEADLINE);
    if let Some(clock) = clock {
        builder = builder.clock_for_tests(clock.clone()).hold_expiry(ONE_DAY);
    }
    (name, BoxLimiter::new(builder.build().expect("limits")))
}

/// Every algorithm, each with a burst equal to the quota's limit. The window of the calendar is a year.
pub(crate) fn every_algorithm(
    server: &RedisServer,
    quota: Quota,
    clock: Option<&(impl Clock + Clone)>,
) -> Vec<(&'static str, BoxLimiter<str>)> {
    let mut all = every_algorithm_of_a_period(server, quota, clock);
    all.push(one(server, "calendar", clock, FixedWindow::calendar(quota.limit(), Calendar::yearly())));
    all
}

/// Every algorithm whose usage ends with the quota's period.
pub(crate) fn every_algorithm_of_a_period(
    server: &RedisServer,
    quota: Quota,
    clock: Option<&(impl Clock + Clone)>,
) -> Vec<(&'static str, BoxLimiter<str>)> {
    vec![
        one(server, "gcra", clock, Gcra::new(quota)),
        one(server, "token bucket", clock, TokenBucket::new(quota)),
        one(server, "leaky bucket", clock, LeakyBucket::new(quota)),
        one(server, "leaky queue", clock, LeakyQueue::new(quota).max_waiting(quota.limit() - 1)),
        one(server, "fixed window", clock, FixedWindow::new(quota)),
        one(server, "aligned window", clock, FixedWindow::new(quota).aligned_to_clock()),
        one(server, "sliding window", clock, SlidingWindow::new(quota)),
        one(server, "weighted window", clock, SlidingWindow::new(quota).blocks(1).weighted()),
        one(server, "sliding log", clock, SlidingLog::new(quota)),
    ]
}

/// A runtime connects to a silent server, and is not driven again. Another one decides once the server replies.
pub(crate) fn decides_beside_a_stopped_runtime<F: Future<Output = Result<Outcome, Error>>>(
    server: &Server,
    decide: impl Fn() -> F,
) {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (stopped, driven) = (runtime(), runtime());
    server.signal("-STOP");
    let silent = stopped.block_on(decide());
    server.signal("-CONT");
    silent.expect_err("a silent server");
    wait_until("a decision of the other runtime", || driven.block_on(decide()).is_ok());
}
