//! After a fail-over, over-admission is at most the charges that were not replicated.
//!
//! The replication offsets of both nodes bound these charges. Each test prints one line of a table (`--nocapture`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_ratelimit::{AcquireOptions, FixedWindow, Quota, Redis, RedisServer};

use crate::cluster_server::{Cluster, MASTERS};
use crate::helpers::{LONG_DEADLINE, acquire, redis_limiter};
use crate::process::{TIMEOUT, wait_until};
use crate::sentinel_server::{SentinelDeployment, fail_over};
use crate::server::Server;

const KEYS: usize = 16;
/// The limit of each key. The requests before the fail-over use a part of it, and the new master admits the rest.
const LIMIT: u64 = 1_500;

/// A master that is killed, the replica that takes over, and keys of theirs.
pub(crate) struct FailOver<'a> {
    pub(crate) fault: &'a str,
    pub(crate) is_lagging: bool,
    pub(crate) master: &'a mut Server,
    pub(crate) replica: &'a Server,
    /// Makes the replica the master.
    pub(crate) take_over: &'a dyn Fn(),
    pub(crate) open: RedisServer,
    pub(crate) keys: Vec<String>,
}

/// Runs a test on a master of a cluster. The keys are those that this node has for each of the limiters.
pub(crate) async fn in_a_cluster(
    run: impl AsyncFnOnce(FailOver<'_>),
    limiters: impl FnOnce(&RedisServer) -> Vec<Redis<str>>,
    is_lagging: bool,
) {
    let mut cluster = Cluster::with_replicas();
    let open = cluster.open();
    let limiters = limiters(&open);
    let is_there = |key: &String| {
        let mut names = limiters.iter().map(|limiter| limiter.redis_key("default", key).expect("a limit"));
        names.all(|name| cluster.first_master_of(&name) == 0)
    };
    let keys = (1_000..).map(|user| format!("user{user}")).filter(is_there).take(KEYS).collect();
    let fault = if is_lagging { "a cluster, a lagging replica, kill -9" } else { "a cluster, kill -9" };
    let (masters, replicas) = cluster.nodes.split_at_mut(MASTERS);
    let (master, replica) = (&mut masters[0], &replicas[0]);
    run(FailOver { fault, is_lagging, master, replica, take_over: &|| replica.take_over(), open, keys }).await;
}

/// Runs a test on the master that three Sentinels watch.
pub(crate) async fn with_sentinel(
    run: impl AsyncFnOnce(FailOver<'_>),
    _: impl FnOnce(&RedisServer) -> Vec<Redis<str>>,
    is_lagging: bool,
) {
    let watched = SentinelDeployment::start();
    let (open, keys) = (watched.open(), (1_000..).map(|user| format!("user{user}")).take(KEYS).collect());
    let fault = if is_lagging { "Sentinel, a lagging replica, kill -9" } else { "Sentinel, kill -9" };
    let SentinelDeployment { sentinels, mut master, replica } = watched;
    let take_over = || fail_over(&sentinels[0], &replica);
    run(FailOver { fault, is_lagging, master: &mut master, replica: &replica, take_over: &take_over, open, keys })
        .await;
}

/// Defines tests: each runs a function in a deployment, with a replica that lags or not.
macro_rules! fail_over_tests {
    ($run:expr, $limiters:expr; $($test:ident: $deployment:ident, $is_lagging:literal;)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            $crate::fail_over::$deployment($run, $limiters, $is_lagging).await;
        }
    )+};
}

pub(crate) use fail_over_tests;

impl Server {
    /// The replication offset.
    pub(crate) fn offset(&self) -> u64 {
        self.number_of("master_repl_offset:")
    }
}

/// The minimum number of bytes that a charge adds to the stream, measured without other commands.
async fn least_bytes(limiter: &Redis<str>, master: &Server, key: &str) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..20 {
        let before = master.offset();
        assert!(acquire(limiter, key, AcquireOptions::default()).await.expect("an answer").decision.is_allowed());
        least = least.min(master.offset() - before);
    }
    assert!(least > key.len() as u64, "{least}: a charge writes at least its key");
    least
}

async fn over_admission(pair: FailOver<'_>) {
    let FailOver { fault, is_lagging, master, replica, take_over, open, keys } = pair;
    let limits = FixedWindow::new(Quota::per_day(LIMIT));
    // Keys as long as those of the load.
    let probe = redis_limiter(open.clone(), "lost0", limits);
    probe.health_check().await.expect("a working master");
    let least = least_bytes(&probe, master, &keys[0]).await;
    let limiter = redis_limiter(open, "lost1", limits);
    let read_at = Arc::new(AtomicU64::new(u64::MAX));
    let began = Instant::now();
    let now = move || u64::try_from(began.elapsed().as_micros()).expect("soon");
    let throttled = Arc::new(AtomicBool::new(true));
    let mut load = JoinSet::new();
    for key in keys {
        // One request at a time for each key, so each charge is a write of its own.
        let (limiter, read_at, throttled) = (limiter.clone(), Arc::clone(&read_at), Arc::clone(&throttled));
        load.spawn(async move {
            let (mut allowed, mut after_reading, mut last_failure) = (0, 0, 0);
            loop {
                match acquire(&limiter, key.as_str(), AcquireOptions::default()).await {
                    Ok(outcome) if outcome.decision.is_allowed() => {
                        allowed += 1;
                        // Calls fail until the replica takes over. Answers of the replica count as well.
                        after_reading += u64::from(now() > read_at.load(Ordering::SeqCst) && last_failure == 0);
                    }
                    Ok(_) => return (allowed, after_reading, last_failure),
                    Err(error) => {
                        assert!(error.is_unavailable(), "{error:?}");
                        last_failure = now();
                        assert!(began.elapsed() < TIMEOUT, "service does not resume: {error}");
                        // A call that fails immediately does not yield.
                        sleep(Duration::from_millis(2)).await;
                    }
                }
                if throttled.load(Ordering::SeqCst) {
                    sleep(Duration::from_millis(2)).await;
                }
            }
        });
    }
    sleep(Duration::from_millis(300)).await;
    if is_lagging {
        replica.fall_behind();
        let cut = master.offset();
        // Many more charges than calls under way, which are not answered.
        wait_until("charges that the replica lacks", || master.offset() > cut + least * 10 * KEYS as u64);
    }
    // The offset covers every answer before this. Later answers are counted separately.
    read_at.store(now(), Ordering::SeqCst);
    let at_death = master.offset();
    master.kill();
    let killed_at = now();
    take_over();
    // From here on the replica's offset is its own.
    let taken_over = replica.number_of("second_repl_offset:") - 1;
    throttled.store(false, Ordering::SeqCst);
    let done = tokio::time::timeout(LONG_DEADLINE * 2, load.join_all()).await.expect("every key is exhausted");
    let allowed: u64 = done.iter().map(|(allowed, ..)| allowed).sum();
    let unread: u64 = done.iter().map(|(_, after_reading, _)| after_reading).sum();
    let resumed =
        done.iter().map(|(.., last_failure)| *last_failure).max().unwrap_or_default().saturating_sub(killed_at);
    let quota = LIMIT * KEYS as u64;
    let lost = at_death.saturating_sub(taken_over);
    let bound = lost / least + unread;
    println!(
        "| {fault:<42} | {lost:>6} bytes lost, min. {least} per charge: {:>4}, {unread:>3} since: at most {bound:>4} too many \
         | allowed {allowed} of {quota}: {:>4} too many | last failure after {:>7.1?} |",
        lost / least,
        allowed.cast_signed() - quota.cast_signed(),
        Duration::from_micros(resumed),
    );
    assert!(allowed <= quota + bound, "{allowed} of {quota}, at most {bound} more");
    if is_lagging {
        assert!(allowed > quota, "no charge was lost, so the test proves nothing");
    }
}

fn limiters(open: &RedisServer) -> Vec<Redis<str>> {
    let limits = || FixedWindow::new(Quota::per_day(LIMIT));
    ["lost0", "lost1"].map(|name| Redis::new(open.clone(), name, limits())).into()
}

fail_over_tests! {
    over_admission, limiters;
    cluster_fail_over_admits_at_most_the_unreplicated_charges_again: in_a_cluster, false;
    sentinel_fail_over_to_a_lagging_replica_admits_at_most_the_unreplicated_charges_again: with_sentinel, true;
}

/// `block_on` for each call: nothing drives a task in between, and a call to a dead node fails at once.
#[test]
fn undriven_runtime_finds_the_new_master() {
    let mut cluster = Cluster::with_replicas();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let limiter = redis_limiter::<str>(cluster.open(), "undriven", FixedWindow::new(Quota::per_day(1_000_000)));
    let is_there = |user: &String| {
        let key = limiter.redis_key("default", user).expect("a limit");
        cluster.first_master_of(&key) == 0
    };
    let user = (0..1_000).map(|user| format!("user{user}")).find(is_there).expect("a key");
    let decide = || runtime.block_on(acquire(&limiter, user.as_str(), AcquireOptions::default()));
    let _ = decide().expect("a decision of the first master");
    cluster.nodes[0].kill();
    let replica = &cluster.nodes[MASTERS];
    let (began, mut calls) = (Instant::now(), 0);
    while let Err(error) = decide() {
        assert!(error.is_unavailable(), "{error:?}");
        calls += 1;
        if calls == 10 {
            replica.take_over();
        }
        assert!(began.elapsed() < TIMEOUT, "no topology was read after {calls} calls: {error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("{calls} calls failed");
}
