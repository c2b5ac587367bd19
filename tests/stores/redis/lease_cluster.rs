//! Leases in a cluster and with Sentinel: a hold lives with its key, moves with its slot, and survives a fail-over as
//! far as it was replicated. A loss of data admits no more than documented.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_ratelimit::store::Lease;
use tower_ratelimit::{AcquireOptions, Decision, DecisionSource, Gcra, Limiter as _, Quota, Redis, RedisServer};

use crate::cluster_server::{Cluster, MASTERS};
use crate::fail_over::{FailOver, fail_over_tests};
use crate::helpers::{LONG_DEADLINE, acquire, redis_limiter};
use crate::process::wait_until;
use crate::server::Server;

const LIMIT: u64 = 4_000;
/// What all leases on a key hold at most.
const MAX_HELD: u64 = LIMIT / 4;
/// A quota that does not refill during a test.
const BUCKET: Gcra = Gcra::new(Quota::per_day(LIMIT));

fn leased(server: RedisServer, duration: Duration) -> Redis<str> {
    Redis::builder(server, "api", BUCKET).lease(Lease::new(duration)).deadline(LONG_DEADLINE).build().expect("limits")
}

/// Acquires. Tries again while no master is known: such a decision was not sent, so nothing is charged.
async fn decide(limiter: &Redis<str>, key: &str, cost: u64) -> Decision {
    let began = Instant::now();
    loop {
        match acquire(limiter, key, AcquireOptions::cost(cost)).await {
            Ok(outcome) => return outcome.decision,
            Err(error) => assert!(error.is_unavailable() && began.elapsed() < LONG_DEADLINE * 2, "{error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

fn is_by_lease(decision: &Decision) -> bool {
    decision.is_allowed() && decision.source() == DecisionSource::Lease
}

/// Acquires until a decision comes from a lease. Returns what was admitted, the leased decision included.
async fn until_leased(limiter: &Redis<str>, key: &str) -> u64 {
    let began = Instant::now();
    for admitted in 1..LIMIT {
        let decision = decide(limiter, key, 1).await;
        assert!(decision.is_allowed(), "denied before there was a lease: {decision:?}");
        if is_by_lease(&decision) {
            return admitted;
        }
        assert!(began.elapsed() < LONG_DEADLINE, "no lease");
        // Otherwise the limit would be exhausted before the first lease.
        sleep(Duration::from_millis(10)).await;
    }
    panic!("no lease");
}

/// Takes all that Redis admits without leases, and returns how much that is.
async fn take_rest(direct: &Redis<str>, key: &str) -> u64 {
    let mut admitted = 0;
    for cost in [100, 10, 1] {
        while decide(direct, key, cost).await.is_allowed() {
            admitted += cost;
        }
    }
    admitted
}

/// Spends the rest of a lease, and returns how much that is.
async fn spend_lease(holder: &Redis<str>, key: &str) -> u64 {
    let mut spent = 0;
    while is_by_lease(&decide(holder, key, 1).await) {
        spent += 1;
    }
    spent
}

/// A process holds a lease, others take the rest, and the server loses its data. Then the others take a whole bucket, and
/// the process spends its lease.
#[tokio::test]
async fn flush_loses_the_usage_and_the_leases() {
    let server = Server::start();
    let (holder, direct) =
        (leased(server.open(), Duration::from_secs(20)), redis_limiter::<str>(server.open(), "api", BUCKET));
    let first = until_leased(&holder, "alice").await + take_rest(&direct, "alice").await;
    assert!(server.command(&["FLUSHALL"]).starts_with("+OK"));
    let second = take_rest(&direct, "alice").await;
    let by_lease = spend_lease(&holder, "alice").await;
    println!("| a flush | {first} before, {second} after, {by_lease} by the lease | of {LIMIT} |");
    assert_eq!(second, LIMIT, "the flush loses the usage");
    assert!(by_lease > 0, "the test proves nothing");
    assert!(first + by_lease <= LIMIT && by_lease <= MAX_HELD);
}

/// Redis stores a hold in the value of its key, so both are on one node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_lives_with_its_key() {
    let cluster = Cluster::start();
    let limiter = leased(cluster.open(), Duration::from_secs(2));
    let direct = redis_limiter::<str>(cluster.open(), "api", BUCKET);
    let node_of = |key: &str| cluster.first_master_of(&limiter.redis_key("default", key).expect("a limit"));
    for node in 0..MASTERS {
        let key = (0..100_000).map(|user| format!("user{user}")).find(|key| node_of(key) == node).expect("a key");
        let admitted = until_leased(&limiter, &key).await;
        assert_eq!(cluster.nodes[node].keys(), [limiter.redis_key("default", &key).expect("a limit")]);
        let peeked = direct.peek(&key, AcquireOptions::cost(0)).await.expect("an answer");
        let free = peeked.remaining().expect("a figure");
        assert!(free < LIMIT - admitted, "{free} of {LIMIT} after {admitted}: nothing is held");
    }
    limiter.close().await.expect("an answer");
}

/// Two processes spend leases on one key while its slot moves from node to node. Every unit is charged once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slot_loses_no_lease() {
    let cluster = Cluster::start();
    let limiters = [(); 2].map(|()| leased(cluster.open(), Duration::from_secs(6)));
    let key = limiters[0].redis_key("default", "hot").expect("a limit");
    let (slot, start) = (cluster.slot(&key), cluster.first_master_of(&key));
    let moves = Arc::new(AtomicUsize::new(0));
    let moving = {
        let moves = Arc::clone(&moves);
        tokio::task::spawn_blocking(move || {
            let mut at = start;
            for _ in 0..7 {
                cluster.migrate(slot, at, (at + 1) % MASTERS, Duration::from_millis(10));
                at = (at + 1) % MASTERS;
                moves.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(500));
            }
            cluster
        })
    };
    let (mut direct, mut by_lease, mut after_moves) = (0, 0, 0);
    while !moving.is_finished() {
        for limiter in &limiters {
            let decision = decide(limiter, "hot", 1).await;
            by_lease += u64::from(is_by_lease(&decision));
            after_moves += u64::from(is_by_lease(&decision) && moves.load(Ordering::SeqCst) >= 5);
            direct += u64::from(decision.is_allowed() && !is_by_lease(&decision));
        }
        sleep(Duration::from_millis(10)).await;
    }
    let cluster = moving.await.expect("moved");
    assert!(after_moves > 0, "{direct} direct, {by_lease} by leases, none after five moves");
    for limiter in &limiters {
        limiter.close().await.expect("an answer");
    }
    let rest = take_rest(&redis_limiter::<str>(cluster.open(), "api", BUCKET), "hot").await;
    println!("| a slot moved 7 times | {direct} direct, {by_lease} by leases, {rest} left of {LIMIT} |");
    assert_eq!(direct + by_lease + rest, LIMIT, "{direct} direct, {by_lease} by leases, {rest} left");
}

/// A process has a lease when the master is killed. Then others take all that the new master admits, and the process
/// spends the rest of its lease.
async fn fail_over(pair: FailOver<'_>) {
    let FailOver { fault, is_lagging, master, replica, open, keys } = pair;
    let key = &keys[0];
    let (holder, direct) = (leased(open.clone(), Duration::from_secs(50)), redis_limiter::<str>(open, "api", BUCKET));
    let mut admitted = take_some(&direct, key, 100).await;
    wait_until("the replica has the first charges", || replica.offset() >= master.offset());
    if is_lagging {
        replica.fall_behind();
    }
    let unreplicated = until_leased(&holder, key).await;
    admitted += unreplicated;
    if !is_lagging {
        wait_until("the replica has the lease", || replica.offset() >= master.offset());
    }
    master.kill();
    for _ in 0..100 {
        // Without Redis, the process spends its lease.
        assert!(is_by_lease(&decide(&holder, key, 1).await));
        admitted += 1;
    }
    wait_until("the replica has taken over", || replica.command(&["ROLE"]).contains("master"));
    let taken = take_rest(&direct, key).await;
    let by_lease = spend_lease(&holder, key).await;
    holder.close().await.expect("an answer");
    let all = admitted + taken + by_lease + take_rest(&direct, key).await;
    println!(
        "| {fault:<40} | {unreplicated:>4} admitted before the end, {taken:>4} by the new master, {by_lease:>4} by the \
         lease | {all} of {LIMIT} |"
    );
    assert!(by_lease > 0, "the lease was not spent after the fail-over");
    if is_lagging {
        assert!(all <= LIMIT + unreplicated + MAX_HELD, "{all}, of {unreplicated} without replication");
        assert!(all > LIMIT, "nothing was lost, so the test proves nothing");
    } else {
        assert_eq!(all, LIMIT, "all was replicated, so nothing is lost, and nothing is admitted twice");
    }
}

async fn take_some(direct: &Redis<str>, key: &str, count: u64) -> u64 {
    assert!(decide(direct, key, count).await.is_allowed());
    count
}

fail_over_tests! {
    fail_over, |open| vec![redis_limiter(open.clone(), "api", BUCKET)];
    cluster_fail_over_keeps_a_replicated_lease: in_a_cluster, false;
    cluster_fail_over_to_a_lagging_replica_admits_at_most_a_share_more: in_a_cluster, true;
    sentinel_fail_over_keeps_a_replicated_lease: with_sentinel, false;
    sentinel_fail_over_to_a_lagging_replica_admits_at_most_a_share_more: with_sentinel, true;
}
