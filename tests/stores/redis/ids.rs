//! Ids of requests and of holds on real servers: charged, held and settled once by any process, whatever reply is lost.
//!
//! What is decided for an id is compared with `Memory` by `differential`, and that with a model by `memory: idempotency` and
//! `reservation_ids`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::time::sleep;
use tower_ratelimit::limiter::LimiterFuture;
use tower_ratelimit::{
    AcquireOptions, Detail, FixedWindow, Gcra, Limit, Limiter, ManualClock, Quota, Redis, RedisBuilder, RedisServer,
    Timestamp,
};

use crate::cluster_server::Cluster;
use crate::helpers::{LONG_DEADLINE, ONE_DAY, acquire, redis_limiter};
use crate::proxy::Proxy;
use crate::random::Random;
use crate::server::Server;
use crate::ttl::calls;

const MINUTE: Duration = Duration::from_secs(60);
const HUNDRED: FixedWindow = FixedWindow::new(Quota::per_day(100));

fn hundred(server: RedisServer) -> Redis<str> {
    redis_limiter(server, "api", HUNDRED)
}

fn builder(server: &Server, limit: u64) -> RedisBuilder<str> {
    Redis::builder(server.open(), "api", FixedWindow::new(Quota::per_day(limit))).deadline(LONG_DEADLINE)
}

fn reservation(cost: u64, id: &str) -> AcquireOptions {
    AcquireOptions::cost(cost).id(id).repeats(100).expires_in(MINUTE).hold()
}

fn once(cost: u64, id: &str) -> AcquireOptions {
    AcquireOptions::cost(cost).once(id, 1, MINUTE)
}

async fn passes(limiter: &Redis<str>, key: &str, options: AcquireOptions) -> bool {
    acquire(limiter, key, options).await.expect("an answer").decision.is_allowed()
}

async fn left(limiter: &Redis<str>, key: &str) -> u64 {
    limiter.peek(key, AcquireOptions::cost(0)).await.expect("an answer").remaining().expect("a number")
}

/// Returns a time from one second to 24 hours, each power of two as often.
fn any_lifetime(random: &mut Random) -> Duration {
    Duration::from_millis(((1_000 + random.below(1_000)) << random.below(17)).min(86_400_000))
}

/// A key has 3,000 ids with any expiries. The script groups expiries, and the bound of groups is never reached.
#[tokio::test]
async fn reservation_ids_of_a_key_may_expire_at_any_times() {
    let (server, clock, mut random) =
        (Server::start(), ManualClock::at(Timestamp::from_micros(1 << 50)), Random::new(1));
    let limiter = builder(&server, 1_000_000).max_reservation_ids(3_000).clock_for_tests(clock.clone());
    let limiter = limiter.build().expect("limits");
    let mut results = HashMap::<_, u64>::new();
    for batch in 0..62 {
        clock.advance(Duration::from_micros(random.below(4_000)));
        let holds = (0..50).map(|number| {
            let id = format!("{}", 50 * batch + number);
            let options = AcquireOptions::cost(1).id(&id).expires_in(any_lifetime(&mut random));
            acquire(&limiter, "alice", options.hold())
        });
        for outcome in join_all(holds.collect::<Vec<_>>()).await {
            let decision = outcome.expect("an answer").decision;
            *results.entry((decision.is_allowed(), decision.has_too_many_ids())).or_default() += 1;
        }
    }
    assert_eq!(results, HashMap::from([((true, false), 3_000), ((false, true), 100)]));
    assert_eq!(left(&limiter, "alice").await, 1_000_000 - 3_000);
}

/// A hold expires at most a quarter of its time late.
#[tokio::test]
async fn reservation_id_expires_at_most_a_quarter_late() {
    let (server, clock, mut random) =
        (Server::start(), ManualClock::at(Timestamp::from_micros(1 << 50)), Random::new(1));
    let limiter = builder(&server, 100).hold_expiry(ONE_DAY).clock_for_tests(clock.clone()).build().expect("limits");
    for number in 0..150_u64 {
        clock.advance(Duration::from_micros(random.below(1 << 40)));
        let key = number.to_string();
        let lifetime = if number < 20 { Duration::from_millis(1 + number) } else { any_lifetime(&mut random) };
        let options = AcquireOptions::cost(1).id("a").expires_in(lifetime);
        assert!(limiter.hold(&key, options).await.expect("an answer").decision.is_allowed());
        clock.advance(lifetime.saturating_sub(Duration::from_micros(1)));
        assert!(limiter.hold(&key, options).await.expect("an answer").decision.is_repeat(), "{lifetime:?}");
        clock.advance(lifetime / 4 + Duration::from_micros(1));
        let error = limiter.hold(&key, options).await.expect_err("expired");
        assert!(error.is_already_settled(), "{lifetime:?}");
        // Remembered for as long again.
        clock.advance(lifetime.saturating_sub(lifetime / 4 + Duration::from_micros(1)));
        limiter.settle(&key, "a", 3).await.expect("a remembered id");
        assert_eq!(left(&limiter, &key).await, 97);
    }
}

/// Two processes: a hold, and requests that are repeated, one after the other and at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_are_those_of_all_processes() {
    let server = Server::start();
    let [here, there] = [(); 2].map(|()| hundred(server.open()));
    assert!(passes(&here, "bob", once(10, "a")).await && passes(&there, "bob", once(25, "a")).await);
    assert_eq!(left(&here, "bob").await, 75, "the difference");
    for id in 0..20 {
        let id = format!("{id}");
        let (a, b) = tokio::join!(passes(&here, "carol", once(2, &id)), passes(&there, "carol", once(2, &id)));
        assert!(a && b);
    }
    assert_eq!(left(&here, "carol").await, 60, "one of two is charged");
    // Concurrent repeats change what the other one was told.
    let many = AcquireOptions::cost(1).once("many", 50, MINUTE);
    let repeats = (0..50).map(|call| passes([&here, &there][call % 2], "dave", many));
    assert!(join_all(repeats).await.into_iter().all(|passes| passes));
    assert_eq!(left(&here, "dave").await, 99);

    assert!(passes(&here, "alice", reservation(40, "a")).await && passes(&there, "alice", reservation(40, "a")).await);
    assert_eq!(left(&there, "alice").await, 60, "held once");
    drop(here);
    there.settle("alice", "a", 7).await.expect("settled");
    there.settle("alice", "a", 90).await.expect("settled before");
    there.release("alice", "a").await.expect("settled before");
    assert!(there.settle("bob", "a", 7).await.expect_err("another key").is_unknown_id());
    assert_eq!(left(&there, "alice").await, 93);
}

/// A client whose replies are lost sends its calls until a reply arrives. It pays once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_are_charged_held_and_settled_once_if_replies_are_lost() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let behind = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
    let (limiter, direct) = (hundred(behind), hundred(server.open()));
    // Loses the next reply, and calls until an answer arrives. Adds whether a reply was lost.
    let lose_a_reply = async |lost: &mut u64, call: &dyn Fn() -> LimiterFuture<()>| {
        proxy.cut_next_reply();
        let (mut is_lost, until) = (false, Instant::now() + LONG_DEADLINE);
        // A cut connection fails the calls on it, and the calls until the next connection is open.
        while call().await.is_err() {
            is_lost = true;
            assert!(Instant::now() < until, "the proxy works again");
            sleep(Duration::from_millis(20)).await;
        }
        *lost += u64::from(is_lost);
    };
    let done = |key, options| {
        let call = limiter.acquire(key, options);
        LimiterFuture::pending(async move { call.await.map(drop) })
    };
    let (mut requests, mut holds, mut settlements, mut plain) = (0, 0, 0, 0);
    for number in 1..=12 {
        let id = format!("{number}");
        let request = AcquireOptions::cost(2).once(&id, 100, MINUTE);
        lose_a_reply(&mut requests, &|| done("once", request)).await;
        assert_eq!(left(&direct, "once").await, 100 - 2 * number);
        lose_a_reply(&mut holds, &|| done("held", reservation(5, &id))).await;
        assert_eq!(left(&direct, "held").await, 100 - 2 * (number - 1) - 5);
        lose_a_reply(&mut settlements, &|| limiter.settle("held", id.as_str(), 2)).await;
        assert_eq!(left(&direct, "held").await, 100 - 2 * number);
        lose_a_reply(&mut plain, &|| done("plain", AcquireOptions::cost(2))).await;
    }
    let lost = [requests, holds, settlements, plain];
    assert!(lost.iter().all(|lost| *lost > 6), "{lost:?}");
    assert!(left(&direct, "plain").await < 100 - 24, "without an id each call is charged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_work_on_every_node_of_a_cluster_while_a_slot_moves() {
    let cluster = Cluster::start();
    let one = redis_limiter::<str>(cluster.open(), "one", HUNDRED);
    let all = Limit::new("all", Gcra::new(Quota::per_day(1_000_000))).keyed_by(|_: &str| 0_u64);
    let two = redis_limiter::<str>(cluster.open(), "two", (all, Limit::new("key", HUNDRED)));
    let keys: Vec<_> = (0..40).map(|user| format!("user{user}")).collect();
    // A request that is charged once, and repeated after the move.
    let request = once(20, "a");
    for limiter in [&one, &two] {
        for key in &keys {
            for _ in 0..2 {
                assert!(passes(limiter, key, reservation(40, "a")).await);
            }
            assert!(passes(limiter, key, request).await);
        }
    }
    let name = one.redis_key("default", &keys[7]).expect("a limit");
    let from = cluster.first_master_of(&name);
    tokio::task::block_in_place(|| {
        cluster.migrate(cluster.slot(&name), from, (from + 1) % 3, Duration::from_millis(50));
    });
    for limiter in [&one, &two] {
        for key in &keys {
            limiter.settle(key, "a", 7).await.expect("settled");
            limiter.settle(key, "a", 7).await.expect("settled before");
            assert!(passes(limiter, key, request).await);
        }
    }
    assert_eq!(left(&one, &keys[7]).await, 73);
    let peeked = two.peek(&keys[7], AcquireOptions::cost(0).detail(Detail::All)).await.expect("an answer");
    assert_eq!(peeked.limits()[1].remaining(), 73);
}

/// Each key has so many ids, which take little memory and expire.
#[tokio::test]
async fn ids_take_bounded_memory_in_redis() {
    const MAX: u64 = 300;
    let server = Server::start();
    let limiter = builder(&server, 10_000).max_reservation_ids(usize::try_from(MAX).expect("small"));
    let limiter = limiter.build().expect("limits");
    let mut denied = 0;
    for id in 0..2 * MAX {
        let id = format!("{id}");
        assert!(passes(&limiter, "mallory", once(1, &id)).await, "a request is charged without its id");
        let decision = acquire(&limiter, "mallory", reservation(0, &id)).await.expect("an answer").decision;
        denied += u64::from(decision.has_too_many_ids());
    }
    assert_eq!((left(&limiter, "mallory").await, denied), (10_000 - 2 * MAX, MAX));
    for (id, is_repeat) in [(0, true), (MAX - 1, true), (MAX, false), (2 * MAX - 1, false)] {
        let before = left(&limiter, "mallory").await;
        assert!(passes(&limiter, "mallory", once(1, &format!("{id}"))).await);
        assert_eq!(left(&limiter, "mallory").await == before, is_repeat, "{id}");
    }
    assert!(passes(&limiter, "alice", reservation(1, "0")).await, "another key's ids are its own");
    let keys = server.keys();
    for (kind, count, longest) in [(":request~", MAX, 70_000), (":id~", MAX + 1, 140_000)] {
        let records: Vec<_> = keys.iter().filter(|key| key.contains(kind)).collect();
        assert_eq!(records.len() as u64, count, "{kind}");
        let bytes = server.number(&["MEMORY", "USAGE", records[0]]);
        println!("{bytes} bytes for each id, with a key of {} bytes", records[0].len());
        assert!(bytes < 300, "{bytes} bytes for {}", records[0]);
        for key in records {
            let ttl = server.number(&["PTTL", key]);
            assert!((1..=longest).contains(&ttl), "{key}: {ttl}");
        }
    }
    assert_eq!(keys.len() as u64, 2 * MAX + 1 + 3 + 2, "and the counts of ids, and the states of two keys");
}

/// Each operation is one call, but for the repeat of a request, whose cost only the server knows; and a decision without an
/// id reads no id.
#[tokio::test]
async fn ids_take_one_call_for_each_operation() {
    let server = Server::start();
    let limiter = hundred(server.open());
    limiter.health_check().await.expect("a server");
    assert!(
        passes(&limiter, "alice", once(1, "first")).await && passes(&limiter, "alice", reservation(1, "first")).await
    );
    let counts = || {
        let calls: HashMap<_, _> = calls(&server).into_iter().collect();
        ["EVALSHA", "GET", "MGET", "PSETEX", "SET"].map(|name| calls.get(name).copied().unwrap_or(0))
    };
    let mut before = counts();
    let mut since = || {
        let (now, last) = (counts(), before);
        before = now;
        [0, 1, 2, 3, 4].map(|index: usize| now[index] - last[index])
    };
    assert!(passes(&limiter, "alice", once(1, "a")).await);
    assert_eq!(since(), [1, 2, 1, 2, 1], "a request: the record and the counts are read and written");
    assert!(passes(&limiter, "alice", once(1, "a")).await);
    assert_eq!(since(), [2, 2, 2, 1, 0], "a repeat: its record is written, and no state");
    assert!(passes(&limiter, "alice", once(1, "a")).await);
    assert_eq!(since(), [1, 1, 1, 0, 1], "no repeat is left");
    for (what, reads) in [("a hold", [1, 2, 1]), ("a repeat", [1, 1, 1])] {
        assert!(passes(&limiter, "alice", reservation(10, "a")).await);
        assert_eq!(since()[..3], reads, "{what}");
    }
    limiter.settle("alice", "a", 10).await.expect("settled");
    assert_eq!(since()[..3], [1, 1, 1], "a settlement");
    assert!(passes(&limiter, "alice", AcquireOptions::cost(1)).await);
    assert!(since()[1] <= 1, "a decision reads the state only");
    let held = acquire(&limiter, "alice", once(1, "b").hold()).await.expect("an answer").held.expect("a guard");
    assert_eq!(since()[0], 1, "a hold of a request");
    held.settle(1).await.expect("settled");
    assert!(since()[0] <= 2, "its settlement, and the record");
}
