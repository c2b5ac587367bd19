//! A dropped decision breaks no other call. Dropped before it was sent it charges nothing, afterwards at most once.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tower_ratelimit::limiter::Outcome;
use tower_ratelimit::{AcquireOptions, Error, FixedWindow, Limiter, Quota, Redis, RedisServer};

use crate::helpers::{hold, is_allowed, redis_limiter};
use crate::server::Server;

const QUOTA: Quota = Quota::per_day(100_000);
/// The time for which the server pauses.
const PAUSE: Duration = Duration::from_millis(200);

type Call = JoinHandle<Result<Outcome, Error>>;

fn limiter(server: &Server) -> Redis<str> {
    let server = RedisServer::open(&format!("{}/1", server.address())).expect("an address");
    redis_limiter(server, "api", FixedWindow::new(QUOTA))
}

fn spawn_acquire(limiter: &Redis<str>, key: &str) -> Call {
    tokio::spawn(limiter.acquire(key, AcquireOptions::default()))
}

/// Pauses the server while the limiter connects, so that no call is sent yet. (Selecting a database takes a round trip.)
async fn pause_while_connecting(server: &Server, limiter: &Redis<str>) -> Vec<Call> {
    server.pause(PAUSE);
    let waiting = vec![spawn_acquire(limiter, "first")];
    sleep(Duration::from_millis(10)).await;
    waiting
}

async fn used(limiter: &Redis<str>, key: &str) -> u64 {
    let decision = limiter.peek(key, AcquireOptions::cost(0)).await.expect("an answer");
    QUOTA.limit() - decision.remaining().expect("a figure")
}

/// Drops the decision that a task awaits.
async fn cancel(call: Call) {
    call.abort();
    assert!(call.await.is_err_and(|error| error.is_cancelled()));
}

async fn all_answered(calls: impl IntoIterator<Item = Call>) {
    for call in join_all(calls).await {
        assert!(call.expect("no panic").expect("an answer").decision.is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_many_calls_dropped_charges_the_other_half() {
    let server = Server::start();
    let limiter = limiter(&server);
    let waiting = pause_while_connecting(&server, &limiter).await;
    let calls: Vec<_> = (0..512).map(|index| spawn_acquire(&limiter, &format!("key {}", index % 2))).collect();
    sleep(Duration::from_millis(20)).await;
    let mut staying = Vec::new();
    for (index, call) in calls.into_iter().enumerate() {
        if index % 2 == 0 { cancel(call).await } else { staying.push(call) }
    }
    all_answered(waiting.into_iter().chain(staying)).await;
    assert_eq!((used(&limiter, "key 0").await, used(&limiter, "key 1").await), (0, 256));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_dropped_at_any_time_charge_at_most_once() {
    let server = Server::start();
    let limiter = limiter(&server);
    assert!(is_allowed(&limiter, "warm").await);
    let (mut cancelled, mut answered) = (0, 0);
    for round in 0..40_u64 {
        let calls: Vec<_> = (0..50).map(|_| spawn_acquire(&limiter, "alice")).collect();
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
    let waiting = pause_while_connecting(&server, &limiter).await;
    drop(limiter.set_usage("default", "alice", 7));
    drop(limiter.reset("alice"));
    drop(limiter.peek("alice", AcquireOptions::default()));
    let kept = spawn_acquire(&limiter, "alice");
    all_answered(waiting.into_iter().chain([kept])).await;
    assert_eq!(used(&limiter, "alice").await, 1, "no dropped operation was sent");
    hold(&limiter, "alice", 5).await.release().await.expect("done");
    assert_eq!(used(&limiter, "alice").await, 1);
}
