//! Limits with a unit, in Redis.

use tower_ratelimit::{
    AcquireOptions, Costs, Detail, FixedWindow, Limit, LimitStatus, Limiter, Quota, Redis, RedisServer,
};

use crate::helpers::{LONG_DEADLINE, acquire};
use crate::server::Server;

fn limits() -> (Limit<FixedWindow>, Limit<FixedWindow>, Limit<FixedWindow>) {
    (
        Limit::new("requests", FixedWindow::new(Quota::per_day(9))),
        Limit::new("input", FixedWindow::new(Quota::per_day(1_000))).cost_of("input"),
        Limit::new("output", FixedWindow::new(Quota::per_day(500))).cost_of("output"),
    )
}

fn limiter(server: RedisServer, name: &str) -> Redis<str> {
    Redis::builder(server, name, limits()).deadline(LONG_DEADLINE).build().expect("limits")
}

/// What each limit has left.
async fn remaining(limiter: &impl Limiter<str>) -> Vec<u64> {
    let options = AcquireOptions::cost(0).detail(Detail::All);
    let decision = limiter.peek("alice", options).await.expect("an answer");
    decision.limits().iter().map(LimitStatus::remaining).collect()
}

fn tokens(input: u64, output: u64) -> Costs {
    Costs::new().add("input", input).add("output", output)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_unit_is_an_error_and_charges_nothing_in_redis() {
    let server = Server::start();
    let limiter = limiter(server.open(), "unknown");
    let typo = Costs::new().add("input", 5).add("ouptut", 5);
    for options in [AcquireOptions::from(typo), AcquireOptions::from(typo).hold()] {
        let error = acquire(&limiter, "alice", options).await.expect_err("unknown");
        assert!(error.is_config() && error.to_string().contains("one of [\"input\", \"output\"]"), "{error}");
        assert!(limiter.peek("alice", options).await.is_err());
    }
    assert_eq!(remaining(&limiter).await, [9, 1_000, 500]);
    let held = acquire(&limiter, "alice", AcquireOptions::from(tokens(5, 5)).hold()).await.expect("known").held;
    assert!(held.expect("allowed").settle(typo).await.is_err());
    assert_eq!(remaining(&limiter).await, [8, 995, 495], "the whole held cost");
}
