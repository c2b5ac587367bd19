//! What several of these tests need.

use std::time::Duration;

use tower_ratelimit::limiter::{Held, Outcome};
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock, Error, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limiter, Quota, Redis,
    RedisServer, SlidingLog, SlidingWindow, TokenBucket,
};

/// A deadline that only what hangs misses, where deadlines are not the subject.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Enough for any test's load.
pub(crate) const PLENTY: Quota = Quota::per_hour(1_000_000_000);

/// Where time is virtual, nobody renews holds in time.
pub(crate) const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn patient<Key: ?Sized>(server: RedisServer, name: &str, limits: impl IntoRedisLimits<Key>) -> Redis<Key> {
    Redis::builder(server, name, limits).deadline(PATIENCE).build().expect("limits")
}

/// Decides; whoever waits for longer than anything takes, hangs.
pub(crate) async fn acquire<Key: ?Sized>(
    limiter: &impl Limiter<Key>,
    key: &Key,
    ask: AcquireOptions,
) -> Result<Outcome, Error> {
    tokio::time::timeout(PATIENCE * 2, limiter.acquire(key, ask).into_future()).await.expect("no decision hangs")
}

/// Holds a cost that there is room for.
pub(crate) async fn hold<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, cost: u64) -> Held {
    acquire(limiter, key, AcquireOptions::cost(cost).hold()).await.expect("an answer").held.expect("room for it")
}

pub(crate) async fn is_allowed<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> bool {
    acquire(limiter, key, AcquireOptions::default()).await.expect("an answer").decision.is_allowed()
}

/// Every algorithm, each with as many to have at once as the quota's limit.
pub(crate) fn every_algorithm(
    server: &RedisServer,
    quota: Quota,
    clock: Option<&(impl Clock + Clone)>,
) -> Vec<(&'static str, BoxLimiter<str>)> {
    fn one(
        server: &RedisServer,
        name: &'static str,
        clock: Option<&(impl Clock + Clone)>,
        limits: impl IntoRedisLimits<str>,
    ) -> (&'static str, BoxLimiter<str>) {
        let mut builder = Redis::builder(server.clone(), name, limits).deadline(PATIENCE);
        if let Some(clock) = clock {
            builder = builder.clock_for_tests(clock.clone()).hold_expiry(A_DAY);
        }
        (name, BoxLimiter::new(builder.build().expect("limits")))
    }
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
