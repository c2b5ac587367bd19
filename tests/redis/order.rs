//! Orders on one key are decided in the order in which they came; and what several processes were told is what one server
//! could have told them, one after the other.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tower_ratelimit::limiter::Held;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, FixedWindow, Gcra, Limiter, ManualClock, Quota, SlidingLog, Timestamp,
};

use crate::exactness::{orders, processes};
use crate::helpers::{acquire, every_algorithm, patient};
use crate::server::Server;

#[tokio::test]
async fn orders_on_one_key_are_decided_as_they_came() {
    let server = Server::start();
    let limiter = patient::<str>(server.open(), "api", FixedWindow::new(Quota::per_day(100_000)));
    let mut left = 100_000;
    // Some come while nothing is under way, some while two calls are, some more than fit into one.
    for count in [1, 1, 2, 3, 500, 7, 64, 129, 1, 300] {
        // Asked in this order, awaited in any.
        let asks: Vec<_> =
            (0..count).map(|_| limiter.acquire("alice", AcquireOptions::default()).into_future()).collect();
        for outcome in join_all(asks).await {
            left -= 1;
            assert_eq!(outcome.expect("an answer").decision.remaining(), Some(left));
        }
    }
}

#[tokio::test]
async fn what_travels_together_is_decided_as_if_it_had_travelled_alone() {
    let server = Server::start();
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    for ((name, together), (_, alone)) in every_algorithm(&server.open(), Quota::per_minute(10), Some(&clock))
        .into_iter()
        .zip(every_algorithm(&server.open(), Quota::per_minute(10), Some(&clock)))
    {
        // Two keys, one for each way; the same is done to both.
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
                3 => limiter.unblock("default", key),
                _ => limiter.set_usage("default", key, 0),
            };
            let settle = |limiter: &BoxLimiter<str>, key: &str, held: Option<Held>| match held {
                Some(held) => held.settle(cost),
                None => limiter.unblock("default", key),
            };
            let asked: Vec<_> = {
                let first = together.acquire("together", AcquireOptions::default()).into_future();
                let settled = settle(&together, "together", ours);
                let second = together.acquire("together", AcquireOptions::cost(3)).into_future();
                let done = set(&together, "together");
                let third = together.acquire("together", AcquireOptions::cost(cost)).into_future();
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
            assert_eq!(asked, [first, second, third], "{name}, round {round}");
        }
    }
}

const LIMIT: u64 = 3_000;
const KEYS: usize = 3;

/// One decision, as its asker saw it.
#[derive(Clone, Debug)]
struct Seen {
    key: usize,
    asked: u128,
    told: u128,
    remaining: u64,
    decided_at: u64,
}

/// Not a test: what each process does.
#[test]
#[ignore = "it is a part of other tests"]
fn process() {
    let Some((_, server)) = orders() else { return };
    // One clock for all processes of a machine, that does not step: the time since the epoch at the start, and from there on.
    let (epoch, start) = (SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_nanos(), Instant::now());
    let now = move || epoch + start.elapsed().as_nanos();
    let quota = Quota::per_day(LIMIT);
    let limiters: [BoxLimiter<str>; KEYS] = [
        BoxLimiter::new(patient(server.clone(), "fixed", FixedWindow::new(quota))),
        BoxLimiter::new(patient(
            server.clone(),
            "gcra",
            Gcra::new(Quota::new(LIMIT, Duration::from_secs(86_400 * 365))),
        )),
        BoxLimiter::new(patient(server, "log", SlidingLog::new(quota))),
    ];
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let seen = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..60 {
            let (key, limiter) = (task % KEYS, limiters[task % KEYS].clone());
            tasks.spawn(async move {
                let mut seen = Vec::new();
                for _ in 0..20 {
                    let asked = now();
                    let decision =
                        acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision;
                    assert!(decision.is_allowed());
                    let (remaining, decided_at) =
                        (decision.remaining().expect("one"), decision.decided_at().as_micros());
                    seen.push(Seen { key, asked, told: now(), remaining, decided_at });
                }
                seen
            });
        }
        tasks.join_all().await.concat()
    });
    for Seen { key, asked, told, remaining, decided_at } in seen {
        println!("told: {key} {asked} {told} {remaining} {decided_at}");
    }
}

#[test]
fn what_several_processes_saw_could_have_happened_one_after_the_other() {
    // The clocks of two processes were read at different times: so much may they differ.
    const APART: u128 = 2_000_000;
    let server = Server::start();
    let lines = processes(4, "order::process", "histories", &server).concat();
    let mut seen: Vec<_> = lines
        .iter()
        .map(|line| {
            let numbers: Vec<u128> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
            let small = |index: usize| u64::try_from(numbers[index]).expect("small");
            Seen {
                key: usize::try_from(numbers[0]).expect("small"),
                asked: numbers[1],
                told: numbers[2],
                remaining: small(3),
                decided_at: small(4),
            }
        })
        .collect();
    assert_eq!(seen.len(), 4 * 60 * 20);
    for key in 0..KEYS {
        seen.sort_by_key(|seen| std::cmp::Reverse(seen.remaining));
        let history: Vec<_> = seen.iter().filter(|seen| seen.key == key).collect();
        // Each took one, and no two took the same one: so this is their order.
        let remaining: Vec<_> = history.iter().map(|seen| seen.remaining).collect();
        let expected: Vec<_> = (1..=history.len() as u64).map(|taken| LIMIT - taken).collect();
        assert_eq!(remaining, expected, "key {key}");
        // It fits the server's clock, and nobody was told before somebody who asked later came before him.
        let mut latest_ask = 0;
        for pair in history.windows(2) {
            assert!(pair[0].decided_at <= pair[1].decided_at, "{pair:?}");
        }
        for one in history {
            assert!(one.told + APART >= latest_ask, "key {key}: {one:?} was told before an earlier one was asked");
            latest_ask = latest_ask.max(one.asked);
        }
    }
}
