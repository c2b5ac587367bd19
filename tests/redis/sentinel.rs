//! A master, a replica and three Sentinels: the limiter follows the master.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, Quota, Redis, RedisServer};

use crate::cluster_server::until;
use crate::helpers::{PLENTY, acquire, is_allowed, patient};
use crate::load::{DEADLINE, Load, all_answered};
use crate::sentinel_server::Watched;

async fn loaded(watched: &Watched) -> (Redis<str>, Load) {
    let limiter = Redis::builder(watched.open(), "api", Gcra::new(PLENTY)).deadline(DEADLINE).build().expect("limits");
    limiter.health_check().await.expect("a working master");
    let load = Load::on(&limiter);
    sleep(Duration::from_millis(300)).await;
    (limiter, load)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_master_is_asked_and_a_replica_is_not() {
    let watched = Watched::start();
    let limiter = patient::<str>(watched.open(), "api", FixedWindow::new(Quota::per_hour(2)));
    limiter.health_check().await.expect("a working master");
    let mut allowed = 0;
    for _ in 0..4 {
        allowed += u32::from(is_allowed(&limiter, "alice").await);
    }
    assert_eq!(allowed, 2);
    assert_eq!(watched.master.keys().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_killed_is_replaced() {
    let mut watched = Watched::start();
    // What was counted before, and is in step, is counted still.
    let limit = patient::<str>(watched.open(), "limit", FixedWindow::new(Quota::per_hour(2)));
    assert!(is_allowed(&limit, "alice").await && is_allowed(&limit, "alice").await);
    let (limiter, load) = loaded(&watched).await;
    let began = Instant::now();
    watched.master.kill();
    all_answered(&limiter).await;
    let samples = load.report("Sentinel: kill -9 of the master", began).await;
    assert!(samples.iter().any(|sample| !sample.answered));
    assert!(watched.replica.command(&["ROLE"]).contains("master"));
    // The connection that was idle finds out by failing.
    while acquire(&limit, "alice", AcquireOptions::default()).await.is_err() {}
    assert!(!is_allowed(&limit, "alice").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_becomes_a_replica_is_left() {
    let watched = Watched::start();
    let (limiter, load) = loaded(&watched).await;
    let began = Instant::now();
    let reply = watched.sentinels[0].command(&["SENTINEL", "FAILOVER", "mymaster"]);
    assert!(reply.starts_with("+OK"), "{reply}");
    until("the replica is the master", || watched.replica.command(&["ROLE"]).contains("master"));
    until("the master is a replica", || watched.master.command(&["ROLE"]).contains("slave"));
    all_answered(&limiter).await;
    load.report("Sentinel: SENTINEL FAILOVER", began).await;
    assert!(is_allowed(&limiter, "somebody new").await);
    assert!(watched.replica.keys().iter().any(|key| key.contains("somebody%20new")));
}

#[tokio::test]
async fn what_is_no_master_is_an_error() {
    let watched = Watched::start();
    let addresses = || watched.addresses();
    let server = RedisServer::sentinel(addresses(), "nobody").expect("addresses");
    let limiter = patient::<str>(server, "api", Gcra::new(PLENTY));
    assert!(limiter.health_check().await.expect_err("no such master").is_unavailable());
    assert!(RedisServer::sentinel(addresses(), "").expect_err("no name").is_config());
    assert!(RedisServer::sentinel(Vec::<String>::new(), "mymaster").expect_err("no Sentinel").is_config());
    assert!(RedisServer::sentinel_with(addresses(), "mymaster", "unix:///x").expect_err("a socket").is_config());
}
