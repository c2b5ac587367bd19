//! An axum server on a free port of 127.0.0.1 and real clients, over kept-alive and new connections. The clock is
//! manual.
//!
//! Independent parsers read the responses: hyper for HTTP, `sfv` for structured fields, `serde_json` for problem
//! bodies. A client that waits for `Retry-After` is allowed.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::response::AppendHeaders;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tower_ratelimit::key::Header;
use tower_ratelimit::response::{Headers, ResetFormat};
use tower_ratelimit::{
    FixedWindow, Gcra, Http, Limit, Limiter, ManualClock, Memory, PeerIp, Quota, RateLimitLayer, SlidingLog,
};

use crate::fields::{has_fields, legacy, limits, policies, retry_after};
use crate::support::{serve, spawn};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a page that is limited by the address of the client, and a page without a limit.
fn site<A>(limiter: A, responder: Http) -> Router
where
    A: Limiter<std::net::IpAddr> + Clone,
{
    Router::new()
        .route("/", get(async || "hello").post(async |body: Bytes| body))
        .layer(RateLimitLayer::new(PeerIp::new(), limiter).responder(responder))
        .route("/health", get(async || "ok"))
}

fn memory<Key: ?Sized, L>(limits: L) -> (Memory<Key, L>, ManualClock)
where
    L: tower_ratelimit::store::MemoryLimits<Key, tower_ratelimit::store::DefaultHashBuilder>,
{
    let clock = ManualClock::new();
    (Memory::builder(limits).max_keys(100).clock(clock.clone()).build().expect("a limiter"), clock)
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

    async fn send(&mut self, request: http::request::Builder, body: &'static str) -> Response<Bytes> {
        self.0.ready().await.expect("the connection is kept alive");
        let request = request.header("host", "127.0.0.1").body(Full::from(body)).expect("a request");
        let (head, body) = self.0.send_request(request).await.expect("an answer").into_parts();
        Response::from_parts(head, body.collect().await.expect("the whole body").to_bytes())
    }

    async fn get(&mut self, path: &str) -> Response<Bytes> {
        self.send(Request::get(path), "").await
    }
}

fn problem(response: &Response<Bytes>) -> Value {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(response.headers()["content-length"], response.body().len().to_string().as_str());
    serde_json::from_slice(response.body()).expect("JSON")
}

#[tokio::test]
async fn client_is_allowed_exactly_after_retry_after() {
    let (limiter, clock) = memory(FixedWindow::new(Quota::new(3, 10 * SECOND)));
    let address = serve(site(limiter, Http::new())).await;
    let mut client = Connection::open(address).await;

    for remaining in [2, 1, 0] {
        let response = client.get("/").await;
        assert_eq!((response.status(), &response.body()[..]), (StatusCode::OK, &b"hello"[..]));
        assert_eq!(policies(response.headers()), [("default".into(), 3, 10)]);
        assert_eq!(limits(response.headers()), [("default".into(), remaining, Some(10))]);
        assert_eq!(retry_after(response.headers()), None);
    }
    for (passed, seconds, time) in
        [(0, 10, Some(10)), (100, 10, Some(10)), (8_400, 2, Some(2)), (500, 1, Some(1)), (999, 1, None)]
    {
        clock.advance(Duration::from_millis(passed));
        let response = client.get("/").await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(retry_after(response.headers()), Some(seconds), "rounded up, and never 0");
        assert_eq!(limits(response.headers()), [("default".into(), 0, time)], "a time below one second is left out");
        assert_eq!(problem(&response)["status"], 429);
    }
    clock.advance(Duration::from_millis(1));
    assert_eq!(client.get("/").await.status(), StatusCode::OK, "on the same connection");
}

/// A client that waits for `Retry-After` seconds is allowed, whatever the quota.
#[tokio::test]
async fn retry_after_is_sufficient_for_every_quota() {
    async fn check(limiter: impl Limiter<std::net::IpAddr> + Clone, clock: ManualClock) {
        let mut client = Connection::open(serve(site(limiter, Http::new())).await).await;
        let mut rejections = 0;
        while rejections < 5 {
            let response = client.get("/").await;
            if response.status() == StatusCode::OK {
                continue;
            }
            rejections += 1;
            clock.advance(Duration::from_secs(retry_after(response.headers()).expect("a wait")));
            assert_eq!(client.get("/").await.status(), StatusCode::OK);
            // Later waits are then not whole seconds.
            clock.advance(Duration::from_micros(123_457));
        }
    }
    let (limiter, clock) = memory(Gcra::new(Quota::per_second(3)).burst(4));
    check(limiter, clock).await;
    let (limiter, clock) = memory(Gcra::new(Quota::per_minute(7)).burst(2));
    check(limiter, clock).await;
    let (limiter, clock) = memory((
        Limit::new("smooth", Gcra::new(Quota::per_second(2)).burst(3)),
        Limit::new("minute", FixedWindow::new(Quota::per_minute(5))),
    ));
    check(limiter, clock).await;
    let (limiter, clock) = memory(SlidingLog::new(Quota::new(4, 7 * SECOND)));
    check(limiter, clock).await;
}

#[tokio::test]
async fn connections_of_one_address_share_the_limit() {
    let (limiter, _clock) = memory(FixedWindow::new(Quota::per_minute(3)));
    let address = serve(site(limiter, Http::new())).await;
    let mut kept = Connection::open(address).await;
    for expected in [200, 200, 200, 429, 429] {
        let status = if expected == 200 {
            Connection::open(address).await.get("/").await.status()
        } else {
            kept.get("/").await.status()
        };
        assert_eq!(status, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_connections_share_the_limit() {
    let (limiter, _clock) = memory(FixedWindow::new(Quota::per_minute(7)));
    let address = serve(site(limiter, Http::new())).await;
    let clients = (0..8).map(|_| {
        spawn(async move {
            let mut client = Connection::open(address).await;
            let mut remaining = Vec::new();
            for _ in 0..4 {
                let response = client.get("/").await;
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

#[tokio::test]
async fn route_outside_the_layer_has_no_limit_and_no_fields() {
    let (limiter, _clock) = memory(FixedWindow::new(Quota::per_minute(1)));
    let mut client = Connection::open(serve(site(limiter, Http::new())).await).await;
    assert_eq!(client.get("/").await.status(), StatusCode::OK);
    assert_eq!(client.get("/").await.status(), StatusCode::TOO_MANY_REQUESTS);
    for _ in 0..3 {
        let response = client.get("/health").await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!has_fields(response.headers()), "{:?}", response.headers());
    }
}

#[tokio::test]
async fn response_lists_several_limits_with_quoted_names() {
    let (spaced, comma) = (" a 'name' 100% ", "x;r=999, y");
    let (limiter, _clock) = memory((
        Limit::new(spaced, Gcra::new(Quota::per_second(2))),
        Limit::new("size", FixedWindow::new(Quota::per_hour(2))),
        Limit::new(comma, FixedWindow::new(Quota::per_day(9))),
    ));
    let mut client = Connection::open(serve(site(limiter, Http::new())).await).await;
    let names = [spaced, "size", comma].map(str::to_owned);
    for remaining in [[1, 1, 8], [0, 0, 7]] {
        let response = client.get("/").await;
        assert_eq!(response.status(), StatusCode::OK);
        let policy: Vec<_> = names.iter().cloned().zip([(2, 1), (2, 3600), (9, 86400)]).collect();
        let read: Vec<_> = policies(response.headers()).into_iter().map(|(name, q, w)| (name, (q, w))).collect();
        assert_eq!(read, policy);
        let read: Vec<_> = limits(response.headers()).into_iter().map(|(name, r, _)| (name, r)).collect();
        assert_eq!(read, names.iter().cloned().zip(remaining).collect::<Vec<_>>());
    }
    let response = client.get("/").await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let problem = problem(&response);
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["violated-policies"], json!([spaced, "size"]), "the limits that deny");
    assert_eq!(retry_after(response.headers()), Some(3600));
}

#[tokio::test]
async fn legacy_fields_follow_the_clock_in_both_reset_formats() {
    for format in [ResetFormat::DeltaSeconds, ResetFormat::EpochSeconds] {
        let (limiter, clock) = memory(FixedWindow::new(Quota::per_minute(2)));
        let address = serve(site(limiter, Http::new().headers(Headers::new().legacy(format)))).await;
        let mut client = Connection::open(address).await;
        let epoch = ManualClock::START.as_micros() / 1_000_000;
        for (status, remaining, passed) in [(200, 1, 0), (200, 0, 20), (429, 0, 40)] {
            let response = client.get("/").await;
            assert_eq!(response.status(), status);
            let reset = if format == ResetFormat::DeltaSeconds { 60 - passed } else { epoch + 60 };
            assert_eq!(legacy(response.headers()), Some([2, remaining, reset]), "{format:?}");
            clock.advance(20 * SECOND);
        }
    }
}

/// Lists of the handler are appended to, and the more restrictive legacy fields are kept.
#[tokio::test]
async fn fields_of_a_handler_are_kept_on_the_wire() {
    let set_by_handler = [
        ("ratelimit", r#""upstream";r=1;t=5"#),
        ("ratelimit-policy", r#""upstream";q=2;w=5"#),
        ("ratelimit-policy", r#""other";q=7;w=8"#),
        ("retry-after", "5"),
        ("x-ratelimit-limit", "2"),
        ("x-ratelimit-remaining", "1"),
        ("x-ratelimit-reset", "5"),
        ("cache-control", "no-store"),
    ];
    let (limiter, _clock) = memory(FixedWindow::new(Quota::per_minute(9)));
    let responder = Http::new().headers(Headers::new().legacy(ResetFormat::DeltaSeconds));
    let app = Router::new()
        .route("/", get(async move || (StatusCode::SERVICE_UNAVAILABLE, AppendHeaders(set_by_handler), "busy")))
        .layer(RateLimitLayer::new(PeerIp::new(), limiter).responder(responder));
    let response = Connection::open(serve(app).await).await.get("/").await;
    assert_eq!((response.status(), &response.body()[..]), (StatusCode::SERVICE_UNAVAILABLE, &b"busy"[..]));
    assert_eq!(limits(response.headers()), [("upstream".into(), 1, Some(5)), ("default".into(), 8, Some(60))]);
    let policy = [("upstream".into(), 2, 5), ("other".into(), 7, 8), ("default".into(), 9, 60)];
    assert_eq!(policies(response.headers()), policy);
    assert_eq!(retry_after(response.headers()), Some(5));
    assert_eq!(legacy(response.headers()), Some([2, 1, 5]));
    assert_eq!(response.headers()["cache-control"], "no-store");
}

/// A rejected `HEAD` has the fields of a rejected `GET` and no body, and the connection stays usable.
#[tokio::test]
async fn rejected_head_has_no_body() {
    let (limiter, _clock) = memory(FixedWindow::new(Quota::per_minute(1)));
    let address = serve(site(limiter, Http::new())).await;
    // A client library would hide an invalid body, so the test reads bytes.
    let exchange = move || {
        let mut stream = std::net::TcpStream::connect(address).expect("the server listens");
        for request in ["GET / HTTP/1.1\r\nhost: a\r\n\r\n", "HEAD / HTTP/1.1\r\nhost: a\r\n\r\n"] {
            stream.write_all(request.as_bytes()).expect("sent");
        }
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").expect("sent");
        let mut answers = String::new();
        stream.read_to_string(&mut answers).expect("text");
        answers
    };
    let answers = tokio::task::spawn_blocking(exchange).await.expect("an exchange");
    let heads: Vec<_> = answers.split("HTTP/1.1 ").skip(1).collect();
    let [allowed, rejected, health] = heads[..] else { panic!("three answers, not:\n{answers}") };
    assert!(allowed.starts_with("200 OK\r\n") && allowed.ends_with("\r\n\r\nhello"), "{allowed}");
    assert!(rejected.starts_with("429 Too Many Requests\r\n"), "{rejected}");
    assert!(rejected.contains("\r\nretry-after: 60\r\n"), "{rejected}");
    assert!(rejected.contains("\r\nratelimit: \"default\";r=0;t=60\r\n"), "{rejected}");
    assert!(rejected.ends_with("\r\n\r\n") && rejected.matches("\r\n\r\n").count() == 1, "no body: {rejected}");
    assert!(health.starts_with("200 OK\r\n") && health.ends_with("\r\n\r\nok"), "{health}");
}

/// A rejection does not read the request body. The client reads that the connection ends, and opens another one.
#[tokio::test]
async fn rejected_post_says_that_the_connection_ends() {
    let (limiter, clock) = memory(FixedWindow::new(Quota::per_minute(1)));
    let address = serve(site(limiter, Http::new())).await;
    let mut client = Connection::open(address).await;
    let allowed = client.send(Request::post("/"), "first").await;
    assert_eq!((allowed.headers().get("connection"), &allowed.body()[..]), (None, &b"first"[..]));
    let rejected = client.get("/").await;
    assert_eq!((rejected.status(), rejected.headers().get("connection")), (StatusCode::TOO_MANY_REQUESTS, None));
    let rejected = client.send(Request::post("/"), "second").await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(problem(&rejected)["title"], "Request quota exceeded");
    assert_eq!(rejected.headers()["connection"], "close");
    assert!(client.0.ready().await.is_err(), "the server has closed the connection");
    clock.advance(60 * SECOND);
    let mut client = Connection::open(address).await;
    assert_eq!(client.send(Request::post("/"), "third").await.body(), "third");
}

#[tokio::test]
async fn missing_key_is_400_and_missing_connect_info_500() {
    let (limiter, _clock) = memory(FixedWindow::new(Quota::per_minute(1)));
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(RateLimitLayer::new(Header::from_static("x-tenant"), limiter));
    let address = serve(app).await;
    let mut client = Connection::open(address).await;
    let response = client.get("/").await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(problem(&response)["detail"], "the header x-tenant is missing");
    assert!(!has_fields(response.headers()));
    for (tenant, expected) in [("acme", 200), ("acme", 429), ("apex", 200)] {
        assert_eq!(client.send(Request::get("/").header("x-tenant", tenant), "").await.status(), expected);
    }
    let both = Request::get("/").header("x-tenant", "new").header("x-tenant", "newer");
    assert_eq!(client.send(both, "").await.status(), StatusCode::BAD_REQUEST, "a repeated field is unusable");

    // Served without connect info.
    let (limiter, _clock) = memory(FixedWindow::new(Quota::per_minute(1)));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    spawn(async move { axum::serve(listener, site(limiter, Http::new())).await });
    let response = Connection::open(address).await.get("/").await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(problem(&response)["status"], 500);
}

/// The server knows the size of a mapped body, so that it does not use chunked encoding.
#[tokio::test]
async fn mapped_body_keeps_its_content_length() {
    let (limiter, _clock) = memory(FixedWindow::new(Quota::per_minute(1)));
    let layer = RateLimitLayer::new(PeerIp::new(), limiter).responder(Http::new().map_body());
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let mut client = Connection::open(serve(app).await).await;
    let response = client.get("/").await;
    assert_eq!((response.status(), &response.body()[..]), (StatusCode::OK, &b"hello"[..]));
    assert_eq!(response.headers()["content-length"], "5");
    let response = client.get("/").await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(problem(&response)["violated-policies"], json!(["default"]));
    assert_eq!(client.get("/").await.status(), StatusCode::TOO_MANY_REQUESTS, "the connection stays usable");
}
