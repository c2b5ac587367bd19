//! A dropped decision breaks no other call. Dropped before it was sent it charges nothing, afterwards at most once.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::time::sleep;
use tower_ratelimit::limiter::{LimiterFuture, Outcome};
use tower_ratelimit::{AcquireOptions, FixedWindow, Limiter, Quota, Redis};

use crate::helpers::{hold, is_allowed, redis_limiter};
use crate::server::Server;

const QUOTA: Quota = Quota::per_day(100_000);
fn acquire(limiter: &Redis<str>, key: &str) -> LimiterFuture<Outcome> {
    limiter.acquire(key, AcquireOptions::default())
}

fn limiter(server: &Server) -> Redis<str> {
    redis_limiter(server.open(), "api", FixedWindow::new(QUOTA))
}

async fn used(limiter: &Redis<str>, key: &str) -> u64 {
    let decision = limiter.peek(key, AcquireOptions::cost(0)).await.expect("an answer");
    QUOTA.limit() - decision.remaining().expect("a figure")
}

async fn all_answered(calls: Vec<LimiterFuture<Outcome>>) {
    for call in join_all(calls).await {
        assert!(call.expect("an answer").decision.is_allowed());
    }
}

/// Between two awaits of the test no task runs, so no call is sent.
#[tokio::test]
async fn half_of_many_calls_dropped_charges_the_other_half() {
    let server = Server::start();
    let limiter = limiter(&server);
    assert!(is_allowed(&limiter, "first").await);
    let mut calls: Vec<_> = (0..512).map(|index| acquire(&limiter, &format!("key {}", index % 2))).collect();
    assert!(calls.iter_mut().all(|call| call.now_or_never().is_none()));
    let mut keep = [false, true].into_iter().cycle();
    calls.retain(|_| keep.next() == Some(true));
    all_answered(calls).await;
    assert_eq!((used(&limiter, "key 0").await, used(&limiter, "key 1").await), (0, 256));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_dropped_at_any_time_charge_at_most_once() {
    let server = Server::start();
    let limiter = limiter(&server);
    assert!(is_allowed(&limiter, "warm").await);
    let (mut cancelled, mut answered) = (0, 0);
    for round in 0..40_u64 {
        let calls: Vec<_> = (0..50).map(|_| tokio::spawn(acquire(&limiter, "alice"))).collect();
        sleep(Duration::from_micros(round * 50)).await;
        for (index, call) in calls.into_iter().enumerate() {
            if index % 2 == 0 {
                call.abort();
            }
            match call.await {
                Ok(outcome) => answered += u64::from(outcome.expect("an answer").decision.is_allowed()),
                Err(error) => {
                    assert!(error.is_cancelled());
                    cancelled += 1;
                }
            }
        }
    }
    let used = used(&limiter, "alice").await;
    assert!(
        used >= answered && used <= answered + cancelled,
        "{used} charged, {answered} answered, {cancelled} cancelled"
    );
}

#[tokio::test]
async fn dropped_operation_breaks_no_other_call() {
    let server = Server::start();
    let limiter = limiter(&server);
    drop(limiter.set_usage("default", "alice", 7));
    drop(limiter.reset("alice"));
    drop(limiter.peek("alice", AcquireOptions::default()));
    all_answered(vec![acquire(&limiter, "alice")]).await;
    assert_eq!(used(&limiter, "alice").await, 1, "no dropped operation was sent");
    hold(&limiter, "alice", 5).await.release().await.expect("done");
    assert_eq!(used(&limiter, "alice").await, 1);
}
