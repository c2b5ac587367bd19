//! Chained limiters on three masters: limits that can't share a cluster slot.
//!
//! They never admit beyond either limit, and release what a denied or failed request held. Unnecessary denials are
//! counted. Each load test prints one line of a table (`--nocapture`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_ratelimit::limiter::{Chained, LimiterFuture, Outcome};
use tower_ratelimit::store::RedisLimit;
use tower_ratelimit::{AcquireOptions, Detail, FixedWindow, Limit, Limiter, Quota, Redis, RedisServer};

use crate::cluster_server::{Cluster, MASTERS};
use crate::helpers::{LONG_DEADLINE, acquire, is_allowed, redis_limiter};
use crate::load::{DEADLINE, Load, all_answered, answered, until};

/// A limit per user, spread over all nodes.
fn of_user(server: RedisServer, limit: u64) -> Redis<u64> {
    redis_limiter(server, "users", Limit::new("user", FixedWindow::new(Quota::per_hour(limit))))
}

/// A global limit: one key on one node.
fn of_all(server: RedisServer, limit: u64) -> Redis<u64> {
    redis_limiter(server, "global", Limit::new("all", FixedWindow::new(Quota::per_hour(limit))).keyed_by(|_: &u64| ()))
}

async fn remaining_of(limiter: &impl Limiter<u64>, key: u64) -> u64 {
    limiter.peek(&key, AcquireOptions::cost(0)).await.expect("an answer").remaining().expect("a figure")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_chained_requests_never_exceed_either_limit() {
    const USERS: u64 = 24;
    let users = usize::try_from(USERS).expect("small");
    let cluster = Cluster::start();
    // Two processes with 96 concurrent requests in total.
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let limiter = Chained::new(of_user(cluster.open(), 20), of_all(cluster.open(), 300));
        for task in 0..USERS * 4 {
            let (limiter, user) = (limiter.clone(), task % USERS);
            tasks.spawn(async move {
                // Denials by the user's limit, and how many of them occurred while the global limit had tokens.
                let (mut allowed, mut denied) = (0, [0; 2]);
                for _ in 0..20 {
                    let decision = acquire(&limiter, &user, AcquireOptions::default().detail(Detail::All))
                        .await
                        .expect("an answer")
                        .decision;
                    allowed += u64::from(decision.is_allowed());
                    let [user, all] = decision.limits() else { panic!("{decision:?}") };
                    if !user.verdict().is_allowed() {
                        denied = [denied[0] + 1, denied[1] + u64::from(all.remaining() > 0)];
                    }
                }
                (user, allowed, denied)
            });
        }
    }
    let (mut allowed, mut denied) = (vec![0; users], vec![[0; 2]; users]);
    while let Some(done) = tasks.join_next().await {
        let (user, own_allowed, own_denied) = done.expect("a task");
        let user = usize::try_from(user).expect("small");
        allowed[user] += own_allowed;
        denied[user] = [0, 1].map(|count| denied[user][count] + own_denied[count]);
    }
    let total: u64 = allowed.iter().sum();
    // Denials of users with tokens left at the end.
    let needless = allowed.iter().zip(denied).filter(|(allowed, _)| **allowed < 20).map(|(_, denied)| denied);
    let (needless, with_tokens) = needless.fold((0, 0), |(all, room), denied| (all + denied[0], room + denied[1]));
    println!(
        "| {USERS} users at 20, 300 global | 3840 flooded, 192 concurrent | {total} allowed | {needless} denied by a user \
         while the global limit had tokens |"
    );
    assert!(allowed.iter().all(|allowed| *allowed <= 20), "{allowed:?}");
    // Only denials of the second limiter release a hold. So a denial is unnecessary only beside one of the 192 concurrent
    // requests that hold while the second limiter becomes full.
    assert!(with_tokens <= 192, "{with_tokens}");
    // The second limiter never holds without charging, so its whole limit is used.
    assert_eq!(total, 300);
    let (users, all) = (of_user(cluster.open(), 20), of_all(cluster.open(), 300));
    assert_eq!(remaining_of(&all, 0).await, 0);
    for (user, allowed) in (0..USERS).zip(allowed) {
        assert_eq!(remaining_of(&users, user).await, 20 - allowed, "user {user}");
    }
}

/// One exhausted user floods with `concurrency` requests while 100 others make one request each in sequence.
///
/// Returns the numbers of unnecessary denials and of flood requests. Panics if a user up to `safe` is denied.
async fn flood(limiter: impl Limiter<u64> + Clone, concurrency: u64, safe: u64) -> (u64, u64) {
    const FLOODER: u64 = 0;
    assert!(is_allowed(&limiter, &FLOODER).await);
    let running = Arc::new(AtomicBool::new(true));
    let mut flood = JoinSet::new();
    for _ in 0..concurrency {
        let (limiter, running) = (limiter.clone(), Arc::clone(&running));
        flood.spawn(async move {
            let mut flooded = 0;
            while running.load(Ordering::SeqCst) {
                assert!(!is_allowed(&limiter, &FLOODER).await);
                flooded += 1;
            }
            flooded
        });
    }
    let mut denied = 0;
    for user in 1..=100 {
        let allowed = is_allowed(&limiter, &user).await;
        assert!(allowed || user > safe, "user {user} was denied");
        denied += u64::from(!allowed);
    }
    running.store(false, Ordering::SeqCst);
    (denied, flood.join_all().await.into_iter().sum())
}

/// Requests in flight reduce the first limit by their cost. They are the only cause of unnecessary denials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unnecessary_denials_are_bounded_by_requests_in_flight() {
    const CONCURRENCY: u64 = 32;
    let servers = || {
        let cluster = Cluster::start();
        (cluster.open(), cluster)
    };
    // Wrong order of limits, with tokens for the flooder's one request and the hundred.
    let (server, cluster) = servers();
    let limiter = Chained::new(of_all(server.clone(), 101), of_user(server, 1));
    let (denied, flooded) = flood(limiter, CONCURRENCY, 100 - CONCURRENCY).await;
    println!("| global first, no spare | {flooded} flooded, {CONCURRENCY} concurrent | {denied} of 100 needless |");
    assert!(denied <= CONCURRENCY);
    assert_eq!(remaining_of(&of_all(cluster.open(), 101), 0).await, denied);
    // Additional tokens for the requests in flight.
    let (server, _cluster) = servers();
    let limiter = Chained::new(of_all(server.clone(), 101 + CONCURRENCY), of_user(server, 1));
    let (denied, flooded) = flood(limiter, CONCURRENCY, 100).await;
    println!(
        "| global first, {CONCURRENCY} spare | {flooded} flooded, {CONCURRENCY} concurrent | {denied} of 100 needless |"
    );
    // Right order of limits: a user at its own limit takes nothing from the global one.
    let (server, _cluster) = servers();
    let limiter = Chained::new(of_user(server.clone(), 1), of_all(server, 101));
    let (denied, flooded) = flood(limiter, CONCURRENCY, 100).await;
    println!("| user first, no spare | {flooded} flooded, {CONCURRENCY} concurrent | {denied} of 100 needless |");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_node_leaves_no_charge_on_other_nodes() {
    let cluster = Cluster::start();
    let all = Limit::new("all", FixedWindow::new(Quota::per_hour(1_000))).keyed_by(|_: &u64| ());
    let all = Redis::builder(cluster.open(), "global", all).deadline(DEADLINE).build().expect("limits");
    let users = of_user(cluster.open(), 5);
    let limiter = Chained::new(users.clone(), all.clone());
    warm_up(&limiter).await;
    let node = cluster.first_master_of(&all.redis_key("all", &0).expect("a limit"));
    let elsewhere: Vec<_> = (1..200)
        .filter(|user| cluster.first_master_of(&users.redis_key("user", user).expect("a limit")) != node)
        .take(20)
        .collect();
    cluster.nodes[node].signal("-STOP");
    for user in &elsewhere {
        let began = Instant::now();
        let failed = acquire(&limiter, user, AcquireOptions::cost(3)).await;
        assert!(failed.expect_err("a node is stopped").is_unavailable());
        assert!(began.elapsed() < LONG_DEADLINE, "the call hangs: {:?}", began.elapsed());
        assert_eq!(remaining_of(&users, *user).await, 5);
    }
    cluster.nodes[node].signal("-CONT");
    for user in &elsewhere {
        answered(&limiter, user, 3).await;
        assert_eq!(remaining_of(&users, *user).await, 2);
    }
}

async fn warm_up(limiter: &impl Limiter<u64>) {
    for user in 1_000..1_010 {
        while acquire(limiter, &user, AcquireOptions::default()).await.is_err() {}
    }
}

/// The node of the global limit is killed. The holds on other nodes are released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_master_delays_no_request_and_leaves_no_charge() {
    const LIMIT: u64 = 1_000_000;
    let mut cluster = Cluster::with_replicas();
    let build = |name: &str, limit: RedisLimit<str>| redis_limiter::<str>(cluster.open(), name, vec![limit]);
    let hour = FixedWindow::new(Quota::per_hour(LIMIT));
    let users = build("users", RedisLimit::new(Limit::new("user", hour)));
    let all = build("global", RedisLimit::new(Limit::new("all", hour).keyed_by(|_: &str| ())));
    let limiter = Chained::new(users.clone(), all.clone());
    for part in [&users, &all] {
        part.health_check().await.expect("a working cluster");
    }
    let node = cluster.first_master_of(&all.redis_key("all", "").expect("a limit"));
    let load = Load::on(&limiter);
    sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    cluster.nodes[node].kill();
    load.until_failed("a master is killed").await;
    cluster.nodes[MASTERS + node].take_over();
    all_answered(&all).await;
    sleep(Duration::from_millis(300)).await;
    let samples = load.report("kill -9 of a master, chained", began).await;
    let mut sums: HashMap<&str, (u64, u64)> = HashMap::new();
    for sample in &samples {
        let (allowed, failed) = sums.entry(&sample.key).or_default();
        *allowed += u64::from(sample.allowed);
        *failed += u64::from(!sample.answered);
    }
    assert!(sums.values().any(|(_, failed)| *failed > 0));
    let (mut stayed, mut failures) = (0, 0);
    for (key, (allowed, failed)) in sums {
        if cluster.first_master_of(&users.redis_key("user", key).expect("a limit")) == node {
            continue;
        }
        // The other nodes may have been found down for a moment, too.
        let peeked = loop {
            match users.peek(key, AcquireOptions::cost(0)).await {
                Ok(decision) => break decision,
                Err(error) => assert!(began.elapsed() < LONG_DEADLINE, "{error}"),
            }
            sleep(Duration::from_millis(10)).await;
        };
        let used = LIMIT - peeked.remaining().expect("a figure");
        assert!(used >= allowed, "{key}: {used} used, {allowed} allowed");
        stayed += used - allowed;
        failures += failed;
    }
    println!("| on the other nodes {failures} failed, and {stayed} stayed charged |");
    assert_eq!(stayed, 0, "of {failures}");
}

/// A limiter that signals its call and never answers.
#[derive(Clone, Default)]
struct Hangs(Arc<Notify>);

impl Limiter<u64> for Hangs {
    fn acquire(&self, _: &u64, _: AcquireOptions) -> LimiterFuture<Outcome> {
        self.0.notify_one();
        LimiterFuture::pending(std::future::pending())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_dropped_between_the_limiters_releases_its_hold() {
    let cluster = Cluster::start();
    let (users, hangs) = (of_user(cluster.open(), 3), Hangs::default());
    let limiter = Chained::new(users.clone(), hangs.clone());
    for user in 0..20 {
        tokio::select! {
            _ = acquire(&limiter, &user, AcquireOptions::cost(3)) => panic!("the limiter must not answer"),
            () = hangs.0.notified() => {}
        }
        // A background task releases the hold.
        until("the release", async || remaining_of(&users, user).await >= 3).await;
    }
}
