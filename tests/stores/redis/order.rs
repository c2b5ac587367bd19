//! Operations on one key are decided in call order.
//!
//! The decisions of several processes can be explained by one sequential order.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tower_ratelimit::limiter::Held;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, FixedWindow, Gcra, Limiter, ManualClock, Quota, SlidingLog, SlidingWindow, Timestamp,
};

use crate::exactness::in_runtimes;
use crate::helpers::{acquire, every_algorithm, redis_limiter};
use crate::server::Server;

#[tokio::test]
async fn operations_on_one_key_are_decided_in_call_order() {
    let server = Server::start();
    let limiter = redis_limiter::<str>(server.open(), "api", FixedWindow::new(Quota::per_day(100_000)));
    let mut left = 100_000;
    // Some calls meet an idle connection, some meet two batches in flight, and some exceed one batch.
    for count in [1, 1, 2, 3, 500, 7, 64, 129, 1, 300] {
        // The calls are made in this order and awaited in another.
        let calls: Vec<_> = (0..count).map(|_| limiter.acquire("alice", AcquireOptions::default())).collect();
        for outcome in join_all(calls).await {
            left -= 1;
            assert_eq!(outcome.expect("an answer").decision.remaining(), Some(left));
        }
    }
}

#[tokio::test]
async fn batched_operations_are_decided_like_single_ones() {
    let server = Server::start();
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    for ((name, together), (_, alone)) in every_algorithm(&server.open(), Quota::per_minute(10), Some(&clock))
        .into_iter()
        .zip(every_algorithm(&server.open(), Quota::per_minute(10), Some(&clock)))
    {
        // Two keys, one per way. Both get the same calls.
        for round in 0..30_u64 {
            clock.advance(Duration::from_millis(round * 731 % 9_000));
            let cost = round % 4;
            let earlier = [
                acquire(&together, "together", AcquireOptions::cost(2).hold()).await.expect("an answer").held,
                acquire(&alone, "alone", AcquireOptions::cost(2).hold()).await.expect("an answer").held,
            ];
            let [ours, theirs] = earlier;
            let set = |limiter: &BoxLimiter<str>, key: &str| match round % 5 {
                0 => limiter.reset(key),
                1 => limiter.set_usage("default", key, 3 + cost),
                2 => limiter.block("default", key, Duration::from_millis(200)),
                3 => limiter.block("default", key, Duration::ZERO),
                _ => limiter.set_usage("default", key, 0),
            };
            let settle = |limiter: &BoxLimiter<str>, key: &str, held: Option<Held>| match held {
                Some(held) => held.settle(cost),
                None => limiter.block("default", key, Duration::ZERO),
            };
            let called: Vec<_> = {
                let first = together.acquire("together", AcquireOptions::default());
                let settled = settle(&together, "together", ours);
                let second = together.acquire("together", AcquireOptions::cost(3));
                let done = set(&together, "together");
                let third = together.acquire("together", AcquireOptions::cost(cost));
                let (settled, done, decided) = tokio::join!(settled, done, join_all([first, second, third]));
                settled.expect("done");
                done.expect("done");
                decided.into_iter().map(|outcome| outcome.expect("an answer").decision).collect()
            };
            let first = acquire(&alone, "alone", AcquireOptions::default()).await.expect("an answer").decision;
            settle(&alone, "alone", theirs).await.expect("done");
            let second = acquire(&alone, "alone", AcquireOptions::cost(3)).await.expect("an answer").decision;
            set(&alone, "alone").await.expect("done");
            let third = acquire(&alone, "alone", AcquireOptions::cost(cost)).await.expect("an answer").decision;
            assert_eq!(called, [first, second, third], "{name}, round {round}");
        }
    }
}

const LIMIT: u64 = 3_000;
const KEYS: usize = 4;

/// One decision as its caller observed it.
#[derive(Clone, Debug)]
struct Observed {
    key: usize,
    called: Duration,
    returned: Duration,
    remaining: u64,
    decided_at: Timestamp,
}

/// The decisions of a process with limiters and connections of its own.
async fn observe(server: &Server, start: Instant) -> Vec<Observed> {
    let quota = Quota::per_day(LIMIT);
    let year = Quota::new(LIMIT, Duration::from_secs(86_400 * 365));
    let limiters: [BoxLimiter<str>; KEYS] = [
        BoxLimiter::new(redis_limiter(server.open(), "fixed", FixedWindow::new(quota))),
        BoxLimiter::new(redis_limiter(server.open(), "gcra", Gcra::new(year))),
        BoxLimiter::new(redis_limiter(server.open(), "log", SlidingLog::new(quota))),
        BoxLimiter::new(redis_limiter(server.open(), "sliding", SlidingWindow::new(quota))),
    ];
    let mut tasks = JoinSet::new();
    for task in 0..60 {
        let (key, limiter) = (task % KEYS, limiters[task % KEYS].clone());
        tasks.spawn(async move {
            let mut observed = Vec::new();
            for _ in 0..20 {
                let called = start.elapsed();
                let decision = acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision;
                assert!(decision.is_allowed());
                let (remaining, decided_at) = (decision.remaining().expect("one"), decision.decided_at());
                observed.push(Observed { key, called, returned: start.elapsed(), remaining, decided_at });
            }
            observed
        });
    }
    tasks.join_all().await.concat()
}

#[test]
fn decisions_of_several_processes_are_linearizable() {
    let (server, start) = (Server::start(), Instant::now());
    let mut observed = in_runtimes(4, async |_| observe(&server, start).await).concat();
    assert_eq!(observed.len(), 4 * 60 * 20);
    for key in 0..KEYS {
        observed.sort_by_key(|observed| std::cmp::Reverse(observed.remaining));
        let history: Vec<_> = observed.iter().filter(|observed| observed.key == key).collect();
        // Each decision took one token and no two took the same, so this is the order of decisions.
        let remaining: Vec<_> = history.iter().map(|observed| observed.remaining).collect();
        let expected: Vec<_> = (1..=history.len() as u64).map(|taken| LIMIT - taken).collect();
        assert_eq!(remaining, expected, "key {key}");
        // The order agrees with the server's clock, and no decision returned before an earlier one was called.
        let mut latest_call = Duration::ZERO;
        for pair in history.windows(2) {
            assert!(pair[0].decided_at <= pair[1].decided_at, "{pair:?}");
        }
        for one in history {
            assert!(one.returned >= latest_call, "key {key}: {one:?} returned before an earlier decision was called");
            latest_call = latest_call.max(one.called);
        }
    }
}
