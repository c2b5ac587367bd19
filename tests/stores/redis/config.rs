//! Limits from configuration in Redis, and their replacement while the limiter is used.

use std::time::Duration;

use tower_ratelimit::config::{KeyParts, Policy};
use tower_ratelimit::store::RedisLimit;
use tower_ratelimit::{AcquireOptions, Detail, FixedWindow, Gcra, Limit, Limiter, Memory, Quota, Redis, RedisServer};

use crate::helpers::{LONG_DEADLINE, acquire, hold, is_allowed, redis_limiter};
use crate::server::Server;

struct Caller {
    user: u64,
    tenant: &'static str,
}

const ALICE: Caller = Caller { user: 1, tenant: "acme" };

fn parts() -> KeyParts<Caller> {
    KeyParts::new().add("user", |caller: &Caller| caller.user).add("tenant", |caller: &Caller| caller.tenant)
}

fn policies(json: &str) -> Vec<Policy> {
    serde_json::from_str(json).expect("policies")
}

async fn remaining<Key: ?Sized + 'static>(limiter: &Redis<Key>, key: &Key) -> Option<u64> {
    acquire(limiter, key, AcquireOptions::default()).await.expect("a decision").decision.remaining()
}

const EVERY_ALGORITHM: &str = r#"[
    { "name": "gcra", "algorithm": "gcra", "quota": "10/h", "burst": 5, "by": "user" },
    { "name": "token", "algorithm": "token-bucket", "quota": "11/h", "by": "tenant" },
    { "name": "leaky", "algorithm": "leaky-bucket", "quota": "12/h", "by": "user" },
    { "name": "fixed", "algorithm": "fixed-window", "quota": "13/h", "by": "tenant" },
    { "name": "sliding", "algorithm": "sliding-window", "quota": "14/h", "by": "user" },
    { "name": "log", "algorithm": "sliding-log", "quota": "15/h", "by": "user" },
    { "name": "trial", "algorithm": "fixed-window", "quota": "1/h", "by": "user", "shadow": true }
]"#;

/// One configuration builds both limiters, and they decide alike.
#[tokio::test]
async fn policies_build_limits_for_memory_and_redis() {
    let server = Server::start();
    let policies = policies(EVERY_ALGORITHM);
    let shared = redis_limiter(server.open(), "api", parts().redis_limits(&policies).expect("limits"));
    let local = Memory::new(parts().limits(&policies).expect("limits"));
    for call in 0..7 {
        let in_redis = acquire(&shared, &ALICE, AcquireOptions::default()).await.expect("a decision").decision;
        let in_memory = local.check(&ALICE, AcquireOptions::default());
        assert_eq!(in_redis.is_allowed(), call < 5);
        assert_eq!(in_redis.is_allowed(), in_memory.is_allowed());
        assert_eq!(in_redis.remaining(), in_memory.remaining(), "call {call}");
        assert_eq!(in_redis.most_restrictive().map(|limit| limit.name().to_owned()), Some("gcra".to_owned()));
        let shadows = |decision: &tower_ratelimit::Decision| decision.shadow_denials().count();
        assert_eq!(shadows(&in_redis), shadows(&in_memory), "call {call}");
    }
}

/// Two sub-keys of one type, whose values are equal: in both stores the usage of one does not count for the other.
#[tokio::test]
async fn limit_that_counts_by_another_sub_key_starts_empty() {
    struct Caller(u64);

    let server = Server::start();
    let parts = KeyParts::new().add("user", |caller: &Caller| caller.0).add("team", |caller: &Caller| caller.0);
    let by =
        |by: &str| policies(&format!(r#"[{{ "name": "calls", "algorithm": "gcra", "quota": "5/h", "by": "{by}" }}]"#));
    let shared = redis_limiter(server.open(), "api", parts.redis_limits(&by("user")).expect("limits"));
    let local = Memory::new(parts.limits(&by("user")).expect("limits"));
    for (sub_key, expected) in [("user", [4, 3]), ("team", [4, 3]), ("team", [2, 1])] {
        shared.replace(parts.redis_limits(&by(sub_key)).expect("limits")).expect("replaced");
        local.replace(parts.limits(&by(sub_key)).expect("limits")).expect("replaced");
        for remains in expected {
            assert_eq!(remaining(&shared, &Caller(7)).await, Some(remains), "by {sub_key}");
            assert_eq!(local.check(&Caller(7), AcquireOptions::default()).remaining(), Some(remains), "by {sub_key}");
        }
    }
}

#[tokio::test]
async fn replace_keeps_usage_and_reaches_all_clones() {
    let server = Server::start();
    let limit = |limit: u64| vec![RedisLimit::new(Limit::new("hour", FixedWindow::new(Quota::per_hour(limit))))];
    let limiter = redis_limiter::<u64>(server.open(), "api", limit(3));
    let (clone, other_process) = (limiter.clone(), redis_limiter::<u64>(server.open(), "api", limit(3)));
    assert_eq!(remaining(&limiter, &7).await, Some(2));
    assert_eq!(remaining(&clone, &7).await, Some(1));

    limiter.replace(limit(100)).expect("a raised limit");
    assert_eq!(remaining(&clone, &7).await, Some(97), "two were used before");
    assert_eq!(remaining(&other_process, &7).await, Some(0), "the usage is shared, the limit of three is its own");

    clone.replace(limit(2)).expect("a lowered limit");
    assert!(!is_allowed(&limiter, &7).await);
    assert_eq!(remaining(&limiter, &8).await, Some(1));
}

#[tokio::test]
async fn replace_with_invalid_limits_is_an_error_and_changes_nothing() {
    let server = Server::start();
    let limiter = redis_limiter::<u64>(server.open(), "api", FixedWindow::new(Quota::per_hour(3)));
    let same_names = (Limit::new("a", Gcra::new(Quota::per_hour(1))), Limit::new("a", Gcra::new(Quota::per_hour(2))));
    for error in [
        limiter.replace(Vec::new()).expect_err("no limits"),
        limiter.replace(same_names).expect_err("two limits of one name"),
    ] {
        assert!(error.is_config(), "{error}");
    }
    assert_eq!(remaining(&limiter, &7).await, Some(2));
}

/// A hold that began before the replacement is settled after it.
#[tokio::test]
async fn hold_is_settled_after_replace() {
    let server = Server::start();
    let limiter = redis_limiter::<u64>(server.open(), "api", FixedWindow::new(Quota::per_hour(10)));
    let held = hold(&limiter, &7, 5).await;
    limiter.replace(FixedWindow::new(Quota::per_hour(20))).expect("limits");
    assert_eq!(remaining(&limiter, &7).await, Some(14), "five are held, one is charged");
    held.settle(2).await.expect("settled");
    assert_eq!(remaining(&limiter, &7).await, Some(16));
}

/// The rotated secret applies to the limits that replace the earlier ones.
#[tokio::test]
async fn replace_keeps_the_rotated_secret() {
    let server = Server::start();
    let builder = Redis::<u64>::builder(server.open(), "api", FixedWindow::new(Quota::per_hour(3)));
    let limiter = builder.hash_keys(*b"first-secret-1234").build().expect("a limiter");
    let first = limiter.redis_key("default", &7).expect("a key");
    limiter.rotate_secret(*b"second-secret-123").expect("a new secret");
    let second = limiter.redis_key("default", &7).expect("a key");
    limiter.replace(FixedWindow::new(Quota::per_hour(5))).expect("limits");
    assert_ne!(first, second);
    assert_eq!(limiter.redis_key("default", &7).expect("a key"), second);
}

/// More replacements than a key may have sessions, each while a hold of every earlier generation lasts.
#[tokio::test]
async fn replace_keeps_sessions() {
    let server = Server::start();
    let limits = |limit: u64| {
        (
            Limit::new("first", FixedWindow::new(Quota::per_day(limit))),
            Limit::new("second", Gcra::new(Quota::per_day(2 * limit))),
        )
    };
    let limiter = redis_limiter::<u64>(server.open(), "api", limits(1_000));
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut held = vec![hold(&limiter, &7, 1).await];
    let (connections, tasks_before) = (server.number_of("total_connections_received:"), tasks());
    let lengths = |server: &Server| -> Vec<i64> {
        let mut lengths: Vec<_> = server.keys().iter().map(|key| server.number(&["STRLEN", key])).collect();
        lengths.sort_unstable();
        lengths
    };
    let lengths_before = lengths(&server);
    for generation in 1..=70 {
        limiter.replace(limits(1_000 + generation)).expect("limits");
        held.push(hold(&limiter, &7, 1).await);
    }
    assert_eq!(tasks(), tasks_before);
    assert_eq!(lengths(&server), lengths_before, "one entry in each key");
    // The limiter's own connection, and those of this test: `number_of`, and two times `keys` and the lengths.
    assert_eq!(server.number_of("total_connections_received:") - connections, 7, "the limiter opens none");
    for (index, held) in held.into_iter().enumerate() {
        held.settle(u64::from(index.is_multiple_of(2))).await.expect("settled");
    }
    let peeked = limiter.peek(&7, AcquireOptions::cost(0)).await.expect("an answer");
    assert_eq!(peeked.remaining(), Some(1_070 - 36));
}

/// A hold of a limit that is removed, renamed or of another kind is settled on its own key, by its own script.
#[tokio::test]
async fn holds_of_removed_limits_are_settled() {
    let server = Server::start();
    let day = Quota::per_day(100);
    let both = || (Limit::new("a", FixedWindow::new(day)), Limit::new("b", Gcra::new(day)));
    let limiter = redis_limiter::<u64>(server.open(), "api", both());
    let first = hold(&limiter, &7, 10).await;
    limiter.replace(Limit::new("b", Gcra::new(day))).expect("limits");
    let second = hold(&limiter, &7, 5).await;
    limiter.replace((Limit::new("b", FixedWindow::new(day)), Limit::new("c", Gcra::new(day)))).expect("limits");
    let third = hold(&limiter, &7, 3).await;
    first.settle(7).await.expect("settled");
    third.settle(2).await.expect("settled");
    second.settle(1).await.expect("settled");
    limiter.replace(both()).expect("limits");
    let peeked = limiter.peek(&7, AcquireOptions::cost(0).detail(Detail::All)).await.expect("an answer");
    let used: Vec<_> = peeked.limits().iter().map(|limit| 100 - limit.remaining()).collect();
    assert_eq!(used, [7, 8]);
}

#[test]
fn invalid_configuration_is_a_build_error() {
    let server = RedisServer::open("redis://127.0.0.1:1").expect("an address");
    let gcra = || Gcra::new(Quota::per_second(1));
    let build = |name: &str, limits: Vec<RedisLimit<str>>, deadline: Duration| {
        Redis::builder(server.clone(), name, limits).deadline(deadline).build().map(|_| ())
    };
    let limit = |name: &'static str| RedisLimit::new(Limit::new(name, gcra()));
    assert!(build("api", vec![limit("a"), limit("b")], LONG_DEADLINE).is_ok());
    for invalid in [
        build("", vec![limit("a")], LONG_DEADLINE),
        build("api", vec![], LONG_DEADLINE),
        build("api", vec![limit("a"), limit("a")], LONG_DEADLINE),
        build("api", vec![limit("a")], Duration::ZERO),
        build("api", vec![limit("a")], Duration::MAX),
    ] {
        assert!(invalid.expect_err("invalid configuration").is_config());
    }
}
