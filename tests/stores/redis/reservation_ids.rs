//! Holds with an id in Redis: held once and settled once by any process, whatever reply is lost.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Costs, Detail, FixedWindow, Gcra, InFlight, Limit, LimitStatus, Limiter, ManualClock,
    Memory, Quota, Redis, Timestamp,
};

use crate::cluster_server::Cluster;
use crate::helpers::{LONG_DEADLINE, acquire, redis_limiter};
use crate::ids::{HUNDRED, LossyServer, MINUTE, left, with_clock};
use crate::random::Random;
use crate::server::Server;

fn options(cost: u64, id: &str) -> AcquireOptions {
    AcquireOptions::cost(cost).id(id).repeats(100).expires_in(MINUTE)
}

async fn hold(limiter: &Redis<str>, key: &str, options: AcquireOptions) -> bool {
    acquire(limiter, key, options.hold()).await.expect("an answer").decision.is_allowed()
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
        assert_eq!(left(&limiter, "alice").await, 97);
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

/// A request in flight whose id lives longer does not count after the maximum duration. Other limits hold until the expiry.
#[tokio::test]
async fn reservation_id_ends_in_flight_after_the_maximum_duration() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let limits =
        (Limit::new("streams", InFlight::new(2).max_duration(MINUTE)), Limit::new("units", FixedWindow::new(HUNDRED)));
    let memory: BoxLimiter<str> =
        BoxLimiter::new(Memory::builder(limits.clone()).clock(clock.clone()).build().expect("limits"));
    for limiter in [memory, with_clock(server.open(), "api", limits, &clock)] {
        for id in ["a", "b"] {
            let options = AcquireOptions::cost(1).id(id).expires_in(60 * MINUTE).hold();
            assert!(acquire(&limiter, "alice", options).await.expect("an answer").decision.is_allowed());
        }
        let peek = async || {
            let options = AcquireOptions::cost(0).detail(Detail::All);
            let peeked = limiter.peek("alice", options).await.expect("an answer");
            peeked.limits().iter().map(LimitStatus::remaining).collect::<Vec<_>>()
        };
        assert_eq!(peek().await, [0, 98]);
        clock.advance(MINUTE / 2);
        assert_eq!(peek().await, [0, 98]);
        // Redis rounds up by at most a quarter.
        clock.advance(MINUTE * 3 / 4);
        assert_eq!(peek().await, [2, 98]);
        limiter.settle("alice", "a", 0).await.expect("a known id");
        assert_eq!(peek().await, [2, 99]);
        // The largest cost is a cost, not the held one.
        limiter.settle("alice", "b", u64::MAX).await.expect("a known id");
        assert_eq!(peek().await, [2, 0]);
    }
}
