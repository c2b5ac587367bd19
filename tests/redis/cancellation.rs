//! A dropped decision poisons nobody's connection; dropped before it is sent it charges nothing, after that at most once.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tower_ratelimit::limiter::Outcome;
use tower_ratelimit::{AcquireOptions, Error, FixedWindow, Limiter, Quota, Redis};

use crate::helpers::{hold, is_allowed, patient};
use crate::server::Server;

const QUOTA: Quota = Quota::per_day(100_000);
/// How long the server holds back what is under way.
const PAUSE: Duration = Duration::from_millis(200);

type Call = JoinHandle<Result<Outcome, Error>>;

fn limiter(server: &Server) -> Redis<str> {
    patient(server.open(), "api", FixedWindow::new(QUOTA))
}

fn ask(limiter: &Redis<str>, key: &str) -> Call {
    tokio::spawn(limiter.acquire(key, AcquireOptions::default()).into_future())
}

/// Holds the server back, with as many calls under way as there can be: whatever is asked next is not sent yet.
async fn hold_back(server: &Server, limiter: &Redis<str>) -> Vec<Call> {
    assert!(is_allowed(limiter, "warm").await);
    server.pause(PAUSE);
    let mut under_way = Vec::new();
    for key in ["first", "second", "third", "fourth", "fifth"] {
        under_way.push(ask(limiter, key));
        sleep(Duration::from_millis(10)).await;
    }
    under_way
}

async fn used(limiter: &Redis<str>, key: &str) -> u64 {
    let decision = limiter.peek(key, AcquireOptions::cost(0)).await.expect("an answer");
    QUOTA.limit() - decision.remaining().expect("a figure")
}

/// Drops the decision that a task waits for.
async fn cancel(call: Call) {
    call.abort();
    assert!(call.await.is_err_and(|error| error.is_cancelled()));
}

async fn all_answered(calls: impl IntoIterator<Item = Call>) {
    for call in join_all(calls).await {
        assert!(call.expect("no panic").expect("an answer").decision.is_allowed());
    }
}

#[tokio::test]
async fn dropped_before_it_is_sent_it_charges_nothing() {
    let server = Server::start();
    let limiter = limiter(&server);
    let under_way = hold_back(&server, &limiter).await;
    let (stays, goes) = (ask(&limiter, "stays"), ask(&limiter, "goes"));
    // One is never even polled.
    drop(limiter.acquire("goes", AcquireOptions::default()));
    sleep(Duration::from_millis(10)).await;
    cancel(goes).await;
    all_answered(under_way.into_iter().chain([stays])).await;
    assert_eq!((used(&limiter, "stays").await, used(&limiter, "goes").await), (1, 0));
}

#[tokio::test]
async fn dropped_after_it_was_sent_it_charges_at_most_once_and_fails_nobody() {
    let server = Server::start();
    let limiter = limiter(&server);
    let mut under_way = hold_back(&server, &limiter).await;
    // The first one's batch travels alone, and with it goes whoever asked.
    cancel(under_way.remove(0)).await;
    let late: Vec<_> = (0..20).map(|_| ask(&limiter, "late")).collect();
    all_answered(under_way.into_iter().chain(late)).await;
    assert!(used(&limiter, "first").await <= 1);
    assert_eq!(
        [used(&limiter, "second").await, used(&limiter, "third").await, used(&limiter, "late").await],
        [1, 1, 20]
    );
}

#[tokio::test]
async fn the_first_of_a_batch_may_go_and_the_others_are_answered() {
    let server = Server::start();
    let limiter = limiter(&server);
    let under_way = hold_back(&server, &limiter).await;
    let mut batch: Vec<_> = (0..30).map(|index| ask(&limiter, &format!("key {}", index % 3))).collect();
    sleep(Duration::from_millis(10)).await;
    cancel(batch.remove(0)).await;
    all_answered(under_way.into_iter().chain(batch)).await;
    let used = [used(&limiter, "key 0").await, used(&limiter, "key 1").await, used(&limiter, "key 2").await];
    assert_eq!(used, [9, 10, 10]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_many_callers_go_and_the_other_half_is_charged() {
    let server = Server::start();
    let limiter = limiter(&server);
    let under_way = hold_back(&server, &limiter).await;
    let callers: Vec<_> = (0..512).map(|index| ask(&limiter, &format!("key {}", index % 2))).collect();
    sleep(Duration::from_millis(20)).await;
    let mut staying = Vec::new();
    for (index, call) in callers.into_iter().enumerate() {
        if index % 2 == 0 { cancel(call).await } else { staying.push(call) }
    }
    all_answered(under_way.into_iter().chain(staying)).await;
    assert_eq!((used(&limiter, "key 0").await, used(&limiter, "key 1").await), (0, 256));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_go_at_any_moment_are_charged_at_most_once_each() {
    let server = Server::start();
    let limiter = limiter(&server);
    assert!(is_allowed(&limiter, "warm").await);
    let (mut gone, mut answered) = (0, 0);
    for round in 0..40_u64 {
        let calls: Vec<_> = (0..50).map(|_| ask(&limiter, "alice")).collect();
        sleep(Duration::from_micros(round * 50)).await;
        for (index, call) in calls.into_iter().enumerate() {
            if index % 2 == 0 {
                call.abort();
            }
            match call.await {
                Ok(outcome) => answered += u64::from(outcome.expect("an answer").decision.is_allowed()),
                Err(error) => {
                    assert!(error.is_cancelled());
                    gone += 1;
                }
            }
        }
    }
    let used = used(&limiter, "alice").await;
    assert!(used >= answered && used <= answered + gone, "{used} charged, {answered} answered, {gone} gone");
}

#[tokio::test]
async fn an_operation_that_is_dropped_fails_nobody() {
    let server = Server::start();
    let limiter = limiter(&server);
    let under_way = hold_back(&server, &limiter).await;
    drop(limiter.set_usage("default", "alice", 7));
    drop(limiter.reset("alice"));
    drop(limiter.peek("alice", AcquireOptions::default()));
    let stays = ask(&limiter, "alice");
    all_answered(under_way.into_iter().chain([stays])).await;
    assert_eq!(used(&limiter, "alice").await, 1, "none of them was sent");
    hold(&limiter, "alice", 5).await.release().await.expect("done");
    assert_eq!(used(&limiter, "alice").await, 1);
}
