//! Leases at a fail-over: a hold survives as far as it was replicated, and a loss of data admits no more than documented.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_ratelimit::store::Lease;
use tower_ratelimit::{AcquireOptions, Decision, DecisionSource, Gcra, Quota, Redis, RedisServer};

use crate::fail_over::{FailOver, fail_over_tests};
use crate::helpers::{LONG_DEADLINE, acquire, redis_limiter};
use crate::process::wait_until;

const LIMIT: u64 = 4_000;
/// What all leases on a key hold at most.
const MAX_HELD: u64 = LIMIT / 4;
/// A quota that does not refill during a test.
const BUCKET: Gcra = Gcra::new(Quota::new(LIMIT, Duration::from_secs(100 * 86_400)));

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

/// A process has a lease when the master is killed. Then others take all that the new master admits, and the process
/// spends the rest of its lease.
async fn fail_over(pair: FailOver<'_>) {
    let FailOver { fault, is_lagging, master, replica, take_over, open, keys } = pair;
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
    take_over();
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
    sentinel_fail_over_to_a_lagging_replica_admits_at_most_a_share_more: with_sentinel, true;
}
