//! Leases under `DeniedCache`, `Fallback` and `FailOpen`, alone and one around the other.

use tower_ratelimit::limiter::{DeniedCache, FailOpen, Fallback};
use tower_ratelimit::store::Lease;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, DecisionSource, DynLimit, FixedWindow, Limit, Memory, Quota, Redis,
    RedisServer,
};

use crate::helpers::{LONG_DEADLINE, acquire};
use crate::leases::{DURATION, LIMIT, QUOTA, clock, leased, until_leased};
use crate::proxy::Proxy;
use crate::server::Server;

async fn decide(limiter: &BoxLimiter<str>, cost: u64) -> Decision {
    acquire(limiter, "alice", AcquireOptions::cost(cost)).await.expect("an answer").decision
}

/// A limiter around another one.
type Around = fn(BoxLimiter<str>) -> BoxLimiter<str>;

const CACHE: Around = |inner| BoxLimiter::new(DeniedCache::new(inner));
const FAIL_OPEN: Around = |inner| BoxLimiter::new(FailOpen::new(inner));
const FALLBACK: Around = |inner| {
    let local = Memory::new(vec![DynLimit::new(FixedWindow::new(QUOTA))]);
    BoxLimiter::new(Fallback::new(inner, BoxLimiter::new(local)))
};

/// Combinations, the innermost limiter first, and the source of their decisions when the lease has ended in an outage.
const WITHOUT_STORE: [(&str, &[Around], DecisionSource); 6] = [
    ("fallback", &[FALLBACK], DecisionSource::Fallback),
    ("cache around fallback", &[FALLBACK, CACHE], DecisionSource::Fallback),
    ("fallback around cache", &[CACHE, FALLBACK], DecisionSource::Fallback),
    ("cache around fail open", &[FAIL_OPEN, CACHE], DecisionSource::NoLimit),
    ("fail open around cache", &[CACHE, FAIL_OPEN], DecisionSource::NoLimit),
    ("fail open around fallback", &[FALLBACK, FAIL_OPEN], DecisionSource::Fallback),
];

fn combine(lease: &Redis<str>, around: &[Around]) -> BoxLimiter<str> {
    around.iter().fold(BoxLimiter::new(lease.clone()), |inner, around| around(inner))
}

/// A lease outlasts an outage. After it, the fallback or the policy decides; with several limits as with one.
#[tokio::test]
async fn outage_ends_leases_and_then_the_combination_decides() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    for (name, around, after) in WITHOUT_STORE {
        proxy.shut(false);
        let open = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
        let all = Limit::new("all", FixedWindow::new(Quota::per_day(1_000_000))).keyed_by(|_: &str| ());
        let lease = Redis::<str>::builder(open, name, (Limit::new("user", FixedWindow::new(QUOTA)), all))
            .lease(Lease::new(DURATION))
            .clock_for_tests(clock())
            .deadline(LONG_DEADLINE / 10)
            .build()
            .expect("limits");
        let limiter = combine(&lease, around);
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

/// A denied cache passes leased decisions on. It stores no denial while units are held, because these may return.
#[tokio::test]
async fn denied_cache_stores_no_denial_while_units_are_held() {
    let server = Server::start();
    for (name, around, _) in WITHOUT_STORE.into_iter().filter(|(name, ..)| name.contains("cache")) {
        server.command(&["FLUSHALL"]);
        let lease = leased(server.open(), FixedWindow::new(QUOTA));
        let limiter = combine(&lease, around);
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
