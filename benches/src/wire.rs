//! An axum server on the loopback interface: all requests allowed and all rejected under `wrk`, and a paced body.
//!
//! Each server has its own runtime. Without `wrk` its scenarios are skipped with a message.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::ready;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::routing::get;
use futures_util::{FutureExt, stream};
use http::{Request, Response};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tower::{Layer, ServiceExt, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_ratelimit::key::Global;
use tower_ratelimit::pacing::PacingLayer;
use tower_ratelimit::{Gcra, Http, Memory, PeerIp, Quota, RateLimitLayer, TokenBucket};

use crate::harness::{Contestant, Harness, median};

const PLENTY: Gcra = Gcra::new(Quota::per_second(1_000_000)).burst(u32::MAX as u64);
/// One request per day, which `Server::send_one` uses up before the measurement.
const ONE: Gcra = Gcra::new(Quota::per_day(1));

pub(crate) fn run(harness: &mut Harness) {
    compare_frames(harness);
    if harness.wants("wire paced body") {
        measure_bodies(harness);
    }
    let scenarios = ["wire allowed", "wire rejected"].map(|scenario| (scenario, harness.wants(scenario)));
    if !scenarios.iter().any(|(_, wanted)| *wanted) {
        return;
    }
    if Command::new("wrk").arg("--version").output().is_err() {
        eprintln!(
            "\n*** NOT MEASURED: the scenarios `wire ..`: wrk is not installed.\n\
             *** Install it: apt-get install -y wrk (Debian), brew install wrk (macOS).\n"
        );
        return;
    }
    for (scenario, wanted) in scenarios {
        if wanted {
            measure(harness, scenario, scenario == "wire rejected");
        }
    }
}

fn measure(harness: &Harness, scenario: &str, rejected: bool) {
    let algorithm = if rejected { ONE } else { PLENTY };
    let (period, burst) = if rejected { (Duration::from_secs(86_400), 1) } else { (Duration::from_nanos(1), u32::MAX) };
    let hello = || Router::new().route("/", get(async || "hello"));
    let bare = RateLimitLayer::new(PeerIp::new(), Memory::new(algorithm)).responder(Http::without_headers());
    let config = GovernorConfigBuilder::default().period(period).burst_size(burst).finish();
    let servers = [
        // The default responder: with header fields, extensions and a problem body.
        Server::start("ours", hello().layer(RateLimitLayer::new(PeerIp::new(), Memory::new(algorithm)))),
        Server::start("no_limit", hello()),
        Server::start("tower_governor", hello().layer(GovernorLayer::new(Arc::new(config.expect("valid"))))),
        Server::start("ours_without_headers", hello().layer(bare)),
    ];
    let (rounds, seconds) = if harness.is_quick() { (3, "1s") } else { (7, "3s") };
    let mut rates = servers.each_ref().map(|_| Vec::new());
    servers.iter().for_each(Server::send_one);
    for _ in 0..rounds {
        for (server, rates) in servers.iter().zip(&mut rates) {
            let responses = wrk(server.address, seconds);
            let expect_rejected = rejected && server.name != "no_limit";
            assert_eq!(
                responses.rejected,
                if expect_rejected { responses.all } else { 0 },
                "rejected by {}",
                server.name
            );
            rates.push(responses.per_second);
        }
    }
    let values: Vec<_> = servers.iter().map(|server| server.name).zip(rates.map(median)).collect();
    harness.report(scenario, json!({}), "per_second", &values);
}

/// What pacing adds to a frame of 64 KiB, whose rate is never reached.
fn compare_frames(harness: &Harness) {
    fn poll(mut body: impl HttpBody<Error: Debug> + Unpin) -> impl FnMut(u64) {
        move |count| {
            for _ in 0..count {
                let frame = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
                assert!(matches!(frame, Poll::Ready(Some(Ok(_)))));
            }
        }
    }
    let endless = || Body::from_stream(stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[7; 1 << 16]))));
    let rate = TokenBucket::new(Quota::per_second(1_000_000_000)).burst(1 << 46);
    let layer = PacingLayer::downloads(Global, Memory::<(), _>::new(rate));
    let respond = service_fn(move |_: Request<Body>| ready(Ok::<_, Infallible>(Response::new(endless()))));
    let paced = move |_| {
        let response = layer.layer(respond).oneshot(Request::default()).now_or_never();
        poll(response.expect("ready").expect("a response").into_body())
    };
    harness.compare(
        "wire paced frame",
        1,
        &[Contestant::new("ours", paced), Contestant::new("bare", move |_| poll(endless()))],
    );
}

/// The processor time of a server that sends a gigabyte in frames of 64 KiB: paced by a rate that is never reached, and
/// without pacing.
fn measure_bodies(harness: &Harness) {
    let frames = if harness.is_quick() { 1_600 } else { 16_000 };
    let app = || {
        let frame = Bytes::from_static(&[7; 1 << 16]);
        let frames = stream::iter((0..frames).map(move |_| Ok::<_, Infallible>(frame.clone())));
        Router::new().route("/", get(async move || Body::from_stream(frames)))
    };
    let rate = TokenBucket::new(Quota::per_second(1_000_000_000)).burst(1 << 40);
    let servers = [
        Server::start("ours", app().layer(PacingLayer::downloads(PeerIp::new(), Memory::new(rate)))),
        Server::start("not_paced", app()),
    ];
    let mut seconds = [Vec::new(), Vec::new()];
    for round in 0..18 {
        for index in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let before = servers[index].processor_seconds();
            servers[index].download();
            seconds[index].push(servers[index].processor_seconds() - before);
        }
    }
    harness.report_rounds("wire paced body", &json!({}), "processor seconds", &["ours", "not_paced"], &seconds);
}

/// A server on its own thread.
struct Server {
    name: &'static str,
    address: SocketAddr,
    runtime: Runtime,
}

impl Server {
    fn start(name: &'static str, app: Router) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address");
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { name, address, runtime }
    }

    /// Reads a whole response.
    fn download(&self) {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("a request");
        let (mut buffer, mut received) = (vec![0; 1 << 18], 0);
        loop {
            match stream.read(&mut buffer).expect("a response") {
                0 => break,
                read => received += read,
            }
        }
        assert!(received > 100_000_000, "{received} bytes");
    }

    /// Returns the processor time that the server's thread has used.
    fn processor_seconds(&self) -> f64 {
        let thread = self.runtime.spawn(async { std::fs::read_to_string("/proc/thread-self/schedstat") });
        let stat = self.runtime.block_on(thread).expect("no panic").expect("Linux");
        let nanos = stat.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok());
        nanos.expect("nanoseconds") / 1e9
    }

    /// Sends the one request that is allowed where `ONE` is the limit.
    fn send_one(&self) {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("a request");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    }
}

struct Responses {
    all: u64,
    /// The responses with a status other than 2xx and 3xx.
    rejected: u64,
    per_second: f64,
}

fn wrk(address: SocketAddr, seconds: &str) -> Responses {
    let url = format!("http://{address}/");
    let output = Command::new("wrk").args(["-t1", "-c32", "-d", seconds, &url]).output().expect("wrk");
    let text = String::from_utf8_lossy(&output.stdout);
    let after = |label: &str| text.lines().find_map(|line| line.trim().strip_prefix(label)).map(str::trim);
    let number = |text: &str| text.parse().ok();
    // "  123456 requests in 3.00s, 17.00MB read"
    let all = text.lines().find_map(|line| line.trim().split_once(" requests in ")).and_then(|(all, _)| number(all));
    Responses {
        all: all.expect("the number of responses that wrk prints"),
        rejected: after("Non-2xx or 3xx responses:").map_or(0, |count| number(count).expect("a number")),
        per_second: after("Requests/sec:").and_then(|rate| rate.parse().ok()).expect("the rate that wrk prints"),
    }
}
