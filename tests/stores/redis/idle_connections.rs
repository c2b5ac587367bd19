//! Idle connections that the server closes: the next decision uses another connection and is charged once.

use std::sync::{Arc, Barrier};

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use tokio::runtime::{Handle, RuntimeFlavor};
use tower_ratelimit::{AcquireOptions, FixedWindow, Limiter, Quota, Redis, RedisServer};

use crate::cluster_server::Cluster;
use crate::helpers::{acquire, is_allowed, redis_limiter};
use crate::process::wait_until;
use crate::proxy::Proxy;
use crate::sentinel_server::SentinelDeployment;
use crate::server::Server;

const QUOTA: Quota = Quota::per_day(100_000);

/// An open connection of a limiter.
struct Open {
    id: String,
    client_port: u16,
    server_port: u16,
}

fn connections(server: &Server) -> Vec<Open> {
    let clients = server.command(&["CLIENT", "LIST"]);
    let of_limiters = clients.lines().filter(|client| client.contains(" cmd=eval") || client.contains(" cmd=script"));
    let field = |client: &str, name: &str| {
        let field = client.split(' ').find_map(|field| field.strip_prefix(name));
        field.unwrap_or_else(|| panic!("{name} {client}")).to_owned()
    };
    let port =
        |client: &str, name: &str| field(client, name).rsplit(':').next().expect("a port").parse().expect("a port");
    let open = |client| Open {
        id: field(client, "id="),
        client_port: port(client, "addr="),
        server_port: port(client, "laddr="),
    };
    of_limiters.map(open).collect()
}

/// Waits until a limiter can notice that the server has closed its connections, where the system shows the states of
/// sockets: until the end of file has arrived, and, if threads of the runtime run meanwhile, until they have ended the
/// connection's task. Otherwise the limiter must let that task run.
fn wait_for_eof(closed: &[Open]) {
    let runtime = Handle::current();
    let is_driven = runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
    let is_open = |open: &Open| {
        let [client, server] = [open.client_port, open.server_port].map(|port| format!("0100007F:{port:04X}"));
        let is_open = |state: &str| state == ESTABLISHED || is_driven && state == CLOSE_WAIT;
        sockets().iter().any(|socket| socket[1] == client && socket[2] == server && is_open(&socket[3]))
    };
    wait_until("the connections are closed", || !closed.iter().any(is_open));
    if is_driven {
        // The task drops its socket before its queue. All threads meet, so none of them is in between.
        let threads = runtime.metrics().num_workers();
        let meeting = Arc::new(Barrier::new(threads + 1));
        for _ in 0..threads {
            let meeting = Arc::clone(&meeting);
            runtime.spawn(async move { meeting.wait() });
        }
        meeting.wait();
    }
}

/// States of sockets.
const ESTABLISHED: &str = "01";
const CLOSE_WAIT: &str = "08";

/// The system's sockets. Fields 1, 2, 3 and 5 are the local address, the remote address, the state and the timer.
fn sockets() -> Vec<Vec<String>> {
    let sockets = std::fs::read_to_string("/proc/self/net/tcp").unwrap_or_default();
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    sockets.lines().map(fields).filter(|fields| fields.len() > 5).collect()
}

/// Closes connections by `close`. The next decision can notice it.
fn closes(server: &Server, close: impl FnOnce(&[Open])) {
    let open = connections(server);
    close(&open);
    wait_for_eof(&open);
}

/// Closes the connections of all clients.
pub(crate) fn kill_all(server: &Server) {
    closes(server, |open| {
        assert!(!open.is_empty(), "no connection to close");
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    });
}

/// Closes the limiters' connections, but not those of other nodes and of Sentinels.
pub(crate) fn kill_limiters(server: &Server) {
    closes(server, |open| {
        for connection in open {
            server.command(&["CLIENT", "KILL", "ID", &connection.id]);
        }
    });
}

fn limiter(server: RedisServer) -> Redis<str> {
    redis_limiter(server, "api", FixedWindow::new(QUOTA))
}

async fn used(limiter: &Redis<str>, key: &str) -> u64 {
    let decision = limiter.peek(key, AcquireOptions::cost(0)).await.expect("an answer");
    QUOTA.limit() - decision.remaining().expect("a figure")
}

/// Decides, closes the connections by `close` and decides again, several times. No decision may fail.
async fn check_decisions_between(limiter: &Redis<str>, rounds: u64, close: impl Fn()) {
    assert!(is_allowed(limiter, "alice").await);
    for round in 0..rounds {
        close();
        let outcome = acquire(limiter, "alice", AcquireOptions::default()).await;
        assert!(outcome.is_ok(), "round {round}: {outcome:?}");
    }
    assert_eq!(used(limiter, "alice").await, rounds + 1, "each decision is charged once");
}

async fn killed_by_the_server() {
    let server = Server::start();
    check_decisions_between(&limiter(server.open()), 20, || kill_all(&server)).await;
    assert!(limiter(server.open()).health_check().await.is_ok());
}

#[tokio::test]
async fn idle_connection_closed_by_client_kill() {
    killed_by_the_server().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connection_closed_by_client_kill_with_two_threads() {
    killed_by_the_server().await;
}

#[tokio::test]
async fn idle_connection_closed_by_the_servers_timeout() {
    let server = Server::start();
    let limiter = limiter(server.open());
    server.command(&["CONFIG", "SET", "timeout", "1"]);
    check_decisions_between(&limiter, 2, || {
        closes(&server, |_| wait_until("the server has closed the connection", || connections(&server).is_empty()));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connection_closed_by_a_restart() {
    let mut server = Server::start();
    let limiter = limiter(server.open());
    for round in 0..5 {
        let outcome = acquire(&limiter, "alice", AcquireOptions::default()).await;
        assert!(outcome.is_ok(), "round {round}: {outcome:?}");
        let open = connections(&server);
        server.kill();
        wait_for_eof(&open);
        server.restart();
    }
}

#[tokio::test]
async fn idle_connection_closed_before_the_first_decision() {
    let server = Server::start();
    let limiter = limiter(server.open());
    // The health check leaves a connection for the first decision.
    limiter.health_check().await.expect("a working Redis");
    kill_all(&server);
    assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_ok());
}

#[tokio::test]
async fn idle_connection_of_a_custom_pool_closed() {
    let server = Server::start();
    let manager = RedisConnectionManager::new(server.address()).expect("an address");
    let pool = Pool::builder().max_size(2).build_unchecked(manager);
    check_decisions_between(&limiter(RedisServer::from(pool)), 10, || kill_all(&server)).await;
}

#[tokio::test]
async fn idle_connection_closed_in_a_cluster() {
    let cluster = Cluster::start();
    let limiter = limiter(cluster.open());
    limiter.health_check().await.expect("a working cluster");
    check_decisions_between(&limiter, 10, || cluster.nodes.iter().for_each(kill_limiters)).await;
    for key in ["a", "b", "c", "d", "e", "f"] {
        check_decisions_between_on(&cluster, &limiter, key).await;
    }
}

async fn check_decisions_between_on(cluster: &Cluster, limiter: &Redis<str>, key: &str) {
    assert!(is_allowed(limiter, key).await);
    kill_limiters(&cluster.nodes[cluster.first_master_of(&limiter.redis_key("default", key).expect("a limit"))]);
    assert!(is_allowed(limiter, key).await);
    assert_eq!(used(limiter, key).await, 2);
}

#[tokio::test]
async fn idle_connection_closed_by_a_master_behind_sentinel() {
    let watched = SentinelDeployment::start();
    let limiter = limiter(watched.open());
    check_decisions_between(&limiter, 10, || kill_limiters(&watched.master)).await;
}

/// Only an operation that was certainly not sent is sent on another connection.
#[tokio::test]
async fn sent_decision_is_never_sent_twice() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let limiter = limiter(RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address"));
    for _ in 0..10 {
        assert!(is_allowed(&limiter, "alice").await);
        proxy.cut_next_reply();
        assert!(
            acquire(&limiter, "alice", AcquireOptions::default()).await.expect_err("the reply is cut").is_unavailable()
        );
    }
    assert!(is_allowed(&limiter, "alice").await);
    assert_eq!(used(&limiter, "alice").await, 21, "each decision is charged once, answered or not");
}

/// Linux shows which sockets have a keepalive timer.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn idle_connection_has_keepalive() {
    let server = Server::start();
    let limiter = limiter(server.open());
    assert!(is_allowed(&limiter, "alice").await);
    let address = format!("0100007F:{:04X}", server.port);
    // Established, with a keepalive timer.
    let is_kept =
        |socket: &Vec<String>| socket[2] == address && socket[3] == ESTABLISHED && socket[5].starts_with("02:");
    let kept_alive = || sockets().iter().any(is_kept);
    wait_until("keepalive is on", kept_alive);
    assert!(is_allowed(&limiter, "alice").await);
}
