//! Leases beside administrative operations, cold keys and marks, and the waits of requests that are denied behind leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tower_ratelimit::observe::Event;
use tower_ratelimit::store::{IntoRedisLimits, Lease, RedisLimit};
use tower_ratelimit::{
    AcquireOptions, Clock as _, DecisionSource, Detail, FixedWindow, Gcra, Limit, LimitStatus, Limiter as _, Quota,
    Redis, RedisServer, SlidingLog, SlidingWindow,
};

use crate::helpers::{acquire, hold};
use crate::leases::{
    Admitted, DURATION, LIMIT, MAX_ROUNDS, QUOTA, acquire_many, clock, decide, direct, leased, pass, rest, until_leased,
};
use crate::proxy::Proxy;
use crate::server::Server;

/// The user's own limit, and one of all users.
fn user_and_all() -> impl IntoRedisLimits<str> {
    let all = Limit::new("all", FixedWindow::new(Quota::per_day(100_000))).keyed_by(|_: &str| ());
    (Limit::new("user", FixedWindow::new(QUOTA)), all)
}

async fn decide_one(limiter: &Redis<str>, key: &str) -> tower_ratelimit::Decision {
    decide(limiter, key, AcquireOptions::default()).await
}

/// A block or a changed usage stops the leased decisions on its keys within the duration, by the times of the decisions. The
/// block of one user's limit stops no others.
#[tokio::test]
async fn block_and_set_usage_stop_leases_within_the_duration() {
    for operation in ["block user", "set user", "set all"] {
        let server = Server::start();
        let limiter = leased(server.open(), user_and_all());
        for key in ["bob", "alice"] {
            until_leased(&limiter, key).await;
        }
        let changed = match operation {
            "block user" => limiter.block("user", "alice", Duration::from_secs(60)).await,
            "set user" => limiter.set_usage("user", "alice", LIMIT).await,
            _ => limiter.set_usage("all", "bob", 100_000).await,
        };
        changed.expect("an answer");
        let changed_at = clock().now();
        while clock().now().saturating_since(changed_at) < DURATION * 3 {
            let decision = decide_one(&limiter, "alice").await;
            if decision.is_allowed() {
                let late = decision.decided_at().saturating_since(changed_at);
                let is_in_time = decision.source() == DecisionSource::Lease && late <= DURATION;
                assert!(is_in_time, "{operation}: after {late:?}: {decision:?}");
            }
        }
        if operation != "set all" {
            until_leased(&limiter, "bob").await;
        }
    }
}

/// A key that all users share has one lease of each process.
#[tokio::test]
async fn shared_sub_key_has_one_lease_per_process() {
    let server = Server::start();
    let limiters = [leased(server.open(), user_and_all()), leased(server.open(), user_and_all())];
    for round in 0.. {
        assert!(round < MAX_ROUNDS, "leases of all at a time");
        let mut by_lease = 0;
        for limiter in &limiters {
            for user in ["alice", "bob", "carol"] {
                by_lease += u32::from(decide_one(limiter, user).await.source() == DecisionSource::Lease);
            }
        }
        if by_lease == 6 {
            break;
        }
    }
    // A window has five words. Behind them, the eleventh is the number of entries.
    let script = "return struct.unpack('<d', redis.call('GET', KEYS[1]), 121)";
    for limit in ["all", "user"] {
        let key = limiters[0].redis_key(limit, "alice").expect("a limit");
        assert_eq!(server.number(&["EVAL", script, "1", &key]), 2, "{limit}");
    }
}

/// Units that no decision could spend are not held: the users are cold, so their decisions are made in Redis.
#[tokio::test]
async fn cold_sub_keys_keep_shared_units_free() {
    let (server, reports) = (Server::start(), Arc::new(AtomicU64::new(0)));
    let seen = Arc::clone(&reports);
    let limiter =
        direct(server.open(), user_and_all()).lease(Lease::new(DURATION)).observe(move |event: &Event<'_>| {
            if let Event::LeaseRenewed { .. } = event {
                seen.fetch_add(1, Ordering::Relaxed);
            }
        });
    let limiter = limiter.build().expect("limits");
    for user in 0..300 {
        assert_eq!(decide_one(&limiter, &user.to_string()).await.source(), DecisionSource::Store);
    }
    assert_eq!(reports.load(Ordering::Relaxed), 0);
    // With a hot user, both limits are leased.
    until_leased(&limiter, "alice").await;
    assert_eq!(decide_one(&limiter, "alice").await.limits().len(), 1, "the most restrictive limit");
    let decision = decide(&limiter, "alice", AcquireOptions::default().detail(Detail::All)).await;
    assert_eq!(decision.source(), DecisionSource::Lease);
    let limits: Vec<_> = decision.limits().iter().map(|limit| (limit.name(), limit.limit())).collect();
    assert_eq!(limits, [("user", LIMIT), ("all", 100_000)]);
}

/// The decisions of both kinds together see the mark, also if another process has most of the usage.
#[tokio::test]
async fn leased_decisions_signal_the_mark_by_their_estimate() {
    let server = Server::start();
    let limits = || Limit::new("api", FixedWindow::new(Quota::per_day(4_000))).warn_at(0.5);
    let limiter = leased(server.open(), limits());
    until_leased(&limiter, "alice").await;
    let first = decide_one(&limiter, "alice").await;
    assert!(first.is_allowed() && !first.is_near_limit());
    let other = direct::<str>(server.open(), limits()).build().expect("limits");
    assert!(acquire(&other, "alice", AcquireOptions::cost(2_500)).await.expect("an answer").decision.is_allowed());
    let (mut crossed, mut is_near) = (Vec::new(), false);
    for _ in 0..400 {
        let decision = decide_one(&limiter, "alice").await;
        assert!(decision.is_allowed());
        if decision.limits().iter().any(LimitStatus::crossed_mark) {
            crossed.push(decision.source());
        }
        is_near = decision.is_near_limit();
    }
    assert_eq!(crossed, [DecisionSource::Lease], "after a report, once");
    assert!(is_near);
}

/// Each call reads a key once, also one whose held costs the script's fast path does not support.
async fn each_call_reads_a_held_key_once(limit: fn() -> RedisLimit<str>) {
    let server = Server::start();
    let holder = leased(server.open(), vec![limit()]);
    let other = direct(server.open(), vec![limit()]).build().expect("limits");
    until_leased(&holder, "alice").await;
    let held = hold(&other, "alice", 5).await;
    let counts = || ["get", "mget", "evalsha"].map(|name| server.number_of(&format!("cmdstat_{name}:calls=")));
    let before = counts();
    for _ in 0..50 {
        for limiter in [&holder, &other] {
            // No lease has so many units, nor has the key.
            for (cost, is_allowed) in [(LIMIT, false), (1, true)] {
                let decision = acquire(limiter, "alice", AcquireOptions::cost(cost)).await.expect("an answer").decision;
                assert_eq!(decision.is_allowed(), is_allowed, "{decision:?}");
            }
        }
    }
    let after = counts();
    held.release().await.expect("an answer");
    let [get, mget, calls] = [0, 1, 2].map(|index| after[index] - before[index]);
    println!("{calls} calls: {get} GET, {mget} MGET");
    assert!(calls >= 100, "{calls} calls: without decisions in Redis the test proves nothing");
    assert_eq!(get + mget, calls, "{get} GET, {mget} MGET");
}

#[tokio::test]
async fn each_call_reads_a_bucket_or_a_window_with_holds_once() {
    each_call_reads_a_held_key_once(|| RedisLimit::new(Gcra::new(QUOTA))).await;
    each_call_reads_a_held_key_once(|| RedisLimit::new(FixedWindow::new(QUOTA))).await;
}

/// A reset returns what was reported. What leases have spent since then is charged later.
#[tokio::test]
async fn reset_leaves_what_leases_hold() {
    let server = Server::start();
    let limiter = leased(server.open(), FixedWindow::new(QUOTA));
    let mut before = until_leased(&limiter, "alice").await;
    acquire_many(&limiter, "alice", 1_000, &mut before).await;
    limiter.reset("alice").await.expect("an answer");
    let mut after = Admitted::default();
    acquire_many(&limiter, "alice", 100, &mut after).await;
    limiter.close().await.expect("an answer");
    let left = rest(server.open(), FixedWindow::new(QUOTA), "alice").await;
    let charged = LIMIT - left;
    assert!(
        charged >= after.all() && charged <= after.all() + LIMIT / 4,
        "{charged} charged, {after:?} since the reset"
    );
}

/// The duration of leases behind which a request waits.
const HOLDING: Duration = Duration::from_millis(500);

fn holding(server: RedisServer, limit: RedisLimit<str>) -> Redis<str> {
    direct(server, vec![limit]).lease(Lease::new(HOLDING).max_share(0.9)).build().expect("limits")
}

/// A request that is denied because of another process's lease succeeds after its `retry_after`: whether that process
/// lives, and returns its units, or has gone, and they are charged.
async fn waits_behind_leases_suffice(algorithm: fn() -> RedisLimit<str>) {
    let (server, limit) = (Server::start(), 400);
    for is_dead in [false, true] {
        let key = if is_dead { "dead" } else { "living" };
        let proxy = Proxy::before(server.socket());
        let open = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
        let (holder, other) = (holding(open, algorithm()), holding(server.open(), algorithm()));
        // Without the lease, half of the limit is available.
        let options = AcquireOptions::cost(limit / 2);
        let denied = loop {
            other.reset(key).await.expect("an answer");
            until_leased(&holder, key).await;
            other.set_usage("default", key, limit / 2).await.expect("an answer");
            let decision = acquire(&other, key, options).await.expect("an answer").decision;
            if decision.is_denied_by_leases() {
                break decision;
            }
            assert!(decision.is_allowed(), "no lease: {decision:?}");
        };
        proxy.shut(is_dead);
        assert!(denied.is_estimate() && !denied.is_allowed(), "{denied:?}");
        let wait = denied.retry_after().expect("a wait");
        if is_dead {
            clock().advance(wait);
        } else {
            pass(wait, &holder, key).await;
        }
        let allowed = acquire(&other, key, options).await.expect("an answer").decision;
        assert!(allowed.is_allowed(), "{:?}, {key}: {denied:?} and then {allowed:?}", algorithm());
    }
}

#[tokio::test]
async fn waits_behind_leases_suffice_for_each_algorithm() {
    const QUOTA: Quota = Quota::new(400, Duration::from_secs(2));
    waits_behind_leases_suffice(|| RedisLimit::new(Gcra::new(Quota::per_second(400)))).await;
    waits_behind_leases_suffice(|| RedisLimit::new(FixedWindow::new(QUOTA))).await;
    waits_behind_leases_suffice(|| RedisLimit::new(SlidingWindow::new(QUOTA))).await;
    waits_behind_leases_suffice(|| RedisLimit::new(SlidingLog::new(QUOTA))).await;
}

/// A denial that leases have not caused is not counted as theirs.
#[tokio::test]
async fn denial_by_usage_is_not_one_by_leases() {
    let server = Server::start();
    let limiter = leased(server.open(), FixedWindow::new(QUOTA));
    until_leased(&limiter, "alice").await;
    let decide = async |cost| acquire(&limiter, "alice", AcquireOptions::cost(cost)).await.expect("an answer").decision;
    let by_usage = decide(LIMIT).await;
    assert!(!by_usage.is_allowed() && !by_usage.is_denied_by_leases(), "{by_usage:?}");
    let blocked = Duration::from_secs(60);
    limiter.block("default", "alice", blocked).await.expect("an answer");
    clock().advance(DURATION * 2);
    let by_block = decide(1).await;
    assert!(!by_block.is_allowed() && !by_block.is_denied_by_leases(), "{by_block:?}");
}
