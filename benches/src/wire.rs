//! An axum server on loopback under `wrk`, if there is one: all allowed, all refused. Each server has a runtime of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_ratelimit::{Gcra, Http, Memory, PeerIp, Quota, RateLimitLayer};

use crate::harness::{Harness, median};

const PLENTY: Gcra = Gcra::new(Quota::per_second(1_000_000)).burst(u32::MAX as u64);
/// One at all, which is used up before anything is measured.
const ONE: Gcra = Gcra::new(Quota::per_day(1));

pub(crate) fn run(harness: &mut Harness) {
    let scenarios = ["wire allowed", "wire refused"].map(|scenario| (scenario, harness.wants(scenario)));
    if !scenarios.iter().any(|(_, wanted)| *wanted) {
        return;
    }
    if Command::new("wrk").arg("--version").output().is_err() {
        eprintln!(
            "\n*** NOT MEASURED: the scenarios `wire ..` need wrk, which is not installed.\n\
             *** On Debian: apt-get install -y wrk. On macOS: brew install wrk.\n"
        );
        return;
    }
    for (scenario, wanted) in scenarios {
        if wanted {
            measure(harness, scenario, scenario == "wire refused");
        }
    }
}

fn measure(harness: &Harness, scenario: &str, refused: bool) {
    let algorithm = if refused { ONE } else { PLENTY };
    let (period, burst) = if refused { (Duration::from_secs(86_400), 1) } else { (Duration::from_nanos(1), u32::MAX) };
    let hello = || Router::new().route("/", get(async || "hello"));
    let bare = RateLimitLayer::new(PeerIp::new(), Memory::new(algorithm)).responder(Http::minimal());
    let config = GovernorConfigBuilder::default().period(period).burst_size(burst).finish();
    let servers = [
        // As it is by default: with header fields, extensions, and a problem body.
        Server::start("ours", hello().layer(RateLimitLayer::new(PeerIp::new(), Memory::new(algorithm)))),
        Server::start("no_limit", hello()),
        Server::start("tower_governor", hello().layer(GovernorLayer::new(Arc::new(config.expect("valid"))))),
        Server::start("ours_without_fields", hello().layer(bare)),
    ];
    let (rounds, seconds) = if harness.is_quick() { (3, "1s") } else { (7, "3s") };
    let mut rates = servers.each_ref().map(|_| Vec::new());
    servers.iter().for_each(Server::ask_once);
    for _ in 0..rounds {
        for (server, rates) in servers.iter().zip(&mut rates) {
            let answers = wrk(server.address, seconds);
            let are_refused = refused && server.name != "no_limit";
            assert_eq!(answers.refused, if are_refused { answers.all } else { 0 }, "of {}", server.name);
            rates.push(answers.per_second);
        }
    }
    let figures: Vec<_> = servers.iter().map(|server| server.name).zip(rates.map(median)).collect();
    harness.report(scenario, json!({}), "per_second", &figures);
}

/// A server on one thread of its own.
struct Server {
    name: &'static str,
    address: SocketAddr,
    _runtime: Runtime,
}

impl Server {
    fn start(name: &'static str, app: Router) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address");
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { name, address, _runtime: runtime }
    }

    /// Uses up the one that there is.
    fn ask_once(&self) {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

struct Answers {
    all: u64,
    /// Those of another class than 2xx and 3xx.
    refused: u64,
    per_second: f64,
}

fn wrk(address: SocketAddr, seconds: &str) -> Answers {
    let url = format!("http://{address}/");
    let output = Command::new("wrk").args(["-t1", "-c32", "-d", seconds, &url]).output().expect("wrk");
    let text = String::from_utf8_lossy(&output.stdout);
    let after = |label: &str| text.lines().find_map(|line| line.trim().strip_prefix(label)).map(str::trim);
    let number = |text: &str| text.parse().ok();
    // "  123456 requests in 3.00s, 17.00MB read"
    let all = text.lines().find_map(|line| line.trim().split_once(" requests in ")).and_then(|(all, _)| number(all));
    Answers {
        all: all.expect("how many answers wrk had"),
        refused: after("Non-2xx or 3xx responses:").map_or(0, |count| number(count).expect("a number")),
        per_second: after("Requests/sec:").and_then(|rate| rate.parse().ok()).expect("how many a second wrk had"),
    }
}
