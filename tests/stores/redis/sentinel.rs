//! A master, a replica and three Sentinels: the limiter follows the master.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, Quota, Redis, RedisServer};

use crate::helpers::{AMPLE, acquire, is_allowed, redis_limiter};
use crate::load::{DEADLINE, Load, all_answered};
use crate::process::wait_until;
use crate::sentinel_server::SentinelDeployment;

async fn loaded(deployment: &SentinelDeployment) -> (Redis<str>, Load) {
    let limiter =
        Redis::builder(deployment.open(), "api", Gcra::new(AMPLE)).deadline(DEADLINE).build().expect("limits");
    limiter.health_check().await.expect("a working master");
    let load = Load::on(&limiter);
    sleep(Duration::from_millis(300)).await;
    (limiter, load)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_go_to_the_master_and_not_to_a_replica() {
    let deployment = SentinelDeployment::start();
    let limiter = redis_limiter::<str>(deployment.open(), "api", FixedWindow::new(Quota::per_hour(2)));
    limiter.health_check().await.expect("a working master");
    let mut allowed = 0;
    for _ in 0..4 {
        allowed += u32::from(is_allowed(&limiter, "alice").await);
    }
    assert_eq!(allowed, 2);
    assert_eq!(deployment.master.keys().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_master_is_replaced() {
    let mut deployment = SentinelDeployment::start();
    // Replicated usage is kept.
    let limit = redis_limiter::<str>(deployment.open(), "limit", FixedWindow::new(Quota::per_hour(2)));
    assert!(is_allowed(&limit, "alice").await && is_allowed(&limit, "alice").await);
    let (limiter, load) = loaded(&deployment).await;
    let began = Instant::now();
    deployment.master.kill();
    load.until_failed("the master is killed").await;
    deployment.fail_over();
    all_answered(&limiter).await;
    let samples = load.report("Sentinel: kill -9 of the master", began).await;
    assert!(samples.iter().any(|sample| !sample.answered));
    // The idle connection detects the fail-over by an error.
    while acquire(&limit, "alice", AcquireOptions::default()).await.is_err() {}
    assert!(!is_allowed(&limit, "alice").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_master_is_left() {
    let deployment = SentinelDeployment::start();
    let (limiter, load) = loaded(&deployment).await;
    let began = Instant::now();
    deployment.fail_over();
    // As the Sentinels do, which wait until they have seen enough of the earlier master.
    let port = deployment.replica.port_of_servers().to_string();
    deployment.master.command(&["REPLICAOF", "127.0.0.1", &port]);
    wait_until("the master is a replica", || deployment.master.command(&["ROLE"]).contains("slave"));
    all_answered(&limiter).await;
    load.report("Sentinel: SENTINEL FAILOVER", began).await;
    while acquire(&limiter, "new key", AcquireOptions::default()).await.is_err() {}
    assert!(deployment.replica.keys().iter().any(|key| key.contains("new%20key")));
}

#[tokio::test]
async fn unknown_master_is_an_error() {
    let deployment = SentinelDeployment::start();
    let addresses = || deployment.addresses();
    let server = RedisServer::sentinel(addresses(), "unknown").expect("addresses");
    let limiter = redis_limiter::<str>(server, "api", Gcra::new(AMPLE));
    assert!(limiter.health_check().await.expect_err("no such master").is_unavailable());
    assert!(RedisServer::sentinel(addresses(), "").expect_err("no name").is_config());
    assert!(RedisServer::sentinel(Vec::<String>::new(), "mymaster").expect_err("no Sentinel").is_config());
    assert!(RedisServer::sentinel_with(addresses(), "mymaster", "unix:///x").expect_err("a socket").is_config());
}
