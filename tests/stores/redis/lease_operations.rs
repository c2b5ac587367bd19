//! Leases beside holds and administrative operations, and the waits of requests that are denied behind leases.

use std::time::Duration;

use tower_ratelimit::algorithm::LuaAlgorithm;
use tower_ratelimit::limiter::Reservation;
use tower_ratelimit::store::{IntoRedisLimits, Lease};
use tower_ratelimit::{
    AcquireOptions, DecisionSource, Error, FixedWindow, Gcra, Limit, Limiter, Quota, Redis, RedisServer, SlidingLog,
    SlidingWindow,
};

use crate::helpers::{acquire, hold};
use crate::leases::{
    Admitted, DURATION, LIMIT, QUOTA, acquire_many, clock, direct, leased, leased_decisions_end, pass, rest,
    until_leased,
};
use crate::proxy::Proxy;
use crate::server::Server;

/// The key's own limit, and one of all keys.
fn two() -> impl IntoRedisLimits<str> {
    let all = Limit::new("all", FixedWindow::new(Quota::per_day(100_000))).keyed_by(|_: &str| ());
    (Limit::new("user", FixedWindow::new(QUOTA)), all)
}

/// Held costs are settled exactly beside leases on the same keys.
#[tokio::test]
async fn holds_and_reservations_settle_beside_leases() {
    let server = Server::start();
    let limiter = leased(server.open(), two());
    let mut admitted = until_leased(&limiter, "alice").await;
    let held = hold(&limiter, "alice", 50).await;
    let reserve = Reservation::reserve(&limiter, "alice", AcquireOptions::cost(30));
    let (reservation, decision) = reserve.await.expect("an answer");
    assert_eq!(decision.source(), DecisionSource::Store);
    acquire_many(&limiter, "alice", 300, &mut admitted).await;
    held.settle(20).await.expect("an answer");
    let mut reservation = reservation.expect("room");
    reservation.spend(7);
    reservation.settle(7).await.expect("an answer");
    // A surcharge, and a release.
    hold(&limiter, "alice", 5).await.settle(9).await.expect("an answer");
    hold(&limiter, "alice", 5).await.release().await.expect("an answer");
    acquire_many(&limiter, "alice", 300, &mut admitted).await;
    assert!(admitted.leased > 0);
    limiter.close().await.expect("an answer");
    assert_eq!(rest(server.open(), two(), "alice").await, LIMIT - admitted.all() - 20 - 7 - 9, "{admitted:?}");
}

/// Requires that an operation stops the leased decisions on alice's keys within the duration. Returns the limiter.
async fn operation_stops_leases(
    server: &Server,
    operate: impl AsyncFnOnce(&Redis<str>) -> Result<(), Error>,
) -> Redis<str> {
    let limiter = leased(server.open(), two());
    for key in ["bob", "alice"] {
        until_leased(&limiter, key).await;
    }
    operate(&limiter).await.expect("an answer");
    leased_decisions_end(&limiter).await;
    limiter
}

/// A block of one limit stops the leased decisions of its key, and no others.
#[tokio::test]
async fn block_of_one_limit_stops_its_key_only() {
    let server = Server::start();
    let block = async |limiter: &Redis<str>| limiter.block("user", "alice", Duration::from_secs(60)).await;
    until_leased(&operation_stops_leases(&server, block).await, "bob").await;
}

#[tokio::test]
async fn set_usage_of_a_shared_limit_stops_all_keys() {
    let server = Server::start();
    operation_stops_leases(&server, async |limiter| limiter.set_usage("all", "bob", 100_000).await).await;
}

/// Each call reads a key once, also one whose held costs the script's fast path does not support.
async fn each_call_reads_a_held_key_once(algorithm: impl LuaAlgorithm + Clone) {
    let server = Server::start();
    let holder = leased(server.open(), algorithm.clone());
    let other = direct::<str>(server.open(), algorithm).build().expect("limits");
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
async fn each_call_reads_a_bucket_with_holds_once() {
    each_call_reads_a_held_key_once(Gcra::new(QUOTA)).await;
}

#[tokio::test]
async fn each_call_reads_a_window_with_holds_once() {
    each_call_reads_a_held_key_once(FixedWindow::new(QUOTA)).await;
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

/// Replaced limits decide at once in the same process. The leases under the earlier ones are released.
#[tokio::test]
async fn replaced_limits_decide_at_once() {
    let server = Server::start();
    let limiter = leased(server.open(), FixedWindow::new(QUOTA));
    let mut admitted = until_leased(&limiter, "alice").await;
    acquire_many(&limiter, "alice", 200, &mut admitted).await;
    let small = || FixedWindow::new(Quota::per_day(100));
    limiter.replace(small()).expect("limits");
    let denied = acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision;
    assert!(!denied.is_allowed() && denied.source() == DecisionSource::Store, "{denied:?}");
    let large = || FixedWindow::new(Quota::per_day(2 * LIMIT));
    limiter.replace(large()).expect("limits");
    acquire_many(&limiter, "alice", 2 * LIMIT, &mut admitted).await;
    limiter.close().await.expect("an answer");
    acquire_many(&limiter, "alice", 2 * LIMIT, &mut admitted).await;
    assert_eq!(admitted.all(), 2 * LIMIT, "{admitted:?}");
}

/// The duration of leases behind which a request waits.
const HOLDING: Duration = Duration::from_millis(500);

fn holding(server: RedisServer, limits: impl IntoRedisLimits<str>) -> Redis<str> {
    direct(server, limits).lease(Lease::new(HOLDING).max_share(0.9)).build().expect("limits")
}

/// A request that is denied because of another process's lease succeeds after its `retry_after`: whether that process
/// lives, and returns its units, or has gone, and they are charged.
async fn waits_behind_leases_suffice(algorithm: impl LuaAlgorithm + Clone, limit: u64) {
    let server = Server::start();
    for is_dead in [false, true] {
        let key = if is_dead { "dead" } else { "living" };
        let proxy = Proxy::before(server.socket());
        let open = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
        let (holder, other) = (holding(open, algorithm.clone()), holding(server.open(), algorithm.clone()));
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
        assert!(allowed.is_allowed(), "{algorithm:?}, {key}: {denied:?} and then {allowed:?}");
    }
}

#[tokio::test]
async fn waits_behind_leases_suffice_for_buckets() {
    waits_behind_leases_suffice(Gcra::new(Quota::per_second(400)), 400).await;
}

#[tokio::test]
async fn waits_behind_leases_suffice_for_windows() {
    waits_behind_leases_suffice(FixedWindow::new(Quota::new(400, Duration::from_secs(2))), 400).await;
}

#[tokio::test]
async fn waits_behind_leases_suffice_for_sliding_windows() {
    waits_behind_leases_suffice(SlidingWindow::new(Quota::new(400, Duration::from_secs(2))), 400).await;
}

#[tokio::test]
async fn waits_behind_leases_suffice_for_logs() {
    waits_behind_leases_suffice(SlidingLog::new(Quota::new(400, Duration::from_secs(2))), 400).await;
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
