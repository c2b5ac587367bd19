//! Holds with an id in Redis: held once and settled once by any process, whatever reply is lost.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use tower_ratelimit::{
    AcquireOptions, Calendar, Costs, FixedWindow, Gcra, InFlight, Limit, Limiter, ManualClock, Quota, Redis,
    SlidingLog, SlidingWindow, Timestamp, TokenBucket,
};

use crate::cluster_server::Cluster;
use crate::helpers::{LONG_DEADLINE, acquire, redis_limiter};
use crate::ids::{HUNDRED, LossyServer, MINUTE, in_redis_and_memory, left, with_clock};
use crate::random::Random;
use crate::reservation_model::{
    DRAINING, LIMIT, Operation, SPAN, clock, compare, day_or_year, looking_changes_no_charge, no_id_passes_too_often,
    remaining,
};
use crate::server::Server;

fn options(cost: u64, id: &str) -> AcquireOptions {
    AcquireOptions::cost(cost).id(id).repeats(100).expires_in(MINUTE)
}

async fn hold(limiter: &Redis<str>, key: &str, options: AcquireOptions) -> bool {
    acquire(limiter, key, options.hold()).await.expect("an answer").decision.is_allowed()
}

#[tokio::test]
async fn reservation_id_follows_the_model_in_redis() {
    let (server, mut seen) = (Server::start(), HashMap::new());
    for seed in 0..40 {
        let clock = clock();
        let limiter = with_clock(server.open(), &format!("api{seed}"), day_or_year(seed), &clock);
        compare(&limiter, &clock, seed, &mut seen).await;
    }
    for result in ["allowed", "repeat", "open", "ended", "denied", "conflict", "too many", "settled", "unknown"] {
        assert!(seen.get(result).copied().unwrap_or(0) > 10, "{result}: {seen:?}");
    }
}

#[tokio::test]
async fn repeated_reservation_ids() {
    let (server, mut counts) = (Server::start(), [0; 2]);
    for seed in 0..15 {
        let clock = clock();
        let limiter = with_clock(server.open(), &format!("api{seed}"), day_or_year(seed), &clock);
        let [sent, passed] = no_id_passes_too_often(&limiter, &clock, seed).await;
        counts = [counts[0] + sent, counts[1] + passed];
    }
    assert!(counts[0] > 1_500 && counts[1] > 150, "{counts:?}");
}

/// Returns a time from one second to 24 hours, each power of two as often.
fn any_lifetime(random: &mut Random) -> Duration {
    Duration::from_millis(((1_000 + random.below(1_000)) << random.below(17)).min(86_400_000))
}

/// A key has 10,000 ids with any expiries. The script groups expiries, and the bound of groups is never reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservation_ids_of_a_key_may_expire_at_any_times() {
    let (server, clock, mut random) =
        (Server::start(), ManualClock::at(Timestamp::from_micros(1 << 50)), Random::new(1));
    let limiter =
        Redis::builder(server.open(), "api", FixedWindow::new(Quota::per_day(1_000_000))).deadline(LONG_DEADLINE);
    let limiter: Redis<str> = limiter.clock_for_tests(clock.clone()).build().expect("limits");
    let mut results = HashMap::<_, u64>::new();
    for batch in 0..202 {
        clock.advance(Duration::from_micros(random.below(4_000)));
        let holds = (0..50).map(|number| {
            let id = format!("{}", 50 * batch + number);
            acquire(&limiter, "alice", AcquireOptions::cost(1).id(&id).expires_in(any_lifetime(&mut random)).hold())
        });
        for outcome in join_all(holds.collect::<Vec<_>>()).await {
            let decision = outcome.expect("an answer").decision;
            *results.entry((decision.is_allowed(), decision.has_too_many_ids())).or_default() += 1;
        }
    }
    assert_eq!(results, HashMap::from([((true, false), 10_000), ((false, true), 100)]));
    assert_eq!(left(&limiter, "alice").await, 1_000_000 - 10_000);
}

/// A hold expires at most a quarter of its time late.
#[tokio::test]
async fn reservation_id_expires_at_most_a_quarter_late() {
    let (server, mut random) = (Server::start(), Random::new(1));
    for number in 0..200_u64 {
        let clock = ManualClock::at(Timestamp::from_micros((1 << 50) + random.below(1 << 40)));
        let limiter = with_clock(server.open(), &format!("api{number}"), FixedWindow::new(HUNDRED), &clock);
        let lifetime = if number < 20 { Duration::from_millis(1 + number) } else { any_lifetime(&mut random) };
        let options = AcquireOptions::cost(1).id("a").expires_in(lifetime);
        assert!(limiter.hold("alice", options).await.expect("an answer").decision.is_allowed());
        clock.advance(lifetime.saturating_sub(Duration::from_micros(1)));
        assert!(limiter.hold("alice", options).await.expect("an answer").decision.is_repeat(), "{lifetime:?}");
        clock.advance(lifetime / 4 + Duration::from_micros(1));
        let error = limiter.hold("alice", options).await.expect_err("expired");
        assert!(error.is_already_settled(), "{lifetime:?}");
        // Remembered for as long again.
        clock.advance(lifetime.saturating_sub(lifetime / 4 + Duration::from_micros(1)));
        limiter.settle("alice", "a", 3).await.expect("a remembered id");
        assert_eq!(left(&limiter, "alice").await, LIMIT - 3);
    }
}

#[tokio::test]
async fn looking_changes_no_charge_of_a_reservation_id() {
    let (server, mut exhausted) = (Server::start(), 0);
    for seed in 0..8 {
        macro_rules! law {
            ($($name:literal: $limits:expr),+) => {$({
                let clock = clock();
                let pair = ["looked", "alone"]
                    .map(|kind| with_clock(server.open(), &format!("{}{kind}{seed}", $name), $limits, &clock));
                let looked = pair[0].clone();
                exhausted += looking_changes_no_charge(&pair, &clock, seed, &mut async |random| match random.below(4) {
                    0 => assert!(!looked.check("alice", 101).await.expect("an answer").is_allowed()),
                    1 => drop(looked.hold("bob", 101).await.expect("an answer")),
                    _ => drop(looked.peek("alice", AcquireOptions::cost(0)).await.expect("an answer")),
                })
                .await;
            })+};
        }
        law!(
            "bucket": TokenBucket::new(DRAINING),
            "fixed": FixedWindow::new(DRAINING),
            "calendar": FixedWindow::calendar(LIMIT, Calendar::daily()),
            "window": SlidingWindow::new(DRAINING),
            "log": SlidingLog::new(DRAINING),
            "two": (
                Limit::new("all", SlidingLog::new(DRAINING)).keyed_by(|_: &str| 0_u64),
                Limit::new("key", TokenBucket::new(DRAINING)),
            )
        );
    }
    assert!(exhausted > 10, "{exhausted}");
}

/// Every algorithm drains as in memory: an expired hold is charged as of its expiry.
#[tokio::test]
async fn reservation_id_decides_as_in_memory_under_every_algorithm() {
    let server = Server::start();
    let quota = Quota::new(LIMIT, Duration::from_micros(100 * SPAN));
    for seed in 0..6 {
        let clock = clock();
        let pairs = [
            in_redis_and_memory!(server, format!("bucket{seed}"), &clock, TokenBucket::new(quota)),
            in_redis_and_memory!(server, format!("window{seed}"), &clock, SlidingWindow::new(quota)),
            in_redis_and_memory!(server, format!("log{seed}"), &clock, SlidingLog::new(quota)),
            in_redis_and_memory!(server, format!("flight{seed}"), &clock, InFlight::new(LIMIT)),
            in_redis_and_memory!(
                server,
                format!("two{seed}"),
                &clock,
                (
                    Limit::new("all", TokenBucket::new(quota)).keyed_by(|_: &str| 0_u64),
                    Limit::new("key", FixedWindow::new(quota)),
                )
            ),
        ];
        for (kind, (redis, memory)) in pairs.iter().enumerate() {
            let (mut random, mut trace) = (Random::new(seed), Vec::new());
            for _ in 0..40 {
                let mut operation = Operation::random(&mut random);
                if kind == 3 && matches!(operation, Operation::Check { .. }) {
                    operation = Operation::Advance { spans: 1 };
                }
                trace.push(operation);
                let result = operation.run(memory, &clock).await;
                let in_redis = if matches!(operation, Operation::Advance { .. }) {
                    String::new()
                } else {
                    operation.run(redis, &clock).await
                };
                assert_eq!(in_redis, result, "seed {seed}, {kind}: {trace:?}");
                assert_eq!(remaining(redis).await, remaining(memory).await, "seed {seed}, {kind}: {trace:?}");
            }
        }
    }
}

#[tokio::test]
async fn reservation_id_is_settled_by_another_process() {
    let server = Server::start();
    let (here, there) = (|| redis_limiter::<str>(server.open(), "api", FixedWindow::new(HUNDRED))).map_two();
    assert!(hold(&here, "alice", options(40, "a")).await);
    assert!(hold(&there, "alice", options(40, "a")).await);
    assert_eq!(left(&there, "alice").await, 60, "held once");
    let other_cost = there.hold("alice", options(41, "a")).await.expect_err("another cost");
    assert!(other_cost.is_id_conflict(), "{other_cost}");
    drop(here);
    there.settle("alice", "a", 7).await.expect("settled");
    there.settle("alice", "a", 90).await.expect("settled before");
    there.release("alice", "a").await.expect("settled before");
    assert_eq!(left(&there, "alice").await, 93);
    assert!(there.settle("bob", "a", 7).await.expect_err("another key").is_unknown_id());
    assert!(there.settle("alice", "b", 7).await.expect_err("another id").is_unknown_id());
    assert_eq!(left(&there, "alice").await, 93);
}

trait MapTwo<T> {
    fn map_two(self) -> (T, T);
}

impl<T, F: Fn() -> T> MapTwo<T> for F {
    fn map_two(self) -> (T, T) {
        (self(), self())
    }
}

/// A reply that is lost on the way: the repeated call finds what the first one did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservation_id_is_held_and_settled_once_if_replies_are_lost() {
    let server = LossyServer::start();
    let (limiter, direct) = (&server.limiter, &server.direct);
    let (mut lost_holds, mut lost_settlements) = (0, 0);
    for number in 0..20 {
        let id = format!("{number}");
        lost_holds += u64::from(server.lose_a_reply(|| acquire(limiter, "alice", options(5, &id).hold())).await);
        assert_eq!(left(direct, "alice").await, 100 - 2 * number - 5);
        lost_settlements += u64::from(server.lose_a_reply(|| limiter.settle("alice", id.as_str(), 2)).await);
        assert_eq!(left(direct, "alice").await, 100 - 2 * (number + 1));
    }
    assert!(lost_holds > 10 && lost_settlements > 10, "{lost_holds}, {lost_settlements}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_work_on_every_node_of_a_cluster_while_a_slot_moves() {
    let cluster = Cluster::start();
    let one = redis_limiter::<str>(cluster.open(), "one", FixedWindow::new(HUNDRED));
    let limits = || {
        (
            Limit::new("all", Gcra::new(Quota::per_day(1_000_000))).keyed_by(|_: &str| 0_u64),
            Limit::new("key", FixedWindow::new(HUNDRED)),
        )
    };
    let two = redis_limiter::<str>(cluster.open(), "two", limits());
    // A request that is charged once, and repeated after the move.
    let request = AcquireOptions::cost(20).once("a", 1, MINUTE);
    for limiter in [&one, &two] {
        for user in 0..40 {
            let key = format!("user{user}");
            for _ in 0..2 {
                assert!(hold(limiter, &key, options(40, "a")).await);
            }
            assert!(acquire(limiter, &key, request).await.expect("an answer").decision.is_allowed());
        }
    }
    let name = one.redis_key("default", "user7").expect("a limit");
    let from = cluster.first_master_of(&name);
    tokio::task::block_in_place(|| {
        cluster.migrate(cluster.slot(&name), from, (from + 1) % 3, Duration::from_millis(50));
    });
    for limiter in [&one, &two] {
        for user in 0..40 {
            let key = format!("user{user}");
            limiter.settle(&key, "a", 7).await.expect("settled");
            limiter.settle(&key, "a", 7).await.expect("settled before");
            assert!(acquire(limiter, &key, request).await.expect("an answer").decision.is_allowed());
        }
    }
    assert_eq!(left(&one, "user7").await, 73);
    let peeked = two.peek("user7", AcquireOptions::cost(0).detail(tower_ratelimit::Detail::All)).await.expect("answer");
    assert_eq!(peeked.limits()[1].remaining(), 73);
}

#[tokio::test]
async fn reservation_id_takes_bounded_memory_in_redis() {
    let server = Server::start();
    let limiter = Redis::builder(server.open(), "api", FixedWindow::new(HUNDRED)).deadline(LONG_DEADLINE);
    let limiter: Redis<str> = limiter.max_reservation_ids(500).build().expect("limits");
    let (mut allowed, mut denied) = (0, 0);
    for id in 0..1_000 {
        let hold = options(0, &format!("{id}")).hold();
        let decision = acquire(&limiter, "mallory", hold).await.expect("an answer").decision;
        allowed += u64::from(decision.is_allowed());
        denied += u64::from(decision.has_too_many_ids());
    }
    assert_eq!((allowed, denied), (500, 500));
    assert!(hold(&limiter, "alice", options(100, "a")).await);
    let keys = server.keys();
    let records: Vec<_> = keys.iter().filter(|key| key.contains(":id~")).collect();
    assert_eq!(records.len(), 501);
    assert_eq!(keys.len(), 501 + 2 + 1, "and the counts of two keys, and the state of one: a hold of 0 writes none");
    let bytes = server.number(&["MEMORY", "USAGE", records[0]]);
    println!("{bytes} bytes for each id, with a key of {} bytes", records[0].len());
    assert!(bytes < 300, "{bytes} bytes for {}", records[0]);
    for key in &keys {
        let ttl = server.number(&["PTTL", key]);
        assert!((1..=24 * 60 * 60 * 1_000 + 70_000).contains(&ttl), "{key}: {ttl}");
    }
}

/// One hold, its repeat and its settlement are one call each, and a decision reads no id.
#[tokio::test]
async fn reservation_id_takes_one_call_for_each_operation() {
    let server = Server::start();
    let limiter = redis_limiter::<str>(server.open(), "api", FixedWindow::new(HUNDRED));
    limiter.health_check().await.expect("a server");
    assert!(hold(&limiter, "alice", options(10, "first")).await);
    let calls = |command: &str| {
        let statistics = server.command(&["INFO", "commandstats"]);
        let line = statistics.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        let count = line.and_then(|line| line.split("calls=").nth(1)).and_then(|rest| rest.split(',').next());
        count.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    let mut before = (calls("evalsha"), calls("get"), calls("mget"));
    let mut since = || {
        let now = (calls("evalsha"), calls("get"), calls("mget"));
        let since = (now.0 - before.0, now.1 - before.1, now.2 - before.2);
        before = now;
        since
    };
    assert!(hold(&limiter, "alice", options(10, "a")).await);
    assert_eq!(since(), (1, 2, 1), "a hold");
    assert!(hold(&limiter, "alice", options(10, "a")).await);
    assert_eq!(since(), (1, 1, 1), "a repeat");
    limiter.settle("alice", "a", 10).await.expect("settled");
    assert_eq!(since(), (1, 1, 1), "a settlement");
    assert!(limiter.check("alice", Costs::from(1)).await.expect("an answer").is_allowed());
    assert!(since().1 <= 1, "a decision reads the state only");
}
