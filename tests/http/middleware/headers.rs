//! Header fields on real sockets: limits of one name, scripts of other origins, upgraded connections, HTTP/1.1 and
//! HTTP/2.
//!
//! Independent parsers read the fields. The clock is manual.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::routing::{any, get};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Method, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::{Layer as _, ServiceExt};
use tower_ratelimit::key::{Global, Preflight};
use tower_ratelimit::limiter::Chained;
use tower_ratelimit::observe::{Event, Observer};
use tower_ratelimit::response::{Headers, Rejection, ResetFormat};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Calendar, Clock as _, DynLimit, FixedWindow, Http, Limit, ManualClock, Memory, PeerIp,
    Quota, RateLimitLayer, Respond, Timestamp,
};

use crate::fields::{legacy, limits, policies, retry_after};
use crate::support::{limit, named, page_layer, pages, serve, several, spawn};

fn layer<K, Key: Hash + 'static>(
    key: K,
    name: &'static str,
    limit: u64,
    responder: Http,
) -> RateLimitLayer<K, BoxLimiter<Key>> {
    RateLimitLayer::new(key, named(name, limit)).responder(responder)
}

/// A client of one HTTP version. It uses HTTP/2 without TLS, with prior knowledge.
struct Browser(Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>>, Version);

impl Browser {
    fn new(version: Version) -> Self {
        let http2 = version == Version::HTTP_2;
        Self(Client::builder(TokioExecutor::new()).http2_only(http2).build_http(), version)
    }

    async fn send(&self, method: Method, address: SocketAddr, fields: &[(&str, &str)]) -> Response<Bytes> {
        let request = http::Request::builder().method(method).uri(format!("http://{address}/"));
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let answer = self.0.request(request.body(Full::default()).expect("a request")).await.expect("an answer");
        let (head, body) = answer.into_parts();
        assert_eq!(head.version, self.1);
        Response::from_parts(head, body.collect().await.expect("a body").to_bytes())
    }
}

const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

fn exposed(headers: &HeaderMap) -> BTreeSet<String> {
    let lines = headers.get_all("access-control-expose-headers").iter();
    let names = lines.flat_map(|line| line.to_str().expect("ASCII").split(',')).map(|name| name.trim().to_lowercase());
    names.collect()
}

/// An observer that records warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Observer for Warnings {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Warning { message, .. } = event {
            self.0.lock().expect("no panic").push((*message).to_owned());
        }
    }
}

impl Warnings {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

/// Clients cannot distinguish two limits of one name. The outer layer emits one warning, whichever fields it sends, and
/// however many requests and clones there are.
#[tokio::test]
async fn stacked_limits_of_one_name_emit_one_warning() {
    let limited = |inner: &'static str, outer: &'static str, responder: Http| {
        let warnings = Warnings::default();
        let layers = tower::ServiceBuilder::new()
            .layer(layer(Global, outer, 2, responder).observe(|_: &Event<'_>| {}).observe(warnings.clone()))
            .layer(layer(Global, inner, 1, Http::new()));
        (Router::new().route("/", get(async || "hello")).layer(layers), warnings)
    };
    let send =
        async |app: &Router| app.clone().oneshot(Request::new(Body::empty())).await.expect("infallible").status();
    for responder in [
        Http::new(),
        Http::new().headers(Headers::new().request_extension(true)),
        Http::new().headers(Headers::new().legacy(ResetFormat::DeltaSeconds)),
    ] {
        let (app, warnings) = limited("default", "default", responder);
        assert_eq!(send(&app).await, StatusCode::OK);
        let [warning] = &warnings.take()[..] else { panic!("one warning") };
        assert!(warning.contains("\"default\"") && warning.contains("Limit::new"), "{warning}");
        for status in [StatusCode::TOO_MANY_REQUESTS; 2] {
            assert_eq!(send(&app).await, status);
        }
        assert_eq!(warnings.take(), [""; 0]);

        // Also if the inner layer denies the first request that it receives through the outer one. The comma is quoted.
        let (warnings, inner) = (Warnings::default(), layer(Global, "a, b", 1, Http::new()));
        let alone = Router::new().route("/", get(async || "hello")).layer(inner.clone());
        assert_eq!(send(&alone).await, StatusCode::OK);
        let outer = layer(Global, "a, b", 2, responder).observe(warnings.clone());
        let app = Router::new().route("/", get(async || "hello")).layer(inner).layer(outer);
        assert_eq!(send(&app).await, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(warnings.take().len(), 1);

        for (inner, outer) in [("default", "outer"), ("default2", "default"), ("a, b", "a"), ("a, b", "b"), ("a", "A")]
        {
            let (app, warnings) = limited(inner, outer, responder);
            for _ in 0..3 {
                let _ = send(&app).await;
            }
            assert_eq!(warnings.take(), [""; 0], "{inner:?} in {outer:?}");
        }
    }

    // A layer that sends no such fields emits no warning.
    let (app, warnings) = limited("default", "default", Http::without_headers());
    assert_eq!((send(&app).await, warnings.take().len()), (StatusCode::OK, 0));
}

/// The layer also checks the fields of a handler, and the limits of one decision.
#[tokio::test]
async fn a_handlers_limit_of_the_same_name_emits_one_warning() {
    for (field, value, is_repeated) in [
        ("ratelimit", r#""default";r=1;t=5"#, true),
        ("ratelimit-policy", r#""other";q=2;w=5 ,  "default" ;q=2"#, false),
        ("ratelimit-policy", r#""other";q=2;w=5 ,  "default";q=2"#, true),
        ("ratelimit-policy", r#""default""#, true),
        ("ratelimit-policy", r#""other";about="default""#, false),
        ("ratelimit-policy", "default;q=2", false),
        ("ratelimit", "\"", false),
        ("x-ratelimit", r#""default";r=1;t=5"#, false),
    ] {
        let warnings = Warnings::default();
        let layer = layer(Global, "default", 5, Http::new()).observe(warnings.clone());
        let app = Router::new().route("/", get(async move || ([(field, value)], "hello"))).layer(layer);
        for _ in 0..2 {
            let _ = app.clone().oneshot(Request::new(Body::empty())).await;
        }
        assert_eq!(warnings.take().len(), usize::from(is_repeated), "{field}: {value}");
    }

    let (warnings, twice) = (Warnings::default(), Chained::new(named("default", 5), named("default", 5)));
    let layer = page_layer(twice).observe(warnings.clone());
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    for _ in 0..2 {
        let _ = app.clone().oneshot(Request::new(Body::empty())).await;
    }
    assert_eq!(warnings.take().len(), 1);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Building fails and the error names the character, or the name is equal in all fields and the body.
    #[test]
    fn limit_names_are_invalid_or_equal_in_fields_and_body(name in "[ -~]{0,12}|\\PC{0,6}|[\"\\\\a\\x00-\\x1f]{1,4}") {
        let limit = Limit::new(name.clone(), FixedWindow::new(Quota::per_minute(1)));
        let limiter = match Memory::<u32, _>::builder(vec![DynLimit::new(limit)]).build() {
            Ok(limiter) => limiter,
            Err(error) => {
                let bad = name.chars().find(|char| !(' '..='~').contains(char) || "\"\\".contains(*char));
                let cause = bad.map_or("empty name".to_owned(), |bad| format!("cannot carry {bad:?}"));
                assert!(error.is_config() && error.to_string().contains(&cause), "{error}");
                return Ok(());
            }
        };
        let rejection = loop {
            let decision = limiter.check(&0, AcquireOptions::default());
            if !decision.is_allowed() {
                break Rejection::OverLimit(decision);
            }
        };
        let response: Result<Response<Full<Bytes>>, ()> = Http::new().on_rejected(http::Request::new(()), rejection);
        let (head, body) = response.expect("a response").into_parts();
        let Some(Ok(body)) = body.collect().now_or_never() else { panic!("the body is there") };
        let response = Response::from_parts(head, body.to_bytes());
        assert_eq!(policies(response.headers()), [(name.clone(), 1, 60)]);
        assert_eq!(limits(response.headers()), [(name.clone(), 0, Some(60))]);
        let problem: serde_json::Value = serde_json::from_slice(response.body()).expect("JSON");
        assert_eq!(problem["violated-policies"], serde_json::json!([name]));
        let detail = format!("rate limit \"{name}\" exceeded, retry after ");
        assert!(problem["detail"].as_str().expect("text").starts_with(&detail), "{problem}");
    }
}

/// The layer exposes exactly the fields that it sends, and keeps what others expose.
#[tokio::test]
async fn exposed_fields_are_exactly_the_sent_fields() {
    let fields = Http::new().headers(Headers::new().expose(true));
    let app = Router::new()
        .route("/", get(async || ([("access-control-expose-headers", "x-mine")], "hello")))
        .layer(layer(Global, "default", 1, fields));
    let (address, browser) = (serve(app).await, Browser::new(Version::HTTP_11));
    let allowed = browser.send(Method::GET, address, &[]).await;
    assert_eq!(
        exposed(allowed.headers()),
        BTreeSet::from(["ratelimit", "ratelimit-policy", "x-mine"].map(String::from))
    );
    let rejected = browser.send(Method::GET, address, &[]).await;
    let names = ["ratelimit", "ratelimit-policy", "retry-after"];
    assert_eq!(exposed(rejected.headers()), BTreeSet::from(names.map(String::from)));

    let legacy = Http::new().headers(Headers::none().legacy(ResetFormat::EpochSeconds).expose(true));
    let app = Router::new().route("/", get(async || "hello")).layer(layer(Global, "default", 1, legacy));
    let allowed = browser.send(Method::GET, serve(app).await, &[]).await;
    let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    assert_eq!(exposed(allowed.headers()), BTreeSet::from(names.map(String::from)));

    let app = Router::new().route("/", get(async || "hello")).layer(layer(Global, "default", 1, Http::new()));
    let allowed = browser.send(Method::GET, serve(app).await, &[]).await;
    assert!(exposed(allowed.headers()).is_empty(), "off by default");
}

/// The predicate exempts preflights; any other `OPTIONS` request is limited.
#[tokio::test]
async fn preflight_predicate_exempts_preflights_and_no_other_options_request() {
    for version in VERSIONS {
        let app = Router::new()
            .route("/", any(async || "hello"))
            .layer(layer(Global, "default", 2, Http::new()).exempt_if(Preflight));
        let (address, browser) = (serve(app).await, Browser::new(version));
        let preflight = [("origin", "https://example.net"), ("access-control-request-method", "PUT")];
        for _ in 0..5 {
            let response = browser.send(Method::OPTIONS, address, &preflight).await;
            assert_eq!(response.status(), 200);
            assert!(!response.headers().contains_key("ratelimit"));
        }
        for (status, left) in [(200, 1), (200, 0), (429, 0)] {
            let response = browser.send(Method::OPTIONS, address, &[]).await;
            assert_eq!(response.status(), status);
            assert_eq!(limits(response.headers()), [("default".into(), left, Some(60))]);
        }
        assert_eq!(
            browser.send(Method::OPTIONS, address, &preflight).await.status(),
            200,
            "exempt although nothing remains"
        );
    }
}

/// A CORS layer outside the limiter also sees rejections.
#[tokio::test]
async fn rejections_pass_through_outer_layers() {
    async fn cors(request: Request, next: Next) -> Response<Body> {
        let mut response = next.run(request).await;
        response.headers_mut().insert("access-control-allow-origin", http::HeaderValue::from_static("*"));
        response
    }
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(layer(Global, "default", 1, Http::new().headers(Headers::new().expose(true))))
        .layer(from_fn(cors));
    let (address, browser) = (serve(app).await, Browser::new(Version::HTTP_11));
    for status in [200, 429] {
        let response = browser.send(Method::GET, address, &[]).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["access-control-allow-origin"]),
            (status, &"*".parse().unwrap())
        );
    }
}

/// An upgrade is one request: it is charged or rejected before the upgrade. Later messages are free.
#[tokio::test]
async fn upgrade_is_charged_once_and_rejected_before_it() {
    async fn echo(mut request: Request) -> impl IntoResponse {
        let upgrade = hyper::upgrade::on(&mut request);
        spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.expect("an upgrade"));
            let mut bytes = [0; 4];
            while stream.read_exact(&mut bytes).await.is_ok() {
                stream.write_all(&bytes).await.expect("sent");
            }
        });
        (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "echo")])
    }
    let app = Router::new().route("/", get(echo)).layer(layer(PeerIp::new(), "default", 1, Http::new()));
    let address = serve(app).await;
    let exchange = move || {
        let open = || {
            let mut stream = std::net::TcpStream::connect(address).expect("the server listens");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
            stream
                .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
                .expect("sent");
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).expect("a head");
                head.push(byte[0]);
            }
            (stream, String::from_utf8(head).expect("text"))
        };
        let (mut stream, head) = open();
        assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
        assert!(head.contains("\r\nratelimit: \"default\";r=0;t=60\r\n"), "{head}");
        for message in [b"ping", b"pong", b"more"] {
            stream.write_all(message).expect("sent");
            let mut echoed = [0; 4];
            stream.read_exact(&mut echoed).expect("an echo");
            assert_eq!(&echoed, message);
        }
        let (_, head) = open();
        assert!(head.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{head}");
        assert!(!head.contains("101") && !head.contains("\r\nupgrade:"), "{head}");
    };
    tokio::task::spawn_blocking(exchange).await.expect("an exchange");
}

/// Each HTTP/2 stream is a request of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_streams_of_one_connection_share_the_limit() {
    let app = Router::new().route("/", get(async || "hello")).layer(layer(PeerIp::new(), "default", 7, Http::new()));
    let address = serve(app).await;
    let browser = std::sync::Arc::new(Browser::new(Version::HTTP_2));
    let requests = (0..30).map(|_| {
        let browser = std::sync::Arc::clone(&browser);
        spawn(async move { browser.send(Method::GET, address, &[]).await })
    });
    let (mut left, mut rejected) = (BTreeSet::new(), 0);
    for answer in requests.collect::<Vec<_>>() {
        let answer = answer.await.expect("a request");
        if answer.status() == StatusCode::OK {
            left.insert(limits(answer.headers())[0].1);
        } else {
            rejected += 1;
        }
    }
    assert_eq!((left, rejected), ((0..7).collect(), 23), "each response has a different remainder");
}

/// The window is the present one of the calendar, and the reset is its end.
#[tokio::test]
async fn fields_of_a_calendar_have_the_length_and_the_end_of_the_month() {
    const DAY: u64 = 86_400;
    // Noon of 30 January 2028, in a leap year.
    let noon = 1_832_846_400;
    for (days, length) in [(0, 31), (2, 29), (35, 31), (70, 30)] {
        let clock = ManualClock::at(Timestamp::from_micros((noon + days * DAY) * 1_000_000));
        let limiter = several([limit("month", FixedWindow::calendar(1, Calendar::monthly()))], clock.clone());
        let end = Calendar::monthly().window_at(clock.now()).end.as_micros() / 1_000_000;
        let responder = Http::new().headers(Headers::new().legacy(ResetFormat::EpochSeconds));
        let service = page_layer(limiter).responder(responder).layer(pages());
        for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            let response = service.clone().oneshot(http::Request::new(())).await.expect("a response");
            let (headers, left) = (response.headers(), end - noon - days * DAY);
            assert_eq!(response.status(), status);
            assert_eq!(policies(headers), [("month".to_owned(), 1, (length * DAY).cast_signed())]);
            assert_eq!(limits(headers), [("month".to_owned(), 0, Some(left.cast_signed()))]);
            assert_eq!(legacy(headers), Some([1, 0, end]));
            assert_eq!(retry_after(headers), (status != StatusCode::OK).then_some(left));
        }
    }
}
