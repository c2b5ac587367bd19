//! Limits with a fixed cost beside limits with the cost of the request, in Redis.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_ratelimit::limiter::Chained;
use tower_ratelimit::{
    AcquireOptions, Detail, FixedWindow, Limit, LimitStatus, Limiter, ManualClock, Quota, Redis, RedisServer,
};

use crate::helpers::{LONG_DEADLINE, acquire, hold};
use crate::holds::pass_expiries;
use crate::server::Server;

const EXPIRY: Duration = Duration::from_millis(600);

/// A limiter whose server time is `clock`.
fn limiter(server: RedisServer, clock: &ManualClock, (requests, tokens): (u64, u64), name: &str) -> Redis<str> {
    let limits = (
        Limit::new("requests", FixedWindow::new(Quota::per_day(requests))).fixed_cost(1),
        Limit::new("tokens", FixedWindow::new(Quota::per_day(tokens))),
    );
    Redis::builder(server, name, limits)
        .deadline(LONG_DEADLINE)
        .hold_expiry(EXPIRY)
        .clock_for_tests(clock.clone())
        .build()
        .expect("limits")
}

/// What each limit has left.
async fn remaining(limiter: &impl Limiter<str>) -> Vec<u64> {
    let options = AcquireOptions::cost(0).detail(Detail::All);
    let decision = limiter.peek("alice", options).await.expect("an answer");
    decision.limits().iter().map(LimitStatus::remaining).collect()
}

async fn wait_for(limiter: &impl Limiter<str>, expected: &[u64]) {
    let deadline = Instant::now() + LONG_DEADLINE;
    loop {
        let remaining = remaining(limiter).await;
        if remaining == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{remaining:?} remain, not {expected:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Only the tokens belong to the hold: neither its settlement nor its expiry concerns the requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_is_settled_on_limits_with_the_cost_of_the_request_only() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let limiter = limiter(server.open(), &clock, (9, 1000), "llm");
    let held = hold(&limiter, "alice", 100).await;
    assert_eq!(remaining(&limiter).await, [8, 900]);
    held.settle(30).await.expect("done");
    assert_eq!(remaining(&limiter).await, [8, 970]);
    // Renewed: the hold outlives its expiry.
    let held = hold(&limiter, "alice", 100).await;
    pass_expiries(&server, &clock, EXPIRY);
    assert_eq!(remaining(&limiter).await, [7, 870]);
    held.release().await.expect("done");
    assert_eq!(remaining(&limiter).await, [7, 970]);
    // The server cannot recognise a session of a hold of 0, and charges the surcharge to the tokens.
    let held = hold(&limiter, "alice", 0).await;
    held.settle(20).await.expect("done");
    assert_eq!(remaining(&limiter).await, [6, 950]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chained_limiters_charge_fixed_costs_of_allowed_requests_only() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let (first, second) =
        (limiter(server.open(), &clock, (9, 1000), "first"), limiter(server.open(), &clock, (8, 500), "second"));
    let limiter = Chained::new(first, second);
    assert!(acquire(&limiter, "alice", AcquireOptions::cost(1)).await.expect("an answer").decision.is_allowed());
    wait_for(&limiter, &[8, 999, 7, 499]).await;
    for options in [AcquireOptions::cost(501), AcquireOptions::cost(501).hold()] {
        assert!(!acquire(&limiter, "alice", options).await.expect("an answer").decision.is_allowed());
    }
    wait_for(&limiter, &[8, 999, 7, 499]).await;
    let held = hold(&limiter, "alice", 100).await;
    wait_for(&limiter, &[7, 899, 6, 399]).await;
    held.release().await.expect("done");
    wait_for(&limiter, &[7, 999, 6, 499]).await;
}

/// The caller never received the guard. Its cost is released; the request itself counts, like any request whose reply
/// was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_that_is_dropped_before_its_reply_keeps_the_fixed_cost_at_most() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let limiter = limiter(server.open(), &clock, (9, 1000), "dropped");
    assert_eq!(remaining(&limiter).await, [9, 1000]);
    drop(limiter.hold("alice", AcquireOptions::cost(100)));
    let held = limiter.hold("alice", AcquireOptions::cost(1));
    held.await.expect("an answer").held.expect("allowed").release().await.expect("done");
    let deadline = Instant::now() + LONG_DEADLINE;
    while remaining(&limiter).await[1] != 1000 {
        assert!(Instant::now() < deadline, "the tokens are released");
        sleep(Duration::from_millis(10)).await;
    }
    assert!((7..=8).contains(&remaining(&limiter).await[0]));
}
