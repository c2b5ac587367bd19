//! A cluster with moving slots and failing nodes under load. Each test prints one line of a table (`--nocapture`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_ratelimit::key::{EncodeKey, KeyWriter};
use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, Limit, Limiter, Quota, Redis, RedisCell, RedisServer};

use crate::cluster_server::{Cluster, MASTERS};
use crate::helpers::{AMPLE, LONG_DEADLINE, acquire, is_allowed, redis_limiter};
use crate::load::{DEADLINE, Load, all_answered};
use crate::server::Server;

async fn loaded(cluster: &Cluster, deadline: Duration) -> (Redis<str>, Load) {
    let limiter: Redis<str> =
        Redis::builder(cluster.open(), "api", Gcra::new(AMPLE)).deadline(deadline).build().expect("limits");
    limiter.health_check().await.expect("a working cluster");
    let load = Load::on(&limiter);
    sleep(Duration::from_millis(300)).await;
    (limiter, load)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_is_counted_once_on_any_node() {
    let cluster = Cluster::start();
    // One node returns the addresses of the others.
    let server = RedisServer::cluster([cluster.nodes[1].address()]).expect("an address");
    let limiter = redis_limiter::<str>(server, "api", FixedWindow::new(Quota::per_hour(3)));
    let keys: Vec<_> = (0..200).map(|user| format!("user{user}")).collect();
    let asked = keys.iter().flat_map(|key| (0..5).map(|_| is_allowed(&limiter, key.as_str())));
    assert_eq!(join_all(asked).await.into_iter().filter(|allowed| *allowed).count(), 600);
    for node in &cluster.nodes {
        assert!(node.keys().len() > 30, "{:?}", node.keys());
    }
    assert_eq!(cluster.nodes.iter().map(|node| node.keys().len()).sum::<usize>(), 200);
    assert_eq!(
        limiter.redis_key("default", "a{b}c").expect("a limit"),
        "ratelimit:api:default:fixed_window3:a%7Bb%7Dc"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_a_transaction_share_a_cluster_slot() {
    let cluster = Cluster::start();
    let limits = || {
        (
            Limit::new("user", FixedWindow::new(Quota::per_hour(2))),
            Limit::new("team", FixedWindow::new(Quota::per_hour(3))).keyed_by(|&(team, _): &(u64, u64)| team),
        )
    };
    let allowed_of = async |limiter: &Redis<(u64, u64)>| {
        let mut allowed = 0;
        for team in 0..20 {
            for user in [1, 1, 1, 2, 2, 2] {
                allowed += u64::from(is_allowed(limiter, &(team, user)).await);
            }
        }
        allowed
    };
    let together = redis_limiter(cluster.open(), "together", limits());
    assert_eq!(allowed_of(&together).await, 60);
    assert_eq!(together.redis_key("team", &(7, 1)).expect("a limit"), "ratelimit:{together}:team:fixed_window3:7");
    let filled = cluster.nodes.iter().filter(|node| !node.keys().is_empty());
    assert_eq!(filled.count(), 1);
    let spread = Redis::builder(cluster.open(), "spread", limits()).deadline(LONG_DEADLINE).slot_by(|&(team, _)| team);
    let spread = spread.build().expect("limits");
    assert_eq!(allowed_of(&spread).await, 60);
    assert!(cluster.nodes.iter().all(|node| node.keys().iter().any(|key| key.contains(":spread:"))));
}

/// A sub-key that encodes as nothing.
struct EncodesNothing(u64);

impl EncodeKey for EncodesNothing {
    fn encode(&self, _: &mut KeyWriter) {
        assert_eq!(self.0, 0);
    }
}

#[tokio::test]
async fn limits_that_cannot_share_a_cluster_slot_are_a_build_error() {
    let address = "redis://127.0.0.1:1";
    let cluster = || RedisServer::cluster([address]).expect("an address");
    let two = || (Limit::new("user", Gcra::new(AMPLE)), Limit::new("all", Gcra::new(AMPLE)).keyed_by(|_: &u64| ()));
    let built = Redis::<u64>::builder(cluster(), "api", two()).prefix("{}").build();
    assert!(built.expect_err("no slot for both").is_config());
    assert!(Redis::<u64>::builder(cluster(), "api", two()).prefix("{x}").build().is_ok());
    assert!(Redis::<u64>::builder(cluster(), "api", Gcra::new(AMPLE)).prefix("{}").build().is_ok());
    let built = Redis::<u64>::builder(cluster(), "api", two()).prefix("{x}").slot_by(|key| *key).build();
    assert!(built.expect_err("conflicting slot choices").is_config());
    for built in [
        Redis::<u64>::builder(cluster(), "api", two()).slot_by(|key| *key).build(),
        Redis::<u64>::builder(cluster(), "api", two()).prefix("{}").build(),
    ] {
        let error = built.expect_err("`all` has no slot with the others");
        assert!(error.is_config() && error.to_string().contains("`limiter::Chained`"), "{error}");
    }
    // An empty encoding is detected at the first decision.
    let empty = Limit::new("quiet", Gcra::new(AMPLE)).keyed_by(|_: &u64| EncodesNothing(0));
    let spread = Redis::<u64>::builder(cluster(), "api", empty).slot_by(|key| *key).build().expect("limits");
    assert!(
        acquire(&spread, &1, AcquireOptions::default()).await.expect_err("an empty encoding has no slot").is_config()
    );
    assert!(RedisServer::cluster(Vec::<String>::new()).expect_err("no node").is_config());
    assert!(RedisServer::cluster(["redis://127.0.0.1:1/2"]).expect_err("a database").is_config());
    assert!(
        RedisCell::builder(cluster(), "api", AMPLE).build().expect_err("RedisCell has no cluster support").is_config()
    );
    let gone = redis_limiter::<u64>(cluster(), "api", Gcra::new(AMPLE));
    assert!(gone.health_check().await.expect_err("no server").is_unavailable());
}

#[tokio::test]
async fn single_server_opened_as_a_cluster_is_an_error() {
    let server = Server::start();
    let limiter =
        redis_limiter::<str>(RedisServer::cluster([server.address()]).expect("an address"), "api", Gcra::new(AMPLE));
    assert!(limiter.health_check().await.expect_err("no slots").is_unavailable());
}

/// Acquires one key until it is denied while its slot moves: no charge is lost and none is made twice.
async fn check_exact_while_slot_moves(limiter: Redis<str>, cluster: Cluster, redis_key: &str, limit: u64) {
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
async fn moving_slot_loses_no_charge() {
    let cluster = Cluster::start();
    let limiter = redis_limiter::<str>(cluster.open(), "api", FixedWindow::new(Quota::per_hour(6_000)));
    limiter.health_check().await.expect("a working cluster");
    let key = limiter.redis_key("default", "hot").expect("a limit");
    check_exact_while_slot_moves(limiter, cluster, &key, 6_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slot_of_several_limits_loses_no_charge() {
    let cluster = Cluster::start();
    let limits = (Limit::new("user", FixedWindow::new(Quota::per_hour(4_000))), Limit::new("burst", Gcra::new(AMPLE)));
    let limiter = redis_limiter::<str>(cluster.open(), "api", limits);
    limiter.health_check().await.expect("a working cluster");
    let key = limiter.redis_key("user", "hot").expect("a limit");
    check_exact_while_slot_moves(limiter, cluster, &key, 4_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_on_one_node_causes_no_error() {
    let cluster = Cluster::start();
    let (limiter, load) = loaded(&cluster, LONG_DEADLINE).await;
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
async fn stalled_node_fails_only_its_own_keys() {
    let cluster = Cluster::start();
    let (limiter, load) = loaded(&cluster, LONG_DEADLINE).await;
    let impatient = Redis::<str>::builder(cluster.open(), "impatient", Gcra::new(AMPLE)).deadline(DEADLINE);
    let impatient = impatient.build().expect("limits");
    all_answered(&impatient).await;
    // The names of the limiters are in the keys, so they place a user on different nodes.
    let is_stalled = |limiter: &Redis<str>, key: &String| {
        cluster.first_master_of(&limiter.redis_key("default", key.as_str()).expect("a limit")) == 0
    };
    let keys: Vec<_> = (0..48).map(|task| format!("key{task}")).collect();
    let here = keys.iter().find(|key| is_stalled(&impatient, key)).expect("a key of the node");
    let elsewhere: Vec<_> = keys.iter().filter(|key| !is_stalled(&limiter, key)).collect();
    let began = Instant::now();
    cluster.nodes[0].signal("-STOP");
    let failed = acquire(&impatient, here.as_str(), AcquireOptions::default()).await;
    assert!(failed.expect_err("the node is stopped").is_unavailable());
    for key in elsewhere {
        // The patient limiter, because a slow machine fails any short deadline.
        assert!(is_allowed(&limiter, key.as_str()).await, "{key}");
    }
    cluster.nodes[0].signal("-CONT");
    all_answered(&impatient).await;
    let samples = load.report("a node stopped and continued", began).await;
    assert!(samples.iter().all(|sample| sample.answered));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_master_is_replaced_by_its_replica() {
    let mut cluster = Cluster::with_replicas();
    let (limiter, load) = loaded(&cluster, DEADLINE).await;
    let began = Instant::now();
    cluster.nodes[0].kill();
    load.until_failed("a master is killed").await;
    cluster.nodes[MASTERS].take_over();
    all_answered(&limiter).await;
    let samples = load.report("kill -9 of a master", began).await;
    assert!(samples.iter().any(|sample| !sample.answered));
    // The restarted node is a replica of the new master.
    cluster.nodes[0].restart();
    all_answered(&limiter).await;
}

/// A server in cluster mode behind one endpoint: one connection to it is no cluster, and the health check says so.
#[tokio::test]
async fn single_endpoint_in_cluster_mode_needs_the_cluster_client() {
    let cluster = Cluster::masters(1, |_| Server::node_with(&[]));
    let address = cluster.nodes[0].address();
    let limiter = |server| redis_limiter::<u64>(server, "api", FixedWindow::new(Quota::per_day(1_000)));
    let open = limiter(RedisServer::open(&address).expect("an address"));
    let error = open.health_check().await.expect_err("keys of a call in different slots");
    assert!(error.to_string().contains("connect with `RedisServer::cluster`"), "{error:?}");
    let limiter = limiter(RedisServer::cluster([address]).expect("an address"));
    limiter.health_check().await.expect("a cluster of one node");
    let decisions = (0..64).map(|key| limiter.acquire(&key, AcquireOptions::default()));
    for outcome in futures_util::future::join_all(decisions).await {
        assert!(outcome.expect("an answer").decision.is_allowed());
    }
}
