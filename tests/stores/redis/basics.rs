use std::time::Duration;

use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, Limit, Limiter, Quota, SlidingLog, SlidingWindow};

use crate::helpers::{is_allowed, redis_limiter};
use crate::server::Server;

#[tokio::test]
async fn limiter_allows_the_quota_and_denies_more() {
    let server = Server::start();
    let limiter = redis_limiter::<str>(server.open(), "api", Gcra::new(Quota::per_hour(3)));
    limiter.health_check().await.expect("a working Redis");
    for left in [2, 1, 0] {
        let decision = limiter.acquire("alice", AcquireOptions::default()).await.expect("an answer").decision;
        assert!(decision.is_allowed());
        assert_eq!(decision.remaining(), Some(left));
    }
    let denied = limiter.acquire("alice", AcquireOptions::default()).await.expect("an answer").decision;
    assert!(!denied.is_allowed());
    let retry_after = denied.retry_after().expect("a time");
    assert!(retry_after <= Duration::from_secs(1_200) && retry_after > Duration::from_secs(600), "{retry_after:?}");
    assert_eq!(server.keys(), ["ratelimit:api:default:bucket2:alice"]);
}

#[tokio::test]
async fn several_limits_decide_together() {
    let server = Server::start();
    let limits = (
        Limit::new("user", FixedWindow::new(Quota::per_day(2))).keyed_by(|&(user, _): &(u64, u64)| user),
        Limit::new("log", SlidingLog::new(Quota::per_day(5))).keyed_by(|&(_, team): &(u64, u64)| team),
        Limit::new("all", SlidingWindow::new(Quota::per_day(4))).keyed_by(|_: &(u64, u64)| ()),
    );
    let limiter = redis_limiter(server.open(), "api", limits);
    let mut allowed = 0;
    for user in [1, 1, 1, 2, 2, 3] {
        allowed += u32::from(is_allowed(&limiter, &(user, 7)).await);
    }
    assert_eq!(allowed, 4);
}
