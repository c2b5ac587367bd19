//! Requests that are charged once for an id, in Redis: by any replica, whatever reply is lost.

use tower_ratelimit::{AcquireOptions, FixedWindow, Quota, Redis};

use crate::helpers::{LONG_DEADLINE, acquire, redis_limiter};
use crate::ids::{HUNDRED, LossyServer, MINUTE, left};
use crate::server::Server;

fn once(cost: u64, id: &str) -> AcquireOptions {
    AcquireOptions::cost(cost).once(id, 1, 60 * MINUTE)
}

async fn passes(limiter: &Redis<str>, key: &str, options: AcquireOptions) -> bool {
    acquire(limiter, key, options).await.expect("an answer").decision.is_allowed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idempotency_counts_across_replicas_and_concurrent_calls() {
    let server = Server::start();
    let [here, there] = [(); 2].map(|()| redis_limiter::<str>(server.open(), "api", FixedWindow::new(HUNDRED)));
    assert!(passes(&here, "alice", once(10, "a")).await);
    assert!(passes(&there, "alice", once(25, "a")).await);
    assert_eq!(left(&here, "alice").await, 75, "the difference");
    assert!(passes(&there, "alice", once(25, "a")).await);
    assert_eq!(left(&here, "alice").await, 50, "no repeat is left");
    for id in 0..20 {
        let id = format!("{id}");
        let (a, b) = tokio::join!(passes(&here, "bob", once(2, &id)), passes(&there, "bob", once(2, &id)));
        assert!(a && b);
    }
    assert_eq!(left(&here, "bob").await, 60, "one of two is charged");
    // Concurrent repeats change what the other one was told.
    let many = AcquireOptions::cost(1).once("many", 50, 60 * MINUTE);
    let calls = (0..50).map(|call| {
        let limiter = if call % 2 == 0 { here.clone() } else { there.clone() };
        tokio::spawn(async move { passes(&limiter, "carol", many).await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert!(call.await.expect("no panic"));
    }
    assert_eq!(left(&here, "carol").await, 99);
}

/// A client whose replies are lost sends its request until one arrives. It pays once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idempotency_charges_once_if_replies_are_lost() {
    let server = LossyServer::start();
    let (limiter, direct) = (&server.limiter, &server.direct);
    let (mut lost, mut plain) = (0, 0);
    for number in 0..12 {
        for (key, options) in [
            ("once", AcquireOptions::cost(2).once(&format!("{number}"), 100, 60 * MINUTE)),
            ("plain", AcquireOptions::cost(2)),
        ] {
            lost += u64::from(server.lose_a_reply(|| acquire(limiter, key, options)).await);
        }
        assert_eq!(left(direct, "once").await, 100 - 2 * (number + 1));
        plain = 100 - left(direct, "plain").await;
    }
    println!("{lost} replies were lost: 24 charged with ids, {plain} without");
    assert!(lost > 12 && plain > 24, "{lost}, {plain}");
}

#[tokio::test]
async fn idempotency_takes_bounded_memory_in_redis() {
    let server = Server::start();
    let limiter = Redis::builder(server.open(), "api", FixedWindow::new(Quota::per_day(10_000)));
    let limiter: Redis<str> = limiter.deadline(LONG_DEADLINE).max_reservation_ids(500).build().expect("limits");
    for id in 0..1_000 {
        assert!(passes(&limiter, "mallory", once(1, &format!("{id}"))).await);
    }
    assert_eq!(left(&limiter, "mallory").await, 9_000);
    for (id, is_repeat) in [(0, true), (499, true), (500, false), (999, false)] {
        let before = left(&limiter, "mallory").await;
        assert!(passes(&limiter, "mallory", once(1, &format!("{id}"))).await);
        assert_eq!(left(&limiter, "mallory").await == before, is_repeat, "{id}");
    }
    for remaining in [9_990, 9_990] {
        assert!(passes(&limiter, "alice", once(10, "a")).await);
        assert_eq!(left(&limiter, "alice").await, remaining, "another key's ids are its own");
    }
    let keys = server.keys();
    let records: Vec<_> = keys.iter().filter(|key| key.contains(":request~")).collect();
    assert_eq!(records.len(), 501);
    assert_eq!(keys.len(), 501 + 2 + 2, "and the counts and the states of two keys");
    let bytes = server.number(&["MEMORY", "USAGE", records[0]]);
    println!("{bytes} bytes for each id, with a key of {} bytes", records[0].len());
    assert!(bytes < 300, "{bytes} bytes for {}", records[0]);
    for key in records {
        let ttl = server.number(&["PTTL", key]);
        assert!((1..=4_200_000).contains(&ttl), "{key}: {ttl}");
    }
}

/// A first request is one call. A repeat is two, because only the server knows its cost.
#[tokio::test]
async fn idempotency_takes_one_call_for_a_request_and_two_for_a_repeat() {
    let server = Server::start();
    let limiter = redis_limiter::<str>(server.open(), "api", FixedWindow::new(HUNDRED));
    limiter.health_check().await.expect("a server");
    assert!(passes(&limiter, "alice", once(1, "first")).await);
    let calls = || {
        let statistics = server.command(&["INFO", "commandstats"]);
        ["evalsha", "get", "mget", "psetex", "set"].map(|command| {
            let line = statistics.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
            let count = line.and_then(|line| line.split("calls=").nth(1)).and_then(|rest| rest.split(',').next());
            count.map_or(0, |count| count.parse::<u64>().expect("a number"))
        })
    };
    let mut before = calls();
    let mut since = || {
        let now = calls();
        let since: Vec<_> = now.iter().zip(before).map(|(now, before)| now - before).collect();
        before = now;
        since
    };
    assert!(passes(&limiter, "alice", once(1, "a")).await);
    assert_eq!(since(), [1, 2, 1, 2, 1], "a request: the record and the counts are read and written");
    assert!(passes(&limiter, "alice", once(1, "a")).await);
    assert_eq!(since(), [2, 2, 2, 1, 0], "a repeat: its record is written, and no state");
    assert!(passes(&limiter, "alice", once(1, "a")).await);
    assert_eq!(since(), [1, 1, 1, 0, 1], "no repeat is left");
    let held = acquire(&limiter, "alice", once(1, "b").hold()).await.expect("an answer").held.expect("a guard");
    assert_eq!(since()[0], 1, "a hold");
    held.settle(1).await.expect("settled");
    assert!(since()[0] <= 2, "its settlement, and the record");
}
