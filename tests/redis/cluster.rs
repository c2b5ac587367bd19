//! A cluster whose slots move and whose nodes fail, under load. Each test prints its row of a table (`--nocapture`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_ratelimit::key::{EncodeKey, KeyWriter};
use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, Limit, Quota, Redis, RedisCell, RedisServer};

use crate::cluster_server::Nodes;
use crate::helpers::{PATIENCE, PLENTY, acquire, is_allowed, patient};
use crate::load::{DEADLINE, Load, all_answered};
use crate::server::Server;

async fn loaded(cluster: &Nodes) -> (Redis<str>, Load) {
    let limiter: Redis<str> =
        Redis::builder(cluster.open(), "api", Gcra::new(PLENTY)).deadline(DEADLINE).build().expect("limits");
    limiter.health_check().await.expect("a working cluster");
    let load = Load::on(&limiter);
    sleep(Duration::from_millis(300)).await;
    (limiter, load)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_counted_once_wherever_it_lies() {
    let cluster = Nodes::start();
    // One node tells of the others.
    let server = RedisServer::cluster([cluster.nodes[1].address()]).expect("an address");
    let limiter = patient::<str>(server, "api", FixedWindow::new(Quota::per_hour(3)));
    let keys: Vec<_> = (0..200).map(|user| format!("user{user}")).collect();
    let asked = keys.iter().flat_map(|key| (0..5).map(|_| is_allowed(&limiter, key.as_str())));
    assert_eq!(join_all(asked).await.into_iter().filter(|allowed| *allowed).count(), 600);
    for node in &cluster.nodes {
        assert!(node.keys().len() > 30, "{:?}", node.keys());
    }
    assert_eq!(cluster.nodes.iter().map(|node| node.keys().len()).sum::<usize>(), 200);
    assert_eq!(
        limiter.redis_key("default", "a{b}c").expect("a limit"),
        "ratelimit:api:default:fixed_window2:a%7Bb%7Dc"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_limits_share_a_slot() {
    let cluster = Nodes::start();
    let limits = || {
        (
            Limit::new("user", FixedWindow::new(Quota::per_hour(2))),
            Limit::new("team", FixedWindow::new(Quota::per_hour(3))).keyed_by(|&(team, _): &(u64, u64)| team),
        )
    };
    let ask = async |limiter: &Redis<(u64, u64)>| {
        let mut allowed = 0;
        for team in 0..20 {
            for user in [1, 1, 1, 2, 2, 2] {
                allowed += u64::from(is_allowed(limiter, &(team, user)).await);
            }
        }
        allowed
    };
    let together = patient(cluster.open(), "together", limits());
    assert_eq!(ask(&together).await, 60);
    assert_eq!(together.redis_key("team", &(7, 1)).expect("a limit"), "ratelimit:{together}:team:fixed_window2:7");
    let filled = cluster.nodes.iter().filter(|node| !node.keys().is_empty());
    assert_eq!(filled.count(), 1);
    let spread = Redis::builder(cluster.open(), "spread", limits()).deadline(PATIENCE).slot_by(|&(team, _)| team);
    let spread = spread.build().expect("limits");
    assert_eq!(ask(&spread).await, 60);
    assert!(cluster.nodes.iter().all(|node| node.keys().iter().any(|key| key.contains(":spread:"))));
}

/// A part of a key that is written as nothing at all.
struct Quiet(u64);

impl EncodeKey for Quiet {
    fn encode(&self, _: &mut KeyWriter) {
        assert_eq!(self.0, 0);
    }
}

#[tokio::test]
async fn what_can_not_share_a_slot_is_an_error() {
    let address = "redis://127.0.0.1:1";
    let cluster = || RedisServer::cluster([address]).expect("an address");
    let two = || (Limit::new("user", Gcra::new(PLENTY)), Limit::new("all", Gcra::new(PLENTY)).keyed_by(|_: &u64| ()));
    let built = Redis::<u64>::builder(cluster(), "api", two()).prefix("{}").build();
    assert!(built.expect_err("no slot for both").is_config());
    assert!(Redis::<u64>::builder(cluster(), "api", two()).prefix("{x}").build().is_ok());
    assert!(Redis::<u64>::builder(cluster(), "api", Gcra::new(PLENTY)).prefix("{}").build().is_ok());
    let built = Redis::<u64>::builder(cluster(), "api", two()).prefix("{x}").slot_by(|key| *key).build();
    assert!(built.expect_err("two that choose").is_config());
    for built in [
        Redis::<u64>::builder(cluster(), "api", two()).slot_by(|key| *key).build(),
        Redis::<u64>::builder(cluster(), "api", two()).prefix("{}").build(),
    ] {
        let error = built.expect_err("`all` has no slot with the others");
        assert!(error.is_config() && error.to_string().contains("`limiter::Chained`"), "{error}");
    }
    // What writes nothing of a key is found out when it is asked for.
    let quiet = Limit::new("quiet", Gcra::new(PLENTY)).keyed_by(|_: &u64| Quiet(0));
    let spread = Redis::<u64>::builder(cluster(), "api", quiet).slot_by(|key| *key).build().expect("limits");
    assert!(acquire(&spread, &1, AcquireOptions::default()).await.expect_err("it has no slot").is_config());
    assert!(RedisServer::cluster(Vec::<String>::new()).expect_err("no node").is_config());
    assert!(RedisServer::cluster(["redis://127.0.0.1:1/2"]).expect_err("a database").is_config());
    assert!(RedisCell::<str>::builder(cluster(), "api", PLENTY).build().expect_err("it is silent there").is_config());
    let gone = patient::<u64>(cluster(), "api", Gcra::new(PLENTY));
    assert!(gone.health_check().await.expect_err("nobody there").is_unavailable());
}

#[tokio::test]
async fn a_single_server_is_no_cluster() {
    let server = Server::start();
    let limiter =
        patient::<str>(RedisServer::cluster([server.address()]).expect("an address"), "api", Gcra::new(PLENTY));
    assert!(limiter.health_check().await.expect_err("no slots").is_unavailable());
}

/// Asks for one key until it is refused while its slot goes round: nothing is lost on the way, and nothing charged twice.
async fn moves_round(limiter: Redis<str>, cluster: Nodes, redis_key: &str, limit: u64) {
    let (slot, start) = (cluster.slot(redis_key), cluster.first_master_of(redis_key));
    let allowed = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (limiter, allowed) = (limiter.clone(), Arc::clone(&allowed));
        tasks.spawn(async move {
            while is_allowed(&limiter, "hot").await {
                allowed.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_millis(2)).await;
            }
        });
    }
    let (so_far, ends) = (Arc::clone(&allowed), limit);
    let moves = tokio::task::spawn_blocking(move || {
        let mut moves = 0;
        let mut at = start;
        while so_far.load(Ordering::SeqCst) < ends {
            let next = (at + 1) % 3;
            cluster.migrate(slot, at, next, Duration::from_millis(10));
            at = next;
            moves += 1;
        }
        (moves, cluster)
    });
    tasks.join_all().await;
    let (moves, _cluster) = moves.await.expect("moved");
    println!("| a slot moved {moves} times, {} of {limit} allowed |", allowed.load(Ordering::SeqCst));
    assert!(moves >= 3, "{moves}");
    assert_eq!(allowed.load(Ordering::SeqCst), limit);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_loses_nothing() {
    let cluster = Nodes::start();
    let limiter = patient::<str>(cluster.open(), "api", FixedWindow::new(Quota::per_hour(6_000)));
    limiter.health_check().await.expect("a working cluster");
    let key = limiter.redis_key("default", "hot").expect("a limit");
    moves_round(limiter, cluster, &key, 6_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_of_several_limits_that_moves_loses_nothing() {
    let cluster = Nodes::start();
    let limits = (Limit::new("user", FixedWindow::new(Quota::per_hour(4_000))), Limit::new("burst", Gcra::new(PLENTY)));
    let limiter = patient::<str>(cluster.open(), "api", limits);
    limiter.health_check().await.expect("a working cluster");
    let key = limiter.redis_key("user", "hot").expect("a limit");
    moves_round(limiter, cluster, &key, 4_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_flush_on_one_node_fails_nothing() {
    let cluster = Nodes::start();
    let (limiter, load) = loaded(&cluster).await;
    let began = Instant::now();
    for _ in 0..10 {
        cluster.nodes[0].command(&["SCRIPT", "FLUSH"]);
        sleep(Duration::from_millis(20)).await;
    }
    all_answered(&limiter).await;
    let samples = load.report("SCRIPT FLUSH on one node, ten times", began).await;
    assert_eq!(samples.iter().filter(|sample| !sample.answered).count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stalls_fails_only_what_it_holds() {
    let cluster = Nodes::start();
    let (limiter, load) = loaded(&cluster).await;
    let began = Instant::now();
    cluster.nodes[0].signal("-STOP");
    sleep(Duration::from_secs(1)).await;
    cluster.nodes[0].signal("-CONT");
    let over = Instant::now();
    all_answered(&limiter).await;
    let samples = load.report("a node stopped, continued after 1 s", began).await;
    let mut answered: HashMap<&str, usize> = HashMap::new();
    let mut failed_here = 0;
    for sample in samples.iter().filter(|sample| sample.began >= began && sample.began < over) {
        *answered.entry(&sample.key).or_default() += usize::from(sample.answered);
        let holder = cluster.first_master_of(&limiter.redis_key("default", &sample.key).expect("a limit"));
        failed_here += usize::from(!sample.answered && holder == 0);
    }
    assert!(failed_here > 0);
    for (key, answered) in answered {
        let holder = cluster.first_master_of(&limiter.redis_key("default", key).expect("a limit"));
        assert!(holder == 0 || answered >= 10, "{key}: {answered}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_killed_is_replaced_by_its_replica() {
    let mut cluster = Nodes::with_replicas();
    let (limiter, load) = loaded(&cluster).await;
    let began = Instant::now();
    cluster.nodes[0].kill();
    all_answered(&limiter).await;
    let samples = load.report("kill -9 of a master", began).await;
    assert!(samples.iter().any(|sample| !sample.answered));
    // Back as a replica of the one that took over.
    cluster.nodes[0].restart();
    for task in 0..48 {
        assert!(is_allowed(&limiter, format!("key{task}").as_str()).await);
    }
}
