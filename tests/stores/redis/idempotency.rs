//! Requests that are charged once for an id, in Redis: by any replica, whatever reply is lost.

use std::collections::HashMap;
use std::time::Duration;

use tower_ratelimit::{
    AcquireOptions, Costs, Detail, FixedWindow, InFlight, Limit, LimitStatus, Limiter, Quota, Redis, SlidingLog,
    SlidingWindow, TokenBucket,
};

use crate::helpers::{LONG_DEADLINE, acquire, redis_limiter};
use crate::idempotency_model::{RESULTS, compare, compare_bound};
use crate::ids::{HUNDRED, LossyServer, MINUTE, in_redis_and_memory, left, with_clock};
use crate::random::Random;
use crate::reservation_model::{LIMIT, SPAN, clock, day_or_year};
use crate::server::Server;

fn once(cost: u64, id: &str) -> AcquireOptions {
    AcquireOptions::cost(cost).once(id, 1, 60 * MINUTE)
}

async fn passes(limiter: &Redis<str>, key: &str, options: AcquireOptions) -> bool {
    acquire(limiter, key, options).await.expect("an answer").decision.is_allowed()
}

#[tokio::test]
async fn idempotency_follows_the_model_in_redis() {
    let (server, mut seen) = (Server::start(), HashMap::new());
    for seed in 0..30 {
        let clock = clock();
        let limiter = with_clock(server.open(), &format!("api{seed}"), day_or_year(seed), &clock);
        compare(&limiter, &clock, seed, &mut seen).await;
    }
    for result in RESULTS {
        assert!(seen.get(result).copied().unwrap_or(0) > 10, "{result}: {seen:?}");
    }
}

#[tokio::test]
async fn idempotency_bounds_what_one_id_passes_if_it_is_settled_late_in_redis() {
    let (server, clock) = (Server::start(), clock());
    for seed in 0..20 {
        let window = FixedWindow::new(Quota::per_day(1_000_000));
        let limiter = with_clock(server.open(), &format!("api{seed}"), window, &clock);
        let (passed, charged) = compare_bound(&limiter, &clock, seed).await;
        assert!(passed > charged, "some repeats pass: {passed}, {charged}");
    }
}

/// Decisions, numbers and holds are those of `Memory`, under every kind of algorithm.
#[tokio::test]
async fn idempotency_decides_as_in_memory_under_every_algorithm() {
    let server = Server::start();
    let quota = Quota::new(LIMIT, Duration::from_micros(100 * SPAN));
    let (mut allowed, mut denied) = (0, 0);
    for seed in 0..4 {
        let clock = clock();
        let pairs = [
            in_redis_and_memory!(server, format!("bucket{seed}"), &clock, TokenBucket::new(quota)),
            in_redis_and_memory!(server, format!("window{seed}"), &clock, SlidingWindow::new(quota)),
            in_redis_and_memory!(server, format!("log{seed}"), &clock, SlidingLog::new(quota)),
            in_redis_and_memory!(
                server,
                format!("three{seed}"),
                &clock,
                (
                    Limit::new("all", TokenBucket::new(quota)).keyed_by(|_: &str| 0_u64),
                    Limit::new("fixed", FixedWindow::new(quota)).fixed_cost(3),
                    Limit::new("unit", FixedWindow::new(quota)).cost_of("output"),
                    Limit::new("open", InFlight::new(LIMIT)),
                )
            ),
            in_redis_and_memory!(server, format!("calendar{seed}"), &clock, day_or_year(1)),
        ];
        for (kind, (redis, memory)) in pairs.iter().enumerate() {
            let (mut random, mut guards, mut open) = (Random::new(seed), Vec::new(), Vec::new());
            for step in 0..60 {
                if random.below(4) == 0 {
                    clock.advance(Duration::from_micros(random.below(3) * SPAN));
                }
                let (id, cost, output) = (random.below(5), random.below(20), random.below(20));
                let costs = Costs::from(cost);
                let costs = if kind == 3 { costs.add("output", output) } else { costs };
                let remember = Duration::from_micros(4 * SPAN);
                let mut options = AcquireOptions::from(costs).once(&format!("{id}"), 2, remember).keep_guard();
                let settles = random.below(3) == 0;
                if settles {
                    options = options.hold();
                }
                let options = options.detail(Detail::All);
                let [in_redis, in_memory] =
                    [redis.acquire("alice", options).await, memory.acquire("alice", options).await]
                        .map(|outcome| outcome.expect("a decision"));
                let context = format!("seed {seed}, limits {kind}, step {step}, {options:?}");
                let numbers = |decision: &tower_ratelimit::Decision| {
                    let of_limit = |limit: &LimitStatus| (limit.name().to_owned(), limit.verdict(), limit.remaining());
                    (decision.verdict(), decision.limits().iter().map(of_limit).collect::<Vec<_>>())
                };
                assert_eq!(numbers(&in_redis.decision), numbers(&in_memory.decision), "{context}");
                if in_redis.decision.is_allowed() {
                    allowed += 1;
                } else {
                    denied += 1;
                }
                let held = [in_redis.held, in_memory.held].into_iter().flatten();
                if settles {
                    open.push(held.collect::<Vec<_>>());
                } else {
                    guards.extend(held);
                }
                // Some are settled late, and in another order.
                if !open.is_empty() && random.below(3) > 0 {
                    let actual = random.below(25);
                    for held in open.swap_remove(random.index(open.len())) {
                        held.settle(actual).await.expect("settled");
                    }
                }
                if random.below(8) == 0 {
                    // Both stores release what is in flight.
                    for guard in guards.drain(..) {
                        guard.release().await.expect("released");
                    }
                }
            }
        }
    }
    println!("{allowed} allowed, {denied} denied");
    assert!(allowed > 200 && denied > 60, "{allowed}, {denied}");
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
