//! Limits that can't share a slot, in two phases on three masters: never more is let through, what is refused or fails comes
//! back, and who is refused without need is counted. Each test of load prints its row of a table (`--nocapture`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_ratelimit::limiter::{Acquisition, BoxFuture, Chained, Outcome};
use tower_ratelimit::store::RedisLimit;
use tower_ratelimit::{AcquireOptions, Detail, Error, FixedWindow, Limit, Limiter, Quota, Redis, RedisServer, Verdict};

use crate::cluster_server::Nodes;
use crate::helpers::{PATIENCE, acquire, hold, is_allowed, patient};
use crate::load::{DEADLINE, Load, all_answered};

/// Per user, spread over all nodes.
fn of_user(server: RedisServer, limit: u64) -> Redis<u64> {
    patient(server, "users", Limit::new("user", FixedWindow::new(Quota::per_hour(limit))))
}

/// In all: one key, on one node.
fn of_all(server: RedisServer, limit: u64) -> Redis<u64> {
    patient(server, "everybody", Limit::new("all", FixedWindow::new(Quota::per_hour(limit))).keyed_by(|_: &u64| ()))
}

async fn left(limiter: &impl Limiter<u64>, key: u64) -> u64 {
    limiter.peek(&key, AcquireOptions::cost(0)).await.expect("an answer").remaining().expect("a figure")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_is_let_through_than_both_allow_and_nothing_else_stays_charged() {
    const USERS: u64 = 24;
    let users = usize::try_from(USERS).expect("small");
    let cluster = Nodes::start();
    // Two processes of 96 requests at once.
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let limiter = Chained::new(of_user(cluster.open(), 20), of_all(cluster.open(), 300));
        for task in 0..USERS * 4 {
            let (limiter, user) = (limiter.clone(), task % USERS);
            tasks.spawn(async move {
                // Of those that the user's limit refused: how many, and how many where the other had room.
                let (mut allowed, mut refused) = (0, [0; 2]);
                for _ in 0..20 {
                    let decision = acquire(&limiter, &user, AcquireOptions::default().detail(Detail::All))
                        .await
                        .expect("an answer")
                        .decision;
                    allowed += u64::from(decision.is_allowed());
                    let [user, all] = decision.limits() else { panic!("{decision:?}") };
                    if !user.verdict().is_allowed() {
                        refused = [refused[0] + 1, refused[1] + u64::from(all.remaining() > 0)];
                    }
                }
                (user, allowed, refused)
            });
        }
    }
    let (mut allowed, mut refused) = (vec![0; users], vec![[0; 2]; users]);
    while let Some(done) = tasks.join_next().await {
        let (user, own_allowed, own_refused) = done.expect("a task");
        let user = usize::try_from(user).expect("small");
        allowed[user] += own_allowed;
        refused[user] = [0, 1].map(|count| refused[user][count] + own_refused[count]);
    }
    let total: u64 = allowed.iter().sum();
    // Those of users who had less than their limit in the end.
    let needless = allowed.iter().zip(refused).filter(|(allowed, _)| **allowed < 20).map(|(_, refused)| refused);
    let (needless, with_room) = needless.fold((0, 0), |(all, room), refused| (all + refused[0], room + refused[1]));
    println!(
        "| {USERS} users at 20, 300 in all | 3840 asked, 192 at once | {total} let through | {needless} refused by a user's limit \
         that would have had room |"
    );
    assert!(allowed.iter().all(|allowed| *allowed <= 20), "{allowed:?}");
    // Only what the last one refuses comes back: until it is full, nobody is refused without need.
    assert_eq!(with_room, 0);
    // Nothing is ever taken from the last one and given back, so that all it has is had.
    assert_eq!(total, 300);
    let (users, all) = (of_user(cluster.open(), 20), of_all(cluster.open(), 300));
    assert_eq!(left(&all, 0).await, 0);
    for (user, allowed) in (0..USERS).zip(allowed) {
        assert_eq!(left(&users, user).await, 20 - allowed, "user {user}");
    }
}

/// While somebody who has had his one floods with so many at once, a hundred others ask, one after the other. How many of
/// them are refused, and whether any is among the first so many.
async fn flooded(limiter: impl Limiter<u64> + Clone + Send + Sync + 'static, at_once: u64, safe: u64) -> (u64, u64) {
    const FLOODER: u64 = 0;
    assert!(is_allowed(&limiter, &FLOODER).await);
    let goes_on = Arc::new(AtomicBool::new(true));
    let mut flood = JoinSet::new();
    for _ in 0..at_once {
        let (limiter, goes_on) = (limiter.clone(), Arc::clone(&goes_on));
        flood.spawn(async move {
            let mut asked = 0;
            while goes_on.load(Ordering::SeqCst) {
                assert!(!is_allowed(&limiter, &FLOODER).await);
                asked += 1;
            }
            asked
        });
    }
    let mut refused = 0;
    for user in 1..=100 {
        let allowed = is_allowed(&limiter, &user).await;
        assert!(allowed || user > safe, "user {user} was refused");
        refused += u64::from(!allowed);
    }
    goes_on.store(false, Ordering::SeqCst);
    (refused, flood.join_all().await.into_iter().sum())
}

/// The first limit is less by what is on its way, and by no more: that is all that is refused without need.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_without_need_is_at_most_what_is_on_its_way() {
    const AT_ONCE: u64 = 32;
    let servers = || {
        let cluster = Nodes::start();
        (cluster.open(), cluster)
    };
    // Room for the flooder's one and the hundred, in the wrong order.
    let (server, cluster) = servers();
    let limiter = Chained::new(of_all(server.clone(), 101), of_user(server, 1));
    let (refused, asked) = flooded(limiter, AT_ONCE, 100 - AT_ONCE).await;
    println!(
        "| all first, no room to spare | {asked} flooded, {AT_ONCE} at once | {refused} of 100 refused without need |"
    );
    assert!(refused <= AT_ONCE);
    assert_eq!(left(&of_all(cluster.open(), 101), 0).await, refused);
    // Room for what is on its way.
    let (server, _cluster) = servers();
    let limiter = Chained::new(of_all(server.clone(), 101 + AT_ONCE), of_user(server, 1));
    let (refused, asked) = flooded(limiter, AT_ONCE, 100).await;
    println!(
        "| all first, room for {AT_ONCE} more | {asked} flooded, {AT_ONCE} at once | {refused} of 100 refused without need |"
    );
    // The right order: who is refused by his own limit takes nothing from all.
    let (server, _cluster) = servers();
    let limiter = Chained::new(of_user(server.clone(), 1), of_all(server, 101));
    let (refused, asked) = flooded(limiter, AT_ONCE, 100).await;
    println!(
        "| user first, no room to spare | {asked} flooded, {AT_ONCE} at once | {refused} of 100 refused without need |"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stalls_leaves_nothing_charged_on_the_others() {
    let cluster = Nodes::start();
    let all = Limit::new("all", FixedWindow::new(Quota::per_hour(1_000))).keyed_by(|_: &u64| ());
    let all = Redis::builder(cluster.open(), "everybody", all).deadline(DEADLINE).build().expect("limits");
    let users = of_user(cluster.open(), 5);
    let limiter = Chained::new(users.clone(), all.clone());
    limiter_is_warm(&limiter).await;
    let node = cluster.first_master_of(&all.redis_key("all", &0).expect("a limit"));
    let elsewhere: Vec<_> = (1..200)
        .filter(|user| cluster.first_master_of(&users.redis_key("user", user).expect("a limit")) != node)
        .take(20)
        .collect();
    cluster.nodes[node].signal("-STOP");
    for user in &elsewhere {
        let began = Instant::now();
        let failed = acquire(&limiter, user, AcquireOptions::cost(3)).await;
        assert!(failed.expect_err("one node is stopped").is_unavailable());
        // A machine that others use too may be slow; what hangs is slower.
        assert!(began.elapsed() < DEADLINE * 10, "{:?}", began.elapsed());
        assert_eq!(left(&users, *user).await, 5);
    }
    cluster.nodes[node].signal("-CONT");
    let patience = Instant::now() + PATIENCE;
    for user in &elsewhere {
        while acquire(&limiter, user, AcquireOptions::cost(3)).await.is_err() {
            assert!(Instant::now() < patience, "service does not resume");
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(left(&users, *user).await, 2);
    }
}

async fn limiter_is_warm(limiter: &impl Limiter<u64>) {
    for user in 1_000..1_010 {
        assert!(is_allowed(limiter, &user).await);
    }
}

/// The node of the limit on all is lost; what was reserved on the others comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_holds_nobody_up_and_leaves_nothing_charged() {
    const LIMIT: u64 = 1_000_000;
    let mut cluster = Nodes::with_replicas();
    let build = |name: &str, limit: RedisLimit<str>| {
        let builder = Redis::<str>::builder(cluster.open(), name, vec![limit]);
        builder.deadline(DEADLINE).build().expect("limits")
    };
    let hour = FixedWindow::new(Quota::per_hour(LIMIT));
    let users = build("users", RedisLimit::new(Limit::new("user", hour)));
    let all = build("everybody", RedisLimit::new(Limit::new("all", hour).keyed_by(|_: &str| ())));
    let limiter = Chained::new(users.clone(), all.clone());
    for part in [&users, &all] {
        part.health_check().await.expect("a working cluster");
    }
    let node = cluster.first_master_of(&all.redis_key("all", "").expect("a limit"));
    let load = Load::on(&limiter);
    sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    cluster.nodes[node].kill();
    all_answered(&all).await;
    sleep(Duration::from_millis(300)).await;
    let samples = load.report("kill -9 of a master, two phases", began).await;
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
        let peeked = users.peek(key, AcquireOptions::cost(0)).await.expect("an answer");
        let used = LIMIT - peeked.remaining().expect("a figure");
        assert!(used >= allowed, "{key}: {used} used, {allowed} let through");
        stayed += used - allowed;
        failures += failed;
    }
    println!("| on the other nodes {failures} failed, and {stayed} stayed charged |");
    // One that a busy machine held up for longer than the deadline may have been charged for nothing.
    assert!(stayed * 100 <= failures, "{stayed} of {failures}");
}

/// It is asked, and never answers.
#[derive(Clone, Default)]
struct Hangs(Arc<Notify>);

impl Limiter<u64> for Hangs {
    type Future = BoxFuture<Result<Outcome, Error>>;

    fn acquire(&self, _: &u64, _: AcquireOptions) -> Acquisition<Self::Future> {
        self.0.notify_one();
        Acquisition::Pending(Box::pin(std::future::pending()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_dropped_between_the_phases_comes_back() {
    let cluster = Nodes::start();
    let (users, hangs) = (of_user(cluster.open(), 3), Hangs::default());
    let limiter = Chained::new(users.clone(), hangs.clone());
    for user in 0..20 {
        tokio::select! {
            _ = acquire(&limiter, &user, AcquireOptions::cost(3)) => panic!("it hangs"),
            () = hangs.0.notified() => {}
        }
        // The charge goes back by a task of its own.
        let patience = Instant::now() + PATIENCE;
        while left(&users, user).await < 3 {
            assert!(Instant::now() < patience, "user {user} stays charged");
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// One by one, it says what one limiter with both would say.
#[tokio::test]
async fn the_wait_is_for_both_and_figures_are_of_what_is_not_charged() {
    let cluster = Nodes::start();
    let hour = Duration::from_secs(3600);
    let limiter = Chained::new(of_user(cluster.open(), 5), of_all(cluster.open(), 7));
    assert!(acquire(&limiter, &1, AcquireOptions::cost(4)).await.expect("an answer").decision.is_allowed());
    let outcome = acquire(&limiter, &2, AcquireOptions::cost(4).detail(Detail::All)).await.expect("an answer");
    let Verdict::Denied { retry_after } = outcome.decision.verdict() else { panic!("{outcome:?}") };
    assert!(retry_after + PATIENCE * 3 > hour && retry_after <= hour, "{retry_after:?}");
    let figures = outcome.decision.limits().iter().map(|standing| (standing.name(), standing.remaining()));
    assert_eq!(figures.collect::<Vec<_>>(), [("user", 5), ("all", 3)]);
    let outcome = acquire(&limiter, &2, AcquireOptions::cost(3).detail(Detail::All)).await.expect("an answer");
    let figures = outcome.decision.limits().iter().map(|standing| (standing.name(), standing.remaining()));
    assert_eq!(figures.collect::<Vec<_>>(), [("user", 2), ("all", 0)]);
    assert_eq!((left(&of_user(cluster.open(), 5), 2).await, left(&of_all(cluster.open(), 7), 2).await), (2, 0));
    let held = hold(&limiter, &3, 0).await;
    held.settle(2).await.expect("done");
    assert_eq!(left(&of_user(cluster.open(), 5), 3).await, 3);
}
