//! Idle connections that the server closes: the next decision uses another connection and is charged once.

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use tower_ratelimit::{AcquireOptions, FixedWindow, Limiter, Quota, Redis, RedisServer};

use crate::cluster_server::Cluster;
use crate::helpers::{acquire, is_allowed, redis_limiter};
use crate::process::wait_until;
use crate::proxy::Proxy;
use crate::sentinel_server::SentinelDeployment;
use crate::server::Server;

const QUOTA: Quota = Quota::per_day(100_000);

/// The limiters' connections to a server: the id and the client port of each.
fn connections(server: &Server) -> Vec<(String, u16)> {
    let clients = server.command(&["CLIENT", "LIST"]);
    let of_limiters = clients.lines().filter(|client| client.contains(" cmd=eval") || client.contains(" cmd=script"));
    let field = |client: &str, name: &str| {
        let field = client.split(' ').find_map(|field| field.strip_prefix(name));
        field.unwrap_or_else(|| panic!("{name} {client}")).to_owned()
    };
    let port = |client: &str| field(client, "addr=").rsplit(':').next().expect("a port").parse().expect("a port");
    of_limiters.map(|client| (field(client, "id="), port(client))).collect()
}

/// Waits until the end of file has arrived, where the system shows it. Before that, no client can detect it.
fn wait_for_eof(server: &Server, connections: &[(String, u16)]) {
    let is_established = |&(_, port): &(String, u16)| {
        let [client, server] = [port, server.port].map(|port| format!("0100007F:{port:04X}"));
        sockets().iter().any(|socket| socket[1] == client && socket[2] == server && socket[3] == "01")
    };
    wait_until("the end of file has arrived", || !connections.iter().any(is_established));
}

/// The system's sockets. Fields 1, 2, 3 and 5 are the local address, the remote address, the state and the timer.
fn sockets() -> Vec<Vec<String>> {
    let sockets = std::fs::read_to_string("/proc/self/net/tcp").unwrap_or_default();
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    sockets.lines().map(fields).filter(|fields| fields.len() > 5).collect()
}

/// Closes the connections of all clients.
pub(crate) fn kill_all(server: &Server) {
    let connections = connections(server);
    assert!(!connections.is_empty(), "no connection to close");
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    wait_for_eof(server, &connections);
}

/// Closes the limiters' connections, but not those of other nodes and of Sentinels.
fn kill_limiters(server: &Server) {
    let connections = connections(server);
    for (id, _) in &connections {
        server.command(&["CLIENT", "KILL", "ID", id]);
    }
    wait_for_eof(server, &connections);
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
        let open = connections(&server);
        wait_until("the server has closed the connection", || connections(&server).is_empty());
        wait_for_eof(&server, &open);
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
        server.kill();
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
    let is_kept = |socket: &Vec<String>| socket[2] == address && socket[3] == "01" && socket[5].starts_with("02:");
    let kept_alive = || sockets().iter().any(is_kept);
    wait_until("keepalive is on", kept_alive);
    assert!(is_allowed(&limiter, "alice").await);
}
