//! A bb8 pool that the application brings: the limiters check one connection out of it, and keep it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::{Builder, Pool};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_ratelimit::{AcquireOptions, Gcra, Quota, Redis, RedisServer};

use crate::helpers::{LONG_DEADLINE, acquire, decides_beside_a_stopped_runtime, is_allowed, redis_limiter};
use crate::load::{answered, until};
use crate::process::wait_until;
use crate::proxy::Proxy;
use crate::server::Server;

const QUOTA: Quota = Quota::per_day(100_000);

fn pool(
    address: &str,
    settings: impl FnOnce(Builder<RedisConnectionManager>) -> Builder<RedisConnectionManager>,
) -> Pool<RedisConnectionManager> {
    let manager = RedisConnectionManager::new(address).expect("an address");
    settings(Pool::builder().max_size(3)).build_unchecked(manager)
}

fn limiter(server: &RedisServer, name: &str) -> Redis<str> {
    redis_limiter(server.clone(), name, Gcra::new(QUOTA))
}

fn clients(server: &Server) -> usize {
    // One of them asks.
    server.command(&["CLIENT", "LIST"]).matches("id=").count() - 1
}

/// All limiters of a server share one connection, which the pool counts, and has again after them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiters_share_a_connection_that_the_pool_counts() {
    let server = Server::start();
    let pool = pool(&server.address(), |pool| pool);
    let redis = RedisServer::from(pool.clone());
    let (first, second) = (limiter(&redis, "first"), limiter(&redis, "second"));
    first.health_check().await.expect("a working Redis");
    for _ in 0..10 {
        assert!(is_allowed(&first, "alice").await && is_allowed(&second, "alice").await);
    }
    assert_eq!((pool.state().connections, pool.state().idle_connections, clients(&server)), (1, 0, 1));
    // The application uses the others, all of them: decisions go on, and no connection is opened beside the pool.
    let used = (pool.get().await.expect("a connection"), pool.get().await.expect("another one"));
    assert!(is_allowed(&first, "alice").await);
    assert_eq!((pool.state().connections, clients(&server)), (3, 3));
    drop(used);
    drop((first, second, redis));
    wait_until("the pool has all connections", || pool.state().idle_connections == 3);
}

/// A lost connection is replaced by another check-out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connection_is_replaced_by_another_check_out() {
    let mut server = Server::start();
    let pool = pool(&server.address(), |pool| pool.min_idle(2));
    let limiter = limiter(&RedisServer::from(pool.clone()), "api");
    for _ in 0..5 {
        answered(&limiter, "alice", 1).await;
        assert!(pool.state().connections <= 3);
        server.kill();
        server.restart();
    }
}

/// After an outage the pool waits longer and longer before it connects again. A connection beside it bridges that time, and
/// is closed when the pool has one. Meanwhile so many callers decide without a pause.
async fn outage_before_the_pool_connects_again(callers: usize) {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let pool = pool(&format!("redis://{}", proxy.address), |pool| pool.connection_timeout(LONG_DEADLINE));
    let limiter = limiter(&RedisServer::from(pool.clone()), "api");
    assert!(is_allowed(&limiter, "alice").await);
    proxy.shut(true);
    let outage = Instant::now();
    while outage.elapsed() < Duration::from_secs(4) {
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_err());
        sleep(Duration::from_millis(20)).await;
    }
    proxy.shut(false);
    answered(&limiter, "alice", 1).await;
    println!("answered with {:?}", pool.state());
    let limiter = Arc::new(limiter);
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let limiter = Arc::clone(&limiter);
        tasks.spawn(async move {
            loop {
                assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_ok());
            }
        });
    }
    until("the return to the pool", async || {
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_ok());
        pool.state().connections > 0 && clients(&server) <= 1
    })
    .await;
    assert!(tasks.try_join_next().is_none(), "a decision failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_ends_before_the_pool_connects_again() {
    outage_before_the_pool_connects_again(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiter_under_load_returns_to_the_pool_after_an_outage() {
    outage_before_the_pool_connects_again(64).await;
}

/// A runtime stops while it opens the connection that all share.
#[test]
fn stopped_runtime_that_opens_a_connection_of_a_pool_does_not_stop_others() {
    let (server, pool_runtime) = (Server::start(), Runtime::new().expect("a runtime"));
    let pool = pool_runtime.block_on(async { pool(&server.address(), |pool| pool) });
    let builder = Redis::<str>::builder(RedisServer::from(pool), "api", Gcra::new(QUOTA));
    let limiter = builder.deadline(Duration::from_millis(300)).build().expect("limits");
    decides_beside_a_stopped_runtime(&server, || acquire(&limiter, "alice", AcquireOptions::default()));
}

#[test]
fn limiter_with_a_pool_is_dropped_outside_of_a_runtime() {
    let server = Server::start();
    let runtime = Runtime::new().expect("a runtime");
    let (limiter, pool) = runtime.block_on(async {
        let pool = pool(&server.address(), |pool| pool.max_lifetime(Duration::from_millis(1)));
        let limiter = limiter(&RedisServer::from(pool.clone()), "api");
        assert!(is_allowed(&limiter, "alice").await);
        (limiter, pool)
    });
    drop(limiter);
    drop(runtime);
    drop(pool);
}

#[tokio::test]
async fn pool_that_cannot_work_is_a_config_error() {
    let server = Server::start();
    for (pool, cause) in [
        (pool(&server.address(), |pool| pool.max_size(1)), "`max_size` is 1"),
        (pool(&server.address(), |pool| pool.test_on_check_out(false)), "test_on_check_out"),
    ] {
        let built = Redis::<str>::builder(pool, "api", Gcra::new(QUOTA)).build().map(drop);
        let error = built.expect_err(cause);
        assert!(error.is_config() && error.to_string().contains(cause), "{error:?}");
    }
    let manager = RedisConnectionManager::new(server.address()).expect("an address");
    let limiter = limiter(&RedisServer::from_manager(manager), "api");
    limiter.health_check().await.expect("a working Redis");
    assert!(is_allowed(&limiter, "alice").await);
}
