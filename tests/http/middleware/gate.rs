//! Gates of clients: pauses after rejections, order, slow start, late responses, and the fields that servers send.
//!
//! All times are of tokio's paused clock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use http::{Request, Response};
use tokio::time::{Instant, sleep, timeout};
use tonic_types::{ErrorDetails, StatusExt};
use tower::limit::ConcurrencyLimit;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::response::BoxError;
use tower_ratelimit::retry::gate::{GateClosed, GateLayer, GateSignal};
use tower_ratelimit::retry::{HttpHint, RetryAfter};

use crate::support::spawn;

const SECOND: Duration = Duration::from_secs(1);

/// A provider with fixed windows of one second and a round trip of 50 ms.
#[derive(Clone)]
struct Provider {
    limit: usize,
    started: Instant,
    window: Arc<Mutex<(u64, usize)>>,
    served: Arc<AtomicUsize>,
    rejected: Arc<AtomicUsize>,
}

impl Provider {
    fn new(limit: usize) -> Self {
        let [served, rejected] = Default::default();
        Self { limit, started: Instant::now(), window: Arc::default(), served, rejected }
    }

    async fn respond(self) -> Result<Response<()>, BoxError> {
        sleep(Duration::from_millis(25)).await;
        let now = self.started.elapsed();
        let remaining = {
            let mut window = self.window.lock().expect("no panic");
            if window.0 != now.as_secs() {
                *window = (now.as_secs(), 0);
            }
            window.1 += 1;
            self.limit.checked_sub(window.1)
        };
        sleep(Duration::from_millis(25)).await;
        let (status, counter) = if remaining.is_some() { (200, &self.served) } else { (429, &self.rejected) };
        counter.fetch_add(1, Ordering::Relaxed);
        // The provider rounds the time to the end of its window up.
        let field = format!("\"default\";r={};t=1", remaining.unwrap_or_default());
        Ok(Response::builder().status(status).header("ratelimit", field).body(())?)
    }

    fn counts(&self) -> (usize, usize) {
        (self.served.load(Ordering::Relaxed), self.rejected.load(Ordering::Relaxed))
    }
}

/// Sends `per_second` requests per second for 30 s, and returns how many were served and rejected by the provider.
async fn load(provider: &Provider, per_second: usize, gate: Option<GateLayer>) -> (usize, usize) {
    let inner = {
        let provider = provider.clone();
        service_fn(move |_: Request<()>| provider.clone().respond())
    };
    let client = ServiceBuilder::new().option_layer(gate).map_err(BoxError::from).service(inner);
    let calls = (0..30 * per_second).map(|number| {
        let client = client.clone();
        async move {
            sleep(SECOND * u32::try_from(number).unwrap() / u32::try_from(per_second).unwrap()).await;
            client.oneshot(Request::new(())).await.map(|response| response.status().as_u16())
        }
    });
    join_all(calls).await;
    provider.counts()
}

#[tokio::test(start_paused = true)]
async fn gate_avoids_rejections_and_keeps_the_throughput() {
    for (factor, per_second) in [(0.9, 18), (2.0, 40), (10.0, 200)] {
        let (served_without, rejected_without) = load(&Provider::new(20), per_second, None).await;
        let provider = Provider::new(20);
        let (served, rejected) = load(&provider, per_second, Some(GateLayer::new().max_wait(3 * SECOND))).await;
        println!(
            "{factor}: served {served} and rejected {rejected}; without a gate {served_without} and {rejected_without}"
        );
        if per_second <= 20 {
            assert_eq!((served, rejected), (30 * per_second, 0), "{factor}");
        } else {
            // Without a gate all that exceed the limit are rejected.
            assert_eq!(rejected_without, 30 * per_second - served_without);
            assert!(rejected * 20 < rejected_without, "{factor}: {rejected} beside {rejected_without}");
            // The fields state whole seconds, and a round trip passes before the client knows that a window is full.
            assert!(served * 10 > served_without * 9, "{factor}: {served} beside {served_without}");
        }
    }
}

/// Responses by script: for each request in the order of arrival at the server its delay and its fields.
type Script = Arc<Mutex<VecDeque<(Duration, Response<()>)>>>;

fn response(status: u16, fields: &[(&str, &str)]) -> Response<()> {
    let response = Response::builder().status(status);
    fields.iter().fold(response, |response, (name, value)| response.header(*name, *value)).body(()).expect("valid")
}

/// A server that answers by a script, then with 200 after `delay`; and the times at which requests arrive at it.
fn scripted(
    script: impl IntoIterator<Item = (Duration, Response<()>)>,
    delay: Duration,
) -> (
    impl Service<Request<u32>, Response = Response<()>, Error = BoxError, Future: Send> + Clone + Send,
    Arc<Mutex<Vec<(u32, Duration)>>>,
) {
    let script: Script = Arc::new(Mutex::new(script.into_iter().collect()));
    let (log, start) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    let arrivals = Arc::clone(&log);
    let server = service_fn(move |request: Request<u32>| {
        log.lock().expect("no panic").push((*request.body(), start.elapsed()));
        let next = script.lock().expect("no panic").pop_front();
        let (delay, response) = next.unwrap_or_else(|| (delay, response(200, &[])));
        async move {
            sleep(delay).await;
            Ok(response)
        }
    });
    (server, arrivals)
}

fn request(number: u32) -> Request<u32> {
    Request::new(number)
}

#[tokio::test(start_paused = true)]
async fn requests_wait_in_order_and_start_slowly_after_a_rejection() {
    let rejection = response(429, &[("retry-after", "3")]);
    let (server, arrivals) = scripted([(Duration::ZERO, rejection)], SECOND / 10);
    let client = GateLayer::new().layer_on(server);
    assert_eq!(client.clone().oneshot(request(0)).await.unwrap().status(), 429);
    let statuses = join_all((1..=10).map(|number| client.clone().oneshot(request(number)))).await;
    assert!(statuses.iter().all(|response| response.as_ref().unwrap().status() == 200));

    let arrivals = arrivals.lock().unwrap().clone();
    let numbers: Vec<_> = arrivals.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..=10).collect::<Vec<_>>(), "in order of arrival");
    // One request, then as many as the responses allow, and at least 50 ms apart, as the server states no number.
    let tenths: Vec<_> = arrivals[1..].iter().map(|(_, at)| at.as_millis().div_ceil(100)).collect();
    assert_eq!(tenths, [30, 31, 32, 32, 33, 33, 34, 34, 34, 35]);
}

#[tokio::test(start_paused = true)]
async fn last_response_of_a_window_closes_the_gate() {
    let last = response(200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "2")]);
    let (server, arrivals) = scripted([(Duration::ZERO, last)], Duration::ZERO);
    let client = GateLayer::new().layer_on(server);
    for number in 0..2 {
        assert_eq!(client.clone().oneshot(request(number)).await.unwrap().status(), 200);
    }
    assert_eq!(arrivals.lock().unwrap()[1].1.as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn late_response_undoes_nothing() {
    // The first request is answered last: what remained then says nothing about now. The second one closes the gate.
    let late = (SECOND, response(200, &[("ratelimit", "\"default\";r=7;t=1")]));
    let rejection = (SECOND / 2, response(429, &[("retry-after", "10")]));
    // A shorter time of an earlier request does not shorten the pause, and does not stop the slow start.
    let late_rejection = (2 * SECOND, response(429, &[("retry-after", "1")]));
    let (server, arrivals) = scripted([late, rejection, late_rejection], SECOND / 10);
    let client = GateLayer::new().layer_on(server);
    let first = [0, 1, 2].map(|number| spawn(client.clone().oneshot(request(number))));
    sleep(SECOND / 2 + Duration::from_millis(1)).await;
    client.clone().oneshot(request(3)).await.unwrap();
    join_all(first).await;
    let at = arrivals.lock().unwrap()[3].1;
    assert!((10_500..10_510).contains(&at.as_millis()), "{at:?}");
}

#[tokio::test(start_paused = true)]
async fn request_that_would_wait_too_long_fails_at_once() {
    let rejection = response(429, &[("retry-after", "120")]);
    let (server, arrivals) = scripted([(Duration::ZERO, rejection)], Duration::ZERO);
    let client = GateLayer::new().max_wait(60 * SECOND).layer_on(server);
    client.clone().oneshot(request(0)).await.unwrap();
    let error = client.clone().oneshot(request(1)).now_or_never().expect("no wait").unwrap_err();
    let closed = error.downcast_ref::<GateClosed>().expect("the gate's error");
    assert_eq!(closed.retry_after().as_secs(), 120);
    assert_eq!(arrivals.lock().unwrap().len(), 1);

    sleep(61 * SECOND).await;
    assert_eq!(client.oneshot(request(2)).await.unwrap().status(), 200);
    assert_eq!(arrivals.lock().unwrap()[1].1.as_secs(), 120);
}

#[tokio::test(start_paused = true)]
async fn request_that_leaves_or_is_not_polled_does_not_block_others() {
    let rejection = response(429, &[("retry-after", "1")]);
    let (server, arrivals) = scripted([(Duration::ZERO, rejection)], Duration::ZERO);
    let client = GateLayer::new().layer_on(server);
    client.clone().oneshot(request(0)).await.unwrap();

    let mut leaving = Box::pin(client.clone().oneshot(request(1)));
    let mut stuck = Box::pin(client.clone().oneshot(request(2)));
    assert!(leaving.as_mut().now_or_never().is_none());
    assert!(stuck.as_mut().now_or_never().is_none());
    let third = spawn(client.clone().oneshot(request(3)));
    sleep(SECOND / 2).await;
    drop(leaving);
    third.await.unwrap().unwrap();
    // The request 2 had a start for a second, and did not use it.
    let at = arrivals.lock().unwrap()[1];
    assert_eq!((at.0, at.1.as_secs()), (3, 2));
    assert_eq!(stuck.await.unwrap().status(), 200, "it starts when it is polled");
}

/// The caller keeps a service that it has made ready. A request that waits for its start needs the only permit, too.
#[tokio::test(start_paused = true)]
async fn waiting_request_holds_no_permit_of_the_inner_service() {
    let rejection = response(429, &[("retry-after", "1")]);
    let (server, _) = scripted([(Duration::ZERO, rejection)], Duration::ZERO);
    let mut client = GateLayer::new().layer_on(ConcurrencyLimit::new(server, 1));
    for status in [429, 200] {
        let response = client.ready().await.expect("no error").call(request(0));
        let response = timeout(60 * SECOND, response).await.expect("the permit is free");
        assert_eq!(response.expect("no error").status(), status);
    }
}

#[tokio::test(start_paused = true)]
async fn origins_have_gates_of_their_own() {
    let rejection = response(429, &[("retry-after", "30")]);
    let (server, arrivals) = scripted([(Duration::ZERO, rejection)], Duration::ZERO);
    let client = GateLayer::new().layer_on(server);
    let to = |uri: &str| Request::builder().uri(uri).body(0).expect("a request");
    client.clone().oneshot(to("https://a.example/1")).await.unwrap();
    client.clone().oneshot(to("https://b.example/1")).await.unwrap();
    client.clone().oneshot(to("http://a.example/1")).await.unwrap();
    assert!(arrivals.lock().unwrap().iter().all(|(_, at)| at.is_zero()));
    client.clone().oneshot(to("https://a.example/2")).await.unwrap();
    assert_eq!(arrivals.lock().unwrap()[3].1.as_secs(), 30);
    // The same origin in other spellings.
    for (index, uri) in ["https://a.example:443/3", "https://me@A.example/4"].into_iter().enumerate() {
        client.clone().oneshot(to(uri)).await.unwrap();
        assert!(arrivals.lock().unwrap()[4 + index].1.as_secs() >= 30, "{uri}");
    }
    client.clone().oneshot(to("https://a.example:8443/5")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_and_dropped_requests_do_not_stop_the_slow_start() {
    let calls = Arc::new(AtomicUsize::new(0));
    let server = service_fn(move |_: Request<u32>| {
        let number = calls.fetch_add(1, Ordering::Relaxed);
        async move {
            match number {
                0 => Ok(response(429, &[("retry-after", "1")])),
                1 => Err(BoxError::from("connection lost")),
                2 => std::future::pending().await,
                _ => Ok(response(200, &[])),
            }
        }
    });
    let client = GateLayer::new().layer_on(server);
    client.clone().oneshot(request(0)).await.unwrap();
    assert!(client.clone().oneshot(request(1)).await.is_err());
    let hanging = tokio::time::timeout(SECOND, client.clone().oneshot(request(2))).await;
    assert!(hanging.is_err());
    let last = tokio::time::timeout(SECOND, client.clone().oneshot(request(3))).await.expect("not blocked");
    assert_eq!(last.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn retries_wait_in_the_gate() {
    let provider = Provider::new(5);
    let inner = {
        let provider = provider.clone();
        service_fn(move |_: Request<u32>| provider.clone().respond())
    };
    let retry = RetryAfter::new().max_retries(10);
    let client = ServiceBuilder::new().retry(retry).layer(GateLayer::new()).service(inner);
    let statuses = join_all((0..40).map(|number| client.clone().oneshot(request(number)))).await;
    assert!(statuses.into_iter().all(|response| response.unwrap().status() == 200));
    let (served, rejected) = provider.counts();
    assert_eq!(served, 40);
    // All forty are sent at once, and 35 are rejected. Later rejections are few.
    assert!(rejected < 60, "{rejected}");
}

#[test]
fn fields_of_servers_are_read() {
    let told = |status: u16, fields: &[(&str, &str)]| {
        let response = response(status, fields);
        HttpHint.gate_signal(response.status(), response.headers())
    };
    let last = |seconds: f64| GateSignal::ServedLast(Duration::from_secs_f64(seconds));
    let rejected = |seconds: u64| GateSignal::Rejected(Some(Duration::from_secs(seconds)));
    let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");

    assert_eq!(told(429, &[]), GateSignal::Rejected(None));
    assert_eq!(told(429, &[("retry-after", "7"), ("ratelimit", "\"a\";r=0;t=3")]), rejected(7));
    assert_eq!(told(503, &[]), GateSignal::Served { remaining: None }, "a failure is no rejection");
    assert_eq!(told(503, &[("retry-after", "7")]), rejected(7));
    // `RateLimit`: draft -10 and -11, renamed parameters, unquoted names, several limits, and drafts before.
    assert_eq!(told(200, &[("ratelimit", "\"a\";r=1;t=3")]), GateSignal::Served { remaining: Some(1) });
    assert_eq!(told(200, &[("ratelimit", "\"a\";r=0;t=3")]), last(3.0));
    assert_eq!(told(200, &[("ratelimit", "\"a\";a=0;w=3")]), last(3.0));
    assert_eq!(told(200, &[("ratelimit", "a;r=0;t=3, b;r=0;t=9, c;r=5;t=90")]), last(9.0));
    assert_eq!(told(200, &[("ratelimit", "limit=10, remaining=0, reset=4")]), last(4.0));
    assert_eq!(
        told(200, &[("ratelimit", "limit=10, remaining=1, reset=4")]),
        GateSignal::Served { remaining: Some(1) }
    );
    assert_eq!(told(200, &[("ratelimit-remaining", "0"), ("ratelimit-reset", "5")]), last(5.0));
    assert_eq!(told(200, &[("ratelimit", "\"a\";r=0;t=")]), GateSignal::Served { remaining: None }, "malformed");
    // GitHub: seconds since 1970, and 403 for its secondary limits.
    let github = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "784111837"), date];
    assert_eq!(told(200, &github[..1]), GateSignal::Served { remaining: Some(0) }, "no time");
    let github_now = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1700000060")];
    let sent = ("date", "Tue, 14 Nov 2023 22:13:20 GMT");
    assert_eq!(told(200, &[github_now[0], github_now[1], sent]), last(60.0));
    assert_eq!(told(403, &[github_now[0], github_now[1], sent]), rejected(60));
    assert_eq!(told(403, &[("retry-after", "60")]), rejected(60));
    assert_eq!(told(403, &[]), GateSignal::Served { remaining: None }, "a lack of permission is no rejection");
    assert_eq!(told(403, &github[..1]), GateSignal::Rejected(None), "nothing remains");
    // More is available within the second that is the shortest `Retry-After`.
    let brief = ("ratelimit", "\"a\";r=0");
    assert_eq!(told(429, &[brief, ("retry-after", "1")]), GateSignal::TooFast);
    assert_eq!(told(429, &[brief, ("retry-after", "2")]), rejected(2));
    assert_eq!(told(429, &[("ratelimit", "\"a\";r=0, \"b\";r=0;t=1"), ("retry-after", "1")]), rejected(1));
    assert_eq!(told(200, &[brief]), GateSignal::Served { remaining: Some(0) });
    // Two limiters: the exhausted limit counts. Parameters, decimal numbers, and -1 for no limit.
    let [remaining, reset] = ["x-ratelimit-remaining", "x-ratelimit-reset"];
    let twice = [(remaining, "59"), (reset, "1"), (remaining, "0"), (reset, "30")];
    assert_eq!(told(200, &twice), last(30.0));
    assert_eq!(told(200, &[(remaining, "0, 59"), (reset, "30, 1")]), last(30.0));
    assert_eq!(told(200, &[(remaining, "0;w=60"), (reset, "30;w=60")]), last(30.0));
    assert_eq!(told(200, &[(remaining, "0.0"), (reset, "0.5")]), last(0.5));
    assert_eq!(told(200, &[(remaining, "598.7"), (reset, "30")]), GateSignal::Served { remaining: Some(598) });
    assert_eq!(told(200, &[(remaining, "-1"), (reset, "30")]), GateSignal::Served { remaining: None });
    // Fields that a cache has stored.
    assert_eq!(told(200, &[("age", "5"), brief]), GateSignal::Served { remaining: None });
    assert_eq!(told(200, &[("age", "0"), brief]), GateSignal::Served { remaining: Some(0) });
    assert_eq!(told(429, &[("age", "5"), ("retry-after", "120")]), GateSignal::Rejected(None));
    assert_eq!(told(503, &[("age", "110"), ("retry-after", "120")]), GateSignal::Served { remaining: None });
    assert_eq!(told(403, &[("age", "3000"), (remaining, "0"), (reset, "1")]), GateSignal::Served { remaining: None });
    // Only a limit that is exceeded states its time.
    assert_eq!(told(429, &[(reset, "30")]), rejected(30));
    assert_eq!(
        told(429, &[("retry-after", "1"), ("retry-after-ms", "350")]),
        GateSignal::Rejected(Some(SECOND * 35 / 100))
    );
    // gRPC, as the retry policy reads it.
    let grpc = |pushback| told(200, &[("grpc-status", "8"), ("grpc-retry-pushback-ms", pushback)]);
    assert_eq!(grpc("2000"), rejected(2));
    assert_eq!(grpc("-1"), GateSignal::Served { remaining: None }, "the call is final, other calls are not");
    let status: Response<()> = tonic::Status::with_error_details(
        tonic::Code::ResourceExhausted,
        "no",
        ErrorDetails::with_retry_info(Some(3 * SECOND)),
    )
    .into_http();
    assert_eq!(HttpHint.gate_signal(status.status(), status.headers()), rejected(3));
    // OpenAI: spans of time, for requests and for tokens.
    let openai = |requests, tokens| {
        let fields = [
            ("x-ratelimit-remaining-requests", requests),
            ("x-ratelimit-reset-requests", "120ms"),
            ("x-ratelimit-remaining-tokens", tokens),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ];
        told(200, &fields)
    };
    assert_eq!(openai("59", "149984"), GateSignal::Served { remaining: Some(59) });
    assert_eq!(openai("0", "149984"), last(0.12));
    assert_eq!(openai("0", "0"), last(360.0));
    let fraction = [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "7.66s")];
    assert_eq!(told(200, &fraction), last(7.66));
    // Anthropic: dates of RFC 3339.
    let anthropic = [
        ("anthropic-ratelimit-output-tokens-remaining", "0"),
        ("anthropic-ratelimit-output-tokens-reset", "1994-11-06T08:50:37Z"),
        date,
    ];
    assert_eq!(told(200, &anthropic), last(60.0));
}

/// `Layer::layer` without the trait's name in scope.
trait LayerOn {
    fn layer_on<S>(&self, service: S) -> tower_ratelimit::retry::gate::Gate<S>;
}

impl LayerOn for GateLayer {
    fn layer_on<S>(&self, service: S) -> tower_ratelimit::retry::gate::Gate<S> {
        tower::Layer::layer(self, service)
    }
}
