//! An axum server on a free port of 127.0.0.1 and real clients, over kept-alive and new connections. The clock is
//! manual.
//!
//! Independent parsers read the responses: hyper for HTTP, `sfv` for structured fields, `serde_json` for problem
//! bodies. A client that waits for `Retry-After` is allowed.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::{DynLimit, FixedWindow, Gcra, Http, ManualClock, PeerIp, Quota, RateLimitLayer, SlidingLog};

use crate::fields::{limits, policies, retry_after};
use crate::support::{self, named, serve, several, spawn};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a page that is limited by the address of the client, and its clock.
fn site(limits: Vec<DynLimit<u32>>) -> (Router, ManualClock) {
    let clock = ManualClock::new();
    let layer = RateLimitLayer::new(PeerIp::new(), several(limits, clock.clone()));
    (Router::new().route("/", get(async || "hello")).layer(layer), clock)
}

fn limit(algorithm: impl Algorithm) -> DynLimit<u32> {
    support::limit("default", algorithm)
}

/// A kept-alive connection.
struct Connection(SendRequest<Full<Bytes>>);

impl Connection {
    async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP");
        spawn(connection);
        Self(sender)
    }

    async fn get(&mut self) -> Response<Bytes> {
        self.0.ready().await.expect("the connection is kept alive");
        let request = Request::get("/").header("host", "127.0.0.1").body(Full::default()).expect("a request");
        let (head, body) = self.0.send_request(request).await.expect("an answer").into_parts();
        Response::from_parts(head, body.collect().await.expect("the whole body").to_bytes())
    }
}

fn problem(response: &Response<Bytes>) -> Value {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(response.headers()["content-length"], response.body().len().to_string().as_str());
    serde_json::from_slice(response.body()).expect("JSON")
}

#[tokio::test]
async fn client_is_allowed_exactly_after_retry_after() {
    let (site, clock) = site(vec![limit(FixedWindow::new(Quota::new(3, 10 * SECOND)))]);
    let mut client = Connection::open(serve(site).await).await;

    for remaining in [2, 1, 0] {
        let response = client.get().await;
        assert_eq!((response.status(), &response.body()[..]), (StatusCode::OK, &b"hello"[..]));
        assert_eq!(policies(response.headers()), [("default".into(), 3, 10)]);
        assert_eq!(limits(response.headers()), [("default".into(), remaining, Some(10))]);
        assert_eq!(retry_after(response.headers()), None);
    }
    for (passed, seconds, time) in
        [(0, 10, Some(10)), (100, 10, Some(10)), (8_400, 2, Some(2)), (500, 1, Some(1)), (999, 1, None)]
    {
        clock.advance(Duration::from_millis(passed));
        let response = client.get().await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(retry_after(response.headers()), Some(seconds), "rounded up, and never 0");
        assert_eq!(limits(response.headers()), [("default".into(), 0, time)], "a time below one second is left out");
        assert_eq!(problem(&response)["status"], 429);
    }
    clock.advance(Duration::from_millis(1));
    assert_eq!(client.get().await.status(), StatusCode::OK, "on the same connection");
}

/// A client that waits for `Retry-After` seconds is allowed, whatever the quota.
#[tokio::test]
async fn retry_after_is_sufficient_for_every_quota() {
    let minute = || support::limit("minute", FixedWindow::new(Quota::per_minute(5)));
    for limits in [
        vec![limit(Gcra::new(Quota::per_second(3)).burst(4))],
        vec![limit(Gcra::new(Quota::per_minute(7)).burst(2))],
        vec![limit(Gcra::new(Quota::per_second(2)).burst(3)), minute()],
        vec![limit(SlidingLog::new(Quota::new(4, 7 * SECOND)))],
    ] {
        let (site, clock) = site(limits);
        let mut client = Connection::open(serve(site).await).await;
        let mut rejections = 0;
        while rejections < 5 {
            let response = client.get().await;
            if response.status() == StatusCode::OK {
                continue;
            }
            rejections += 1;
            clock.advance(Duration::from_secs(retry_after(response.headers()).expect("a wait")));
            assert_eq!(client.get().await.status(), StatusCode::OK);
            // Later waits are then not whole seconds.
            clock.advance(Duration::from_micros(123_457));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_connections_of_one_address_share_the_limit() {
    let (site, _clock) = site(vec![limit(FixedWindow::new(Quota::per_minute(7)))]);
    let address = serve(site).await;
    let clients = (0..8).map(|_| {
        spawn(async move {
            let mut client = Connection::open(address).await;
            let mut remaining = Vec::new();
            for _ in 0..4 {
                let response = client.get().await;
                if response.status() == StatusCode::OK {
                    remaining.push(limits(response.headers())[0].1);
                }
            }
            remaining
        })
    });
    let mut remaining = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        remaining.extend(client.await.expect("a client"));
    }
    assert_eq!(remaining.len(), 7);
    assert_eq!(
        remaining.into_iter().collect::<BTreeSet<_>>(),
        (0..7).collect(),
        "each response has a different remainder"
    );
}

/// The server knows the size of a mapped body, so that it does not use chunked encoding.
#[tokio::test]
async fn mapped_body_keeps_its_content_length() {
    let layer = RateLimitLayer::new(PeerIp::new(), named("default", 1)).responder(Http::new().map_body());
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let mut client = Connection::open(serve(app).await).await;
    let response = client.get().await;
    assert_eq!((response.status(), &response.body()[..]), (StatusCode::OK, &b"hello"[..]));
    assert_eq!(response.headers()["content-length"], "5");
    let response = client.get().await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(problem(&response)["violated-policies"], json!(["default"]));
    assert_eq!(client.get().await.status(), StatusCode::TOO_MANY_REQUESTS, "the connection stays usable");
}
