//! Leases under `DeniedCache`, `Fallback` and `FailOpen`, alone and one around the other.

use tower_ratelimit::limiter::{DeniedCache, FailOpen, Fallback};
use tower_ratelimit::store::Lease;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, DecisionSource, FixedWindow, Limit, Memory, Quota, Redis, RedisServer,
};

use crate::helpers::{LONG_DEADLINE, acquire};
use crate::leases::{DURATION, LIMIT, QUOTA, clock, leased, until_leased};
use crate::proxy::Proxy;
use crate::server::Server;

async fn decide(limiter: &BoxLimiter<str>, cost: u64) -> Decision {
    acquire(limiter, "alice", AcquireOptions::cost(cost)).await.expect("an answer").decision
}

/// Builds a combination around a limiter.
type Combine = fn(Redis<str>) -> BoxLimiter<str>;

fn local() -> Memory<str, FixedWindow> {
    Memory::new(FixedWindow::new(QUOTA))
}

/// Each combination, and the source of its decisions when the lease has ended in an outage.
const WITHOUT_STORE: [(&str, Combine, DecisionSource); 7] = [
    ("fallback", |lease| BoxLimiter::new(Fallback::new(lease, local())), DecisionSource::Fallback),
    ("fail open", |lease| BoxLimiter::new(FailOpen::new(lease)), DecisionSource::NoLimit),
    (
        "cache, fallback",
        |lease| BoxLimiter::new(DeniedCache::new(Fallback::new(lease, local()))),
        DecisionSource::Fallback,
    ),
    (
        "fallback, cache",
        |lease| BoxLimiter::new(Fallback::new(DeniedCache::new(lease), local())),
        DecisionSource::Fallback,
    ),
    ("cache, fail open", |lease| BoxLimiter::new(DeniedCache::new(FailOpen::new(lease))), DecisionSource::NoLimit),
    ("fail open, cache", |lease| BoxLimiter::new(FailOpen::new(DeniedCache::new(lease))), DecisionSource::NoLimit),
    (
        "fail open, fallback",
        |lease| BoxLimiter::new(FailOpen::new(Fallback::new(lease, local()))),
        DecisionSource::Fallback,
    ),
];

/// A lease outlasts an outage. After it, the fallback or the policy decides; with several limits as with one.
#[tokio::test]
async fn outage_ends_leases_and_then_the_combination_decides() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    for (name, combine, after) in WITHOUT_STORE {
        proxy.shut(false);
        let open = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
        let all = Limit::new("all", FixedWindow::new(Quota::per_day(1_000_000))).keyed_by(|_: &str| ());
        let lease = Redis::<str>::builder(open, name, (Limit::new("user", FixedWindow::new(QUOTA)), all))
            .lease(Lease::new(DURATION))
            .clock_for_tests(clock())
            .deadline(LONG_DEADLINE / 10)
            .build()
            .expect("limits");
        let limiter = combine(lease.clone());
        until_leased(&lease, "alice").await;
        proxy.shut(true);
        let mut sources = Vec::new();
        while sources.last() != Some(&after) && sources.len() < 100_000 {
            clock().advance(DURATION / 1_000);
            let decision = decide(&limiter, 1).await;
            assert!(decision.is_allowed(), "{name}: {decision:?}");
            sources.push(decision.source());
        }
        assert_eq!(sources.last(), Some(&after), "{name}");
        let before = &sources[..sources.len() - 1];
        assert!(before.iter().all(|source| *source == DecisionSource::Lease), "{name}: {before:?}");
    }
}

/// Each combination with a denied cache.
const WITH_CACHE: [(&str, Combine); 5] = [
    ("cache", |lease| BoxLimiter::new(DeniedCache::new(lease))),
    ("cache, fallback", |lease| BoxLimiter::new(DeniedCache::new(Fallback::new(lease, local())))),
    ("fallback, cache", |lease| BoxLimiter::new(Fallback::new(DeniedCache::new(lease), local()))),
    ("cache, fail open", |lease| BoxLimiter::new(DeniedCache::new(FailOpen::new(lease)))),
    ("fail open, cache", |lease| BoxLimiter::new(FailOpen::new(DeniedCache::new(lease)))),
];

/// A denied cache passes leased decisions on. It stores no denial while units are held, because these may return.
#[tokio::test]
async fn denied_cache_stores_no_denial_while_units_are_held() {
    for (name, combine) in WITH_CACHE {
        let server = Server::start();
        let lease = leased(server.open(), FixedWindow::new(QUOTA));
        let limiter = combine(lease.clone());
        until_leased(&lease, "alice").await;
        let by_lease = decide(&limiter, 1).await;
        assert_eq!(by_lease.source(), DecisionSource::Lease, "{name}");
        for _ in 0..2 {
            let denied = decide(&limiter, LIMIT - 1).await;
            assert!(!denied.is_allowed() && denied.is_estimate(), "{name}: {denied:?}");
            assert_eq!(denied.source(), DecisionSource::Store, "{name}");
        }
        lease.close().await.expect("an answer");
        let denied = decide(&limiter, LIMIT - 1).await;
        assert!(!denied.is_allowed() && !denied.is_estimate(), "{name}: {denied:?}");
        assert_eq!(decide(&limiter, LIMIT - 1).await.source(), DecisionSource::Cache, "{name}");
    }
}
