//! A master, a replica and three Sentinels: the limiter follows the master.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_ratelimit::{Ask, FixedWindow, Gcra, Quota, Redis, RedisServer};

use crate::helpers::{PLENTY, acquire, is_allowed, patient};
use crate::load::{DEADLINE, Load, all_answered};
use crate::nodes::until;
use crate::server::{Server, free_port};

struct Sentinel {
    process: Child,
    directory: PathBuf,
    port: u16,
}

impl Sentinel {
    fn of(master: &Server) -> Self {
        let port = free_port(false);
        let directory = std::env::temp_dir().join(format!("tower-ratelimit-sentinel-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for it");
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor mymaster 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 4000\n",
            directory.display(),
            master.port
        );
        let file = directory.join("sentinel.conf");
        std::fs::write(&file, settings).expect("its settings");
        let process = Command::new("redis-server")
            .arg(&file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a Sentinel");
        let sentinel = Self { process, directory, port };
        until("a Sentinel is up", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        sentinel
    }

    fn command(&self, parts: &[&str]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        stream.write_all((parts.join(" ") + "\r\n").as_bytes()).expect("sent");
        // Sentinel has no QUIT.
        stream.shutdown(Shutdown::Write).expect("shut");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        reply
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

struct Watched {
    sentinels: Vec<Sentinel>,
    master: Server,
    replica: Server,
}

impl Watched {
    fn start() -> Self {
        let master = Server::with(&["--repl-diskless-sync-delay", "0"]);
        let port = master.port.to_string();
        let replica = Server::with(&["--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", &port]);
        until("the replica is in step", || replica.command(&["INFO", "replication"]).contains("master_link_status:up"));
        let sentinels: Vec<_> = (0..3).map(|_| Sentinel::of(&master)).collect();
        for sentinel in &sentinels {
            until("Sentinels know of each other, and of the replica", || {
                sentinel.command(&["SENTINEL", "REPLICAS", "mymaster"]).contains(&replica.port.to_string())
                    && sentinel.command(&["SENTINEL", "SENTINELS", "mymaster"]).matches("runid").count() == 2
            });
        }
        Self { sentinels, master, replica }
    }

    fn open(&self) -> RedisServer {
        let addresses = self.sentinels.iter().map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port));
        RedisServer::sentinel(addresses, "mymaster").expect("addresses")
    }

    async fn loaded(&self) -> (Redis<str>, Load) {
        let limiter = Redis::builder(self.open(), "api", Gcra::new(PLENTY)).deadline(DEADLINE).build().expect("limits");
        limiter.check().await.expect("a working master");
        let load = Load::on(&limiter);
        sleep(Duration::from_millis(300)).await;
        (limiter, load)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_master_is_asked_and_a_replica_is_not() {
    let watched = Watched::start();
    let limiter = patient::<str>(watched.open(), "api", FixedWindow::new(Quota::per_hour(2)));
    limiter.check().await.expect("a working master");
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
    let (limiter, load) = watched.loaded().await;
    let began = Instant::now();
    watched.master.kill();
    all_answered(&limiter).await;
    let samples = load.report("Sentinel: kill -9 of the master", began).await;
    assert!(samples.iter().any(|sample| !sample.answered));
    assert!(watched.replica.command(&["ROLE"]).contains("master"));
    // The connection that was idle finds out by failing.
    while acquire(&limit, "alice", Ask::default()).await.is_err() {}
    assert!(!is_allowed(&limit, "alice").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_becomes_a_replica_is_left() {
    let watched = Watched::start();
    let (limiter, load) = watched.loaded().await;
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
    let addresses = || watched.sentinels.iter().map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port));
    let server = RedisServer::sentinel(addresses(), "nobody").expect("addresses");
    let limiter = patient::<str>(server, "api", Gcra::new(PLENTY));
    assert!(limiter.check().await.expect_err("no such master").is_unavailable());
    assert!(RedisServer::sentinel(addresses(), "").expect_err("no name").is_config());
    assert!(RedisServer::sentinel(Vec::<String>::new(), "mymaster").expect_err("no Sentinel").is_config());
    assert!(RedisServer::sentinel_with(addresses(), "mymaster", "unix:///x").expect_err("a socket").is_config());
}
