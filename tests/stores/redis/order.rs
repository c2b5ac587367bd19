//! Operations on one key are decided in call order.
//!
//! The decisions of several processes can be explained by one sequential order.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tower_ratelimit::limiter::Held;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, FixedWindow, Gcra, Limiter, ManualClock, Quota, SlidingLog, Timestamp,
};

use crate::child::child_task;
use crate::exactness::processes;
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
const KEYS: usize = 3;

/// One decision as its caller observed it.
#[derive(Clone, Debug)]
struct Observed {
    key: usize,
    called: u128,
    returned: u128,
    remaining: u64,
    decided_at: u64,
}

/// Not a test: the child process of the test below.
#[test]
#[ignore = "child process of another test"]
fn process() {
    let Some((_, server)) = child_task() else { return };
    // A clock for all processes of a machine that does not step: the epoch time at the start plus the monotonic time.
    let (epoch, start) = (SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_nanos(), Instant::now());
    let now = move || epoch + start.elapsed().as_nanos();
    let quota = Quota::per_day(LIMIT);
    let limiters: [BoxLimiter<str>; KEYS] = [
        BoxLimiter::new(redis_limiter(server.clone(), "fixed", FixedWindow::new(quota))),
        BoxLimiter::new(redis_limiter(
            server.clone(),
            "gcra",
            Gcra::new(Quota::new(LIMIT, Duration::from_secs(86_400 * 365))),
        )),
        BoxLimiter::new(redis_limiter(server, "log", SlidingLog::new(quota))),
    ];
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let observed = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..60 {
            let (key, limiter) = (task % KEYS, limiters[task % KEYS].clone());
            tasks.spawn(async move {
                let mut observed = Vec::new();
                for _ in 0..20 {
                    let called = now();
                    let decision =
                        acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision;
                    assert!(decision.is_allowed());
                    let (remaining, decided_at) =
                        (decision.remaining().expect("one"), decision.decided_at().as_micros());
                    observed.push(Observed { key, called, returned: now(), remaining, decided_at });
                }
                observed
            });
        }
        tasks.join_all().await.concat()
    });
    for Observed { key, called, returned, remaining, decided_at } in observed {
        println!("reported: {key} {called} {returned} {remaining} {decided_at}");
    }
}

#[test]
fn decisions_of_several_processes_are_linearizable() {
    // The maximum difference between the clocks of two processes, which were read at different times.
    const CLOCK_TOLERANCE: u128 = 2_000_000;
    let server = Server::start();
    let lines = processes(4, "order::process", "histories", &server).concat();
    let mut observed: Vec<_> = lines
        .iter()
        .map(|line| {
            let numbers: Vec<u128> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
            let small = |index: usize| u64::try_from(numbers[index]).expect("small");
            Observed {
                key: usize::try_from(numbers[0]).expect("small"),
                called: numbers[1],
                returned: numbers[2],
                remaining: small(3),
                decided_at: small(4),
            }
        })
        .collect();
    assert_eq!(observed.len(), 4 * 60 * 20);
    for key in 0..KEYS {
        observed.sort_by_key(|observed| std::cmp::Reverse(observed.remaining));
        let history: Vec<_> = observed.iter().filter(|observed| observed.key == key).collect();
        // Each decision took one token and no two took the same, so this is the order of decisions.
        let remaining: Vec<_> = history.iter().map(|observed| observed.remaining).collect();
        let expected: Vec<_> = (1..=history.len() as u64).map(|taken| LIMIT - taken).collect();
        assert_eq!(remaining, expected, "key {key}");
        // The order agrees with the server's clock, and no decision returned before an earlier one was called.
        let mut latest_call = 0;
        for pair in history.windows(2) {
            assert!(pair[0].decided_at <= pair[1].decided_at, "{pair:?}");
        }
        for one in history {
            assert!(
                one.returned + CLOCK_TOLERANCE >= latest_call,
                "key {key}: {one:?} returned before an earlier decision was called"
            );
            latest_call = latest_call.max(one.called);
        }
    }
}
