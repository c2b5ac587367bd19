//! Requests that their clients send again with the same id, behind the layer.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Method, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::{Instant, sleep};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::cost::{IdempotencyKey, OnlyFailures};
use tower_ratelimit::limiter::Chained;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Detail, FixedWindow, Gcra, InFlight, LeakyQueue, LimitStatus, Limiter, ManualClock,
    Quota, RateLimitLayer, TokioClock,
};

use crate::support::{limit, memory, several, spawn};

type Page = Full<Bytes>;
const MINUTE: Duration = Duration::from_secs(60);

/// A request of a client: method, path, and the values of the header.
fn request(client: &str, method: Method, path: &str, ids: &[&str]) -> Request<Page> {
    let request = Request::builder().method(method).uri(path).header("x-client", client);
    let request = ids.iter().fold(request, |request, id| request.header("idempotency-key", *id));
    request.body(Page::default()).expect("a request")
}

fn post(id: &str) -> Request<Page> {
    request("alice", Method::POST, "/orders?page=1", &[id])
}

#[allow(clippy::unnecessary_wraps, reason = "a key extractor")]
fn client(request: &Request<Page>) -> Option<String> {
    Some(request.headers()["x-client"].to_str().expect("text").to_owned())
}

fn by_client(
    limiter: impl Limiter<String>,
) -> RateLimitLayer<fn(&Request<Page>) -> Option<String>, BoxLimiter<String>> {
    RateLimitLayer::new(client as fn(&_) -> _, BoxLimiter::new(limiter))
}

async fn answer(request: Request<Page>) -> Result<Response<Page>, Infallible> {
    if request.uri().path() == "/hang" {
        pending::<()>().await;
    }
    let status = if request.uri().path() == "/fail" { 401 } else { 200 };
    Ok(Response::builder().status(status).body(Page::default()).expect("a response"))
}

async fn send<S>(service: &S, request: Request<Page>) -> StatusCode
where
    S: Service<Request<Page>, Response: Status, Error: Into<BoxError>> + Clone,
{
    service.clone().oneshot(request).await.map_err(Into::into).expect("a response").status()
}

/// A response with any body.
trait Status {
    fn status(&self) -> StatusCode;
}

impl<B> Status for Response<B> {
    fn status(&self) -> StatusCode {
        Self::status(self)
    }
}

async fn left(limiter: &impl Limiter<String>, client: &str) -> u64 {
    limiter.peek(&client.to_owned(), AcquireOptions::cost(0)).await.expect("a decision").remaining().expect("a number")
}

fn window(limit: u64) -> (BoxLimiter<String>, ManualClock) {
    let clock = ManualClock::new();
    (memory(FixedWindow::new(Quota::per_day(limit)), clock.clone()), clock)
}

/// The rows of the table in the documentation of `RateLimitLayer::once`, in one run.
#[tokio::test]
async fn idempotency_charges_each_row_of_the_documentation() {
    let (limiter, clock) = window(100);
    let layer = by_client(limiter.clone()).once(IdempotencyKey::header());
    let service = layer.layer(service_fn(answer));
    let get = |path, ids: &[&str]| request("alice", Method::GET, path, ids);
    let steps = [
        ("the first request", post("a"), 1),
        ("its repeat", post("a"), 0),
        ("a further repeat", post("a"), 1),
        ("after that", post("a"), 1),
        ("a string is the same id as the bare text", post("\"b\""), 1),
        ("so it repeats", post("b"), 0),
        ("another query is the same path", request("alice", Method::POST, "/orders?page=2", &["c"]), 1),
        ("so it repeats", post("c"), 0),
        ("another path", request("alice", Method::POST, "/users", &["c"]), 1),
        ("another method", get("/orders", &["c"]), 1),
        ("path and id do not run together", get("/order", &["sc"]), 1),
        ("no id", get("/", &[]), 1),
        ("no id again", get("/", &[]), 1),
        ("two values", get("/", &["d", "d"]), 1),
        ("two values again", get("/", &["d", "d"]), 1),
        ("one of them", get("/", &["d"]), 1),
        ("a malformed value", get("/", &["\"e"]), 1),
        ("a malformed value again", get("/", &["\"e"]), 1),
    ];
    let mut expected = 100;
    for (name, request, charge) in steps {
        assert_eq!(send(&service, request).await, 200, "{name}");
        expected -= charge;
        assert_eq!(left(&limiter, "alice").await, expected, "{name}");
    }
    assert_eq!(send(&service, request("bob", Method::POST, "/orders", &["a"])).await, 200);
    assert_eq!(left(&limiter, "bob").await, 99, "another key");
    clock.advance(MINUTE);
    for charge in [1, 0, 1] {
        assert_eq!(send(&service, post("c")).await, 200);
        expected -= charge;
        assert_eq!(left(&limiter, "alice").await, expected, "forgotten after a minute");
    }
}

#[tokio::test]
async fn idempotency_repeats_and_time_are_configurable() {
    let (limiter, clock) = window(100);
    let key = IdempotencyKey::header_named(HeaderName::from_static("x-request-id")).repeats(3).remember(MINUTE * 10);
    let layer = by_client(limiter.clone()).once(key);
    // The cost is set after the id, and settled before: the order of the methods does not matter.
    let service = layer.cost(|request: &Request<Page>| request.uri().path().len() as u64).layer(service_fn(answer));
    let with_id = |path| {
        let mut request = request("alice", Method::POST, path, &["ignored"]);
        request.headers_mut().insert("x-request-id", "a".parse().expect("a value"));
        request
    };
    for remaining in [90, 90, 90, 90, 80] {
        assert_eq!(send(&service, with_id("/123456789")).await, 200);
        assert_eq!(left(&limiter, "alice").await, remaining);
        clock.advance(MINUTE * 2);
    }
    let without = by_client(limiter.clone()).once(IdempotencyKey::header().repeats(0));
    let service = without.layer(service_fn(answer));
    for remaining in [79, 78] {
        assert_eq!(send(&service, post("z")).await, 200);
        assert_eq!(left(&limiter, "alice").await, remaining);
    }
}

/// A client that is out of quota repeats its admitted requests only.
#[tokio::test]
async fn idempotency_passes_a_repeat_when_nothing_remains() {
    let (limiter, _clock) = window(2);
    let layer = by_client(limiter.clone()).once(IdempotencyKey::header());
    let service = layer.layer(service_fn(answer));
    for (id, status) in [("a", 200), ("b", 200), ("c", 429), ("a", 200), ("c", 429), ("b", 200), ("a", 429)] {
        assert_eq!(send(&service, post(id)).await, status, "{id}");
    }
}

#[tokio::test]
async fn idempotency_takes_a_place_in_flight_for_each_repeat() {
    let rate = limit("rate", FixedWindow::new(Quota::per_day(100)));
    let limiter = several([rate, limit("open", InFlight::new(2))], ManualClock::new());
    let layer = by_client(limiter.clone()).once(IdempotencyKey::header());
    let service = layer.release_on_body_end().layer(service_fn(answer));
    let hang = || request("alice", Method::POST, "/hang", &["a"]);
    let remaining = async || {
        let all = AcquireOptions::cost(0).keep_guard().detail(Detail::All);
        let peeked = limiter.peek(&"alice".to_owned(), all).await.expect("a decision");
        peeked.limits().iter().map(LimitStatus::remaining).collect::<Vec<_>>()
    };
    let mut first = tokio_test::task::spawn(service.clone().oneshot(hang()));
    let mut repeat = tokio_test::task::spawn(service.clone().oneshot(hang()));
    assert!(first.poll().is_pending() && repeat.poll().is_pending());
    assert_eq!(remaining().await, [99, 0], "charged once, and twice in flight");
    assert_eq!(send(&service, request("alice", Method::POST, "/orders", &["b"])).await, 429);
    drop((first, repeat));
    assert_eq!(remaining().await, [99, 2]);
}

/// Only failed logins are charged. The success of one attempt pays for no failure with the same id, in whatever order.
#[tokio::test]
async fn idempotency_of_a_settled_request_buys_nothing() {
    let (limiter, _clock) = window(100);
    settled_request_buys_nothing(limiter).await;
    let rate = limit("default", FixedWindow::new(Quota::per_day(100)));
    let burst = limit("burst", Gcra::new(Quota::per_day(1000)));
    settled_request_buys_nothing(several([rate, burst], ManualClock::new())).await;
}

async fn settled_request_buys_nothing(limiter: BoxLimiter<String>) {
    let layer = by_client(limiter.clone()).once(IdempotencyKey::header());
    let service = layer.settle(OnlyFailures).cost(|_: &Request<Page>| 3_u64).layer(service_fn(answer));
    let login = |path, id| request("alice", Method::POST, path, &[id]);
    let mut expected = 100;
    for (path, charge) in [("/fail", 3), ("/fail", 0), ("/fail", 3), ("/ok", 0), ("/fail", 3)] {
        let status = if path == "/ok" { 200 } else { 401 };
        assert_eq!(send(&service, login(path, "a")).await, status);
        expected -= charge;
        assert_eq!(left(&limiter, "alice").await, expected, "{path}");
    }
    // Two of one id at once, of which neither is settled: both hold, and a dropped one is charged whole.
    let (mut first, mut second) = (
        tokio_test::task::spawn(service.clone().oneshot(login("/hang", "b"))),
        tokio_test::task::spawn(service.clone().oneshot(login("/hang", "b"))),
    );
    assert!(first.poll().is_pending() && second.poll().is_pending());
    assert_eq!(left(&limiter, "alice").await, expected - 6);
    drop(first);
    let mut third = tokio_test::task::spawn(service.clone().oneshot(login("/hang", "b")));
    assert!(third.poll().is_pending());
    assert_eq!(left(&limiter, "alice").await, expected - 6, "the repeat of a settled request holds nothing");
    drop((second, third));
    assert_eq!(left(&limiter, "alice").await, expected - 6);
}

/// Waiting requests have ids, too: a repeat that waits behind its first request starts with it.
#[tokio::test(start_paused = true)]
async fn idempotency_of_waiting_requests_charges_once() {
    let limiter = memory(Gcra::new(Quota::per_second(1)).burst(1), TokioClock::new());
    let layer = by_client(limiter.clone()).once(IdempotencyKey::header());
    let service = layer.max_wait(MINUTE).layer(service_fn(answer));
    let started = Instant::now();
    let mut sent = Vec::new();
    for id in ["a", "b", "c", "c", "d"] {
        let (service, request) = (service.clone(), post(id));
        sent.push(spawn(async move { (send(&service, request).await, started.elapsed().as_secs()) }));
        sleep(Duration::from_millis(1)).await;
    }
    let mut starts = Vec::new();
    for sent in sent {
        let (status, at) = sent.await.expect("no panic");
        assert_eq!(status, 200);
        starts.push(at);
    }
    // Four requests are charged, and the fifth starts no later than they need.
    assert_eq!(starts[..2], [0, 1]);
    assert!(starts[3] <= 3 && starts[4] <= 3, "{starts:?}");
    assert_eq!(send(&service, post("b")).await, 200, "and may be repeated");
    assert!(started.elapsed() < Duration::from_secs(4));
}

/// A client that leaves while its request waits, and sends it again: charged at most once.
#[tokio::test(start_paused = true)]
async fn idempotency_of_a_waiting_request_whose_client_leaves_charges_once() {
    let limiter = memory(LeakyQueue::new(Quota::per_second(1)).max_waiting(9), TokioClock::new());
    let layer = by_client(limiter.clone()).once(IdempotencyKey::header());
    let service = layer.layer(service_fn(answer));
    assert_eq!(send(&service, post("a")).await, 200);
    for _ in 0..2 {
        let left = tokio::time::timeout(Duration::from_millis(100), send(&service, post("b"))).await;
        assert!(left.is_err(), "the client leaves");
    }
    let started = Instant::now();
    assert_eq!(send(&service, post("b")).await, 200);
    assert_eq!(send(&service, post("c")).await, 200);
    assert!(started.elapsed() < Duration::from_millis(3_100), "{:?}", started.elapsed());
}

/// A limiter that remembers no ids is misconfigured, and no request with an id passes it uncounted.
#[tokio::test]
async fn idempotency_needs_a_limiter_that_remembers_ids() {
    let limiter = || window(100).0;
    let service =
        by_client(Chained::new(limiter(), limiter())).once(IdempotencyKey::header()).layer(service_fn(answer));
    assert_eq!(send(&service, post("a")).await, 500);
    assert_eq!(send(&service, request("alice", Method::GET, "/", &[])).await, 200);
}
