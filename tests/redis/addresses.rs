//! How Redis is reached, and what is said when it is not.

use std::error::Error as _;
use std::time::Duration;

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use tower_ratelimit::{Error, Gcra, Quota, Redis, RedisServer};

use crate::helpers::{is_allowed, patient};
use crate::server::Server;

const QUOTA: Quota = Quota::per_hour(100);

fn at(address: &str) -> Redis<str> {
    patient(RedisServer::open(address).expect("an address"), "api", Gcra::new(QUOTA))
}

async fn works(address: &str) {
    let limiter = at(address);
    limiter.check().await.unwrap_or_else(|error| panic!("{address}: {error:?}"));
    assert!(is_allowed(&limiter, "alice").await, "{address}");
}

#[tokio::test]
async fn a_port_is_reached() {
    let server = Server::start();
    works(&format!("redis://127.0.0.1:{}", server.port)).await;
    works(&format!("redis://localhost:{}/", server.port)).await;
    assert_eq!(server.keys().len(), 1);
}

#[tokio::test]
async fn a_socket_is_reached() {
    let path = std::env::temp_dir().join(format!("tower-ratelimit-{}.sock", std::process::id()));
    let path = path.to_str().expect("text");
    let server = Server::with(&["--unixsocket", path]);
    works(&format!("unix://{path}")).await;
    assert_eq!(server.keys().len(), 1);
    drop(server);
    let _ = std::fs::remove_file(path);
}

#[tokio::test]
async fn a_user_is_known_by_name_and_password() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "app", "on", ">secret", "~ratelimit:*", "+@all"]);
    works(&format!("redis://app:secret@127.0.0.1:{}", server.port)).await;
    server.command(&["CONFIG", "SET", "requirepass", "other secret"]);
    works(&format!("redis://:other%20secret@127.0.0.1:{}", server.port)).await;
}

#[tokio::test]
async fn the_rights_that_are_documented_are_enough() {
    let server = Server::start();
    let rights =
        ["eval", "evalsha", "get", "mget", "psetex", "set", "del", "exists", "time", "getrange", "setrange", "pexpire"];
    let rights: Vec<_> = rights.iter().map(|right| format!("+{right}")).collect();
    let mut user = vec!["ACL", "SETUSER", "app", "on", ">secret", "~ratelimit:*"];
    user.extend(rights.iter().map(String::as_str));
    user.push("+script|load");
    server.command(&user);
    let address = format!("redis://app:secret@127.0.0.1:{}", server.port);
    works(&address).await;
    let log = patient::<str>(
        RedisServer::open(&address).expect("an address"),
        "log",
        tower_ratelimit::SlidingLog::new(QUOTA),
    );
    for _ in 0..20 {
        assert!(is_allowed(&log, "alice").await);
    }
}

#[tokio::test]
async fn a_database_is_chosen_by_its_number() {
    let server = Server::start();
    works(&format!("redis://127.0.0.1:{}/3", server.port)).await;
    assert!(server.keys().is_empty());
    assert!(server.commands(&[&["SELECT", "3"], &["KEYS", "*"]]).contains(":alice"));
}

#[tokio::test]
async fn a_pool_of_ones_own_will_do_and_what_is_dead_in_it_is_no_matter() {
    for tests in [true, false] {
        let mut server = Server::start();
        let manager = RedisConnectionManager::new(server.address()).expect("an address");
        let pool =
            Pool::builder().max_size(2).min_idle(2).test_on_check_out(tests).build(manager).await.expect("a pool");
        let limiter = patient::<str>(pool.clone().into(), "api", Gcra::new(QUOTA));
        limiter.check().await.expect("a working Redis");
        assert!(is_allowed(&limiter, "alice").await);
        // Somebody else may use up the pool.
        let (first, second) = (pool.get().await.expect("one"), pool.get().await.expect("another"));
        assert!(is_allowed(&limiter, "alice").await);
        drop((first, second));
        server.kill();
        server.restart();
        // One call finds out, if that was not noticed yet.
        let mut answered = 0;
        for _ in 0..20 {
            answered +=
                u32::from(crate::helpers::acquire(&limiter, "alice", tower_ratelimit::Ask::default()).await.is_ok());
        }
        assert!(answered >= 19, "{answered} of 20, test_on_check_out {tests}");
    }
}

#[tokio::test]
async fn an_idle_connection_that_the_server_closed_costs_one_call_at_most() {
    let server = Server::start();
    let limiter = at(&server.address());
    for _ in 0..3 {
        let mut answered = 0;
        for _ in 0..5 {
            answered +=
                u32::from(crate::helpers::acquire(&limiter, "alice", tower_ratelimit::Ask::default()).await.is_ok());
        }
        assert!(answered >= 4, "{answered} of 5");
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
}

fn says(error: &Error, words: &str) {
    assert!(error.to_string().contains(words), "{error:?}");
}

#[test]
fn what_is_no_address_is_told_and_its_password_is_not() {
    for wrong in [
        "",
        "127.0.0.1",
        "http://127.0.0.1",
        "redis://:hunter2@[",
        "redis://x:hunter2@127.0.0.1:port",
        "redis://127.0.0.1/x",
    ] {
        let Err(error) = RedisServer::open(wrong) else { panic!("{wrong} is no address") };
        assert!(error.is_config());
        says(&error, "redis://[user:password@]host[:port][/database]");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    let server = RedisServer::open("redis://app:hunter2@127.0.0.1").expect("an address");
    let limiter = Redis::<str>::new(server.clone(), "api", Gcra::new(QUOTA));
    assert!(!format!("{server:?} {limiter:?}").contains("hunter2"));
}

#[tokio::test]
async fn no_server_is_told_at_once() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
    let limiter = at(&format!("redis://127.0.0.1:{port}"));
    let check = tokio::time::timeout(Duration::from_secs(1), limiter.check());
    let error = check.await.expect("a refused connection is known at once").expect_err("there is none");
    assert!(error.is_unavailable());
    says(&error, "connection to Redis failed");
    assert!(error.source().expect("a cause").to_string().contains("refused"), "{error:?}");
    // So it is to whoever asks.
    let error = crate::helpers::acquire(&limiter, "alice", tower_ratelimit::Ask::default()).await.expect_err("none");
    assert!(error.is_unavailable() && error.source().expect("a cause").to_string().contains("refused"), "{error:?}");
}

#[tokio::test]
async fn a_wrong_password_is_told() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all"]);
    for user in ["app:wrong@", "nobody:secret@", ":wrong@"] {
        if user == ":wrong@" {
            server.command(&["CONFIG", "SET", "requirepass", "other"]);
        }
        let error = at(&format!("redis://{user}127.0.0.1:{}", server.port)).check().await.expect_err("wrong");
        assert!(error.is_unavailable());
        says(&error, "refused the user's name or password");
        assert!(!format!("{error:?}").contains("wrong@"));
    }
    let error = at(&server.address()).check().await.expect_err("none given");
    says(&error, "password");
}

#[tokio::test]
async fn a_server_that_refuses_scripts_or_writes_is_told() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-@scripting"]);
    let error = at(&format!("redis://app:secret@127.0.0.1:{}", server.port)).check().await.expect_err("no scripts");
    says(&error, "EVALSHA");
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    says(&at(&server.address()).check().await.expect_err("no writes"), "replica");
    server.command(&["REPLICAOF", "NO", "ONE"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    says(&at(&server.address()).check().await.expect_err("no writes"), "maxmemory");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_told_within_its_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let error = at(&format!("redis://{address}")).check().await.expect_err("it says nothing");
    assert!(error.is_unavailable());
    says(&error, "within 2s");
}

#[test]
fn no_runtime_is_told() {
    let limiter = at("redis://127.0.0.1:1");
    for error in [
        futures_util::FutureExt::now_or_never(limiter.check()).expect("at once").expect_err("no runtime"),
        match tower_ratelimit::Limiter::acquire(&limiter, "alice", tower_ratelimit::Ask::default()) {
            tower_ratelimit::limiter::Acquire::Ready(result) => result.expect_err("no runtime"),
            tower_ratelimit::limiter::Acquire::Pending(_) => panic!("nobody would send it"),
        },
    ] {
        assert!(error.is_config());
        says(&error, "tokio runtime");
    }
}

#[tokio::test]
async fn a_check_makes_all_ready() {
    let server = Server::start();
    let limiter = at(&server.address());
    limiter.check().await.expect("a working Redis");
    let before = server.command(&["INFO", "stats"]);
    assert!(is_allowed(&limiter, "alice").await);
    let (after, stats) = (server.command(&["INFO", "stats"]), server.command(&["INFO", "commandstats"]));
    let connections = |text: &str| {
        let count = text.lines().find_map(|line| line.strip_prefix("total_connections_received:")).expect("a count");
        count.parse::<u64>().expect("a number")
    };
    // One is that of the second question itself.
    assert_eq!(connections(&after) - connections(&before), 1, "no new connection");
    assert!(!stats.contains("cmdstat_eval:"), "no script was sent again: {stats}");
}
