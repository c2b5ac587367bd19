//! Each request emits exactly one terminal event, and further events in order.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hash::Hash;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::sleep;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::cost::OnlySuccesses;
use tower_ratelimit::key::{Credential, Extracted, Global, MissingKey};
use tower_ratelimit::limiter::{Escalating, Escalation};
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::{BoxError, Grpc, Headers, RejectWithError};
use tower_ratelimit::{
    BoxLimiter, FixedWindow, Gcra, Http, LeakyQueue, Limit, Limiter, ManualClock, Memory, MissingKeyPolicy, PeerIp,
    Quota, RateLimitLayer, TokioClock,
};

use crate::random::Random;
use crate::support::{Deferred, FailingLimiter, RecordedEvents};

/// Extracts the key: `exempt`, `missing` and `misconfigured` are special.
fn key_of(request: &&'static str) -> Extracted<&'static str> {
    match *request {
        "exempt" => Extracted::Exempt,
        "missing" => Extracted::Missing(MissingKey::from_request("no key")),
        "misconfigured" => Extracted::Missing(MissingKey::from_server("no layer inserts the key")),
        key => Extracted::Key(key),
    }
}

type KeyFn = fn(&&'static str) -> Extracted<&'static str>;

/// A service that answers with the request.
type Echo = BoxCloneSyncService<&'static str, &'static str, BoxError>;

type EchoLayer = RateLimitLayer<KeyFn, BoxLimiter<&'static str>, RejectWithError>;

fn layer(limiter: impl Limiter<&'static str>, events: &RecordedEvents) -> EchoLayer {
    unobserved(limiter).observe(events.clone())
}

fn unobserved(limiter: impl Limiter<&'static str>) -> EchoLayer {
    RateLimitLayer::new(key_of as KeyFn, BoxLimiter::new(limiter)).responder(RejectWithError)
}

fn echo() -> Echo {
    Echo::new(service_fn(|request| ready(Ok(request))))
}

fn two_an_hour<Key: Hash + 'static>() -> BoxLimiter<Key> {
    let two = FixedWindow::new(Quota::per_hour(2));
    BoxLimiter::new(Memory::builder(two).clock(ManualClock::new()).build().expect("a limiter"))
}

fn memory(algorithm: impl Algorithm) -> BoxLimiter<&'static str> {
    BoxLimiter::new(Memory::builder(algorithm).clock(TokioClock::new()).build().expect("a limiter"))
}

/// A page whose response names the limit `default`.
async fn page(_: http::Request<()>) -> Result<http::Response<http_body_util::Full<bytes::Bytes>>, Infallible> {
    let response = http::Response::builder().header("ratelimit-policy", "\"default\";q=1;w=1");
    Ok(response.body(http_body_util::Full::default()).expect("a response"))
}

#[tokio::test]
async fn immediate_decision_emits_one_event() {
    let events = RecordedEvents::default();
    let service =
        layer(two_an_hour(), &events).cost(|key: &&'static str| if *key == "dear" { 3 } else { 1 }).layer(echo());
    for (request, expected) in [
        ("a", "allowed by default in store"),
        ("a", "allowed by default in store"),
        ("a", "denied by default in store"),
        ("dear", "exceeds_limit by default in store"),
        ("exempt", "exempt"),
        ("missing", "missing_key"),
        ("misconfigured", "missing_key"),
    ] {
        let _ = service.clone().oneshot(request).await;
        assert_eq!(events.take(), [expected], "{request}");
    }

    let lenient = layer(two_an_hour(), &events).missing_key(MissingKeyPolicy::Exempt).layer(echo());
    lenient.oneshot("missing").await.expect("let through");
    assert_eq!(events.take(), ["missing_key_exempt"]);
}

#[tokio::test]
async fn pending_decision_emits_one_event() {
    let events = RecordedEvents::default();
    let service = layer(Deferred(two_an_hour(), 3), &events).layer(echo());
    for expected in ["allowed", "allowed", "denied"] {
        let _ = service.clone().oneshot("a").await;
        assert_eq!(events.take(), [format!("{expected} by default in store, pended")]);
    }
    let _ = layer(FailingLimiter, &events).layer(echo()).oneshot("a").await;
    assert_eq!(events.take(), ["failed"]);
}

/// Whether a request that is dropped during a pending decision was charged is unknown.
#[tokio::test]
async fn dropped_pending_decision_emits_abandoned() {
    let events = RecordedEvents::default();
    let mut service = layer(Deferred(two_an_hour(), 3), &events).layer(echo());
    let mut cx = Context::from_waker(Waker::noop());
    for polls in 0..3 {
        let mut future = Box::pin(service.ready().await.expect("ready").call("a"));
        for _ in 0..polls {
            assert!(future.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!(events.take(), [""; 0]);
        drop(future);
        assert_eq!(events.take(), ["abandoned Deciding"]);
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_request_emits_the_wait_and_its_outcome() {
    let events = RecordedEvents::default();
    let queue = memory(LeakyQueue::new(Quota::per_second(1)).max_waiting(3));
    let mut service = layer(queue, &events).layer(echo());
    service.ready().await.expect("ready").call("a").await.expect("the first starts immediately");
    assert_eq!(events.take(), ["allowed by default in store"]);

    let second = service.ready().await.expect("ready").call("a");
    let third = service.ready().await.expect("ready").call("a");
    assert_eq!(events.take(), ["waits", "waits"]);
    second.await.expect("its start");
    // The queue asks once a second, and shortly before the start.
    assert_eq!(events.take(), ["WaitAsked { admitted: false }", "waited 1s", "delayed by default in store"]);
    sleep(Duration::from_millis(950)).await;
    assert_eq!(events.take(), ["WaitAsked { admitted: false }"]);
    sleep(Duration::from_millis(49)).await;
    assert_eq!(events.take(), ["WaitAsked { admitted: true }"]);
    drop(third);
    assert_eq!(events.take(), ["waited 1.999s", "abandoned Waiting"]);
}

#[tokio::test(start_paused = true)]
async fn waiter_that_acquires_again_emits_one_outcome() {
    let events = RecordedEvents::default();
    let limited =
        layer(memory(FixedWindow::new(Quota::per_second(1))), &events).max_wait(Duration::from_secs(5)).max_waiters(1);
    let mut service = limited.layer(echo());
    service.ready().await.expect("ready").call("a").await.expect("within the limit");
    assert_eq!(events.take(), ["allowed by default in store"]);
    let waiting = service.ready().await.expect("ready").call("a");
    assert_eq!(events.take(), ["waits"]);
    // `max_waiters` is 1.
    service.ready().await.expect("ready").call("a").await.expect_err("no free permit");
    assert_eq!(events.take(), ["WaitRefused", "denied by default in store"]);
    waiting.await.expect("within the limit again");
    let mut events = events.take();
    // A queue asks again after at most about a second, in case that capacity was released meanwhile.
    events.retain(|event| event != "WaitAsked { admitted: false }");
    assert_eq!(events, ["WaitAsked { admitted: true }", "waited 1s", "delayed by default in store"]);
}

/// The inner service is ready at first, and fails before the start.
#[tokio::test(start_paused = true)]
async fn waiting_request_emits_abandoned_when_the_service_fails() {
    #[derive(Clone)]
    struct Once(bool);
    impl Service<&'static str> for Once {
        type Response = &'static str;
        type Error = BoxError;
        type Future = Ready<Result<&'static str, BoxError>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            if std::mem::take(&mut self.0) { Poll::Ready(Ok(())) } else { Poll::Ready(Err("gone".into())) }
        }
        fn call(&mut self, request: &'static str) -> Self::Future {
            ready(Ok(request))
        }
    }
    let events = RecordedEvents::default();
    let layer = layer(memory(LeakyQueue::new(Quota::per_second(1))), &events);
    layer.layer(Echo::new(Once(true))).oneshot("a").await.expect("an immediate start");
    events.take();
    layer.layer(Echo::new(Once(true))).oneshot("a").await.expect_err("gone");
    assert_eq!(events.take(), ["waits", "waited 1s", "abandoned Waiting"]);
}

/// A response future that is dropped settles the whole held cost.
#[tokio::test]
async fn settlement_is_observed_with_the_held_and_the_actual_cost() {
    let events = RecordedEvents::default();
    let layer = layer(two_an_hour(), &events).settle(|_: u64, _: Result<&&'static str, &BoxError>| 0_u64);
    let mut service = layer.layer(echo());
    service.ready().await.expect("ready").call("a").await.expect("within the limit");
    assert_eq!(events.take(), ["allowed by default in store", "settled 1 -> 0"]);
    drop(service.ready().await.expect("ready").call("a"));
    assert_eq!(events.take(), ["allowed by default in store", "settled 1 -> 1"]);
}

#[tokio::test]
async fn several_observers_receive_decisions_with_shadow_denials() {
    let (first, second) = (RecordedEvents::default(), RecordedEvents::default());
    let limits = (
        Limit::new("smooth", Gcra::new(Quota::per_hour(5))),
        Limit::new("tried", Gcra::new(Quota::per_hour(1))).shadow(),
    );
    let shadows = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = shadows.clone();
    let layer = layer(Memory::new(limits), &first).observe(second.clone()).observe(move |event: &Event<'_>| {
        let Event::Decided { decision, .. } = event else { return };
        counted.fetch_add(decision.shadow_denials().count(), std::sync::atomic::Ordering::Relaxed);
    });
    for _ in 0..3 {
        layer.layer(echo()).oneshot("a").await.expect("within the limit");
    }
    assert_eq!(first.take(), ["allowed by smooth in store"; 3]);
    assert_eq!(second.take().len(), 3);
    assert_eq!(shadows.load(std::sync::atomic::Ordering::Relaxed), 2);
}

/// Thousands of requests: decided immediately or later, forwarded, denied, waiting, and dropped at any time.
#[tokio::test(start_paused = true)]
async fn each_request_emits_one_terminal_event_under_random_drops() {
    async fn round(limiter: impl Limiter<&'static str>, events: &RecordedEvents, random: &mut Random) {
        let waiting = layer(limiter, events).max_wait(Duration::from_secs(3)).max_waiters(4).max_waiters_per_key(4);
        let mut service = waiting.layer(echo());
        let mut cx = Context::from_waker(Waker::noop());
        let mut in_flight = Vec::new();
        for sent in 1..=200_usize {
            let request = random.choose(&["a", "b", "c", "exempt", "missing"]);
            let mut future = Box::pin(service.ready().await.expect("ready").call(request));
            // A number of polls; then the future is dropped, or continues beside the others.
            let ended = (0..random.below(5)).any(|_| future.as_mut().poll(&mut cx).is_ready());
            if !ended && random.below(2) == 0 {
                in_flight.push(future);
            }
            if random.below(4) == 0 {
                tokio::time::advance(Duration::from_millis(random.below(1500))).await;
                in_flight.retain_mut(|future| future.as_mut().poll(&mut cx).is_pending());
            }
            if sent == 200 {
                for (index, future) in in_flight.drain(..).enumerate() {
                    if index % 2 == 0 {
                        let _ = future.await;
                    }
                }
            }
        }
        let events = events.take();
        let is_terminal =
            |event: &&String| !["waits", "waited", "settled", "Wait"].iter().any(|word| event.starts_with(word));
        assert_eq!(events.iter().filter(is_terminal).count(), 200, "{events:#?}");
        let count = |word: &str| events.iter().filter(|event| event.starts_with(word)).count();
        assert_eq!(count("waits"), count("waited"));
        assert!(count("abandoned") > 0 && count("waits") > 0 && count("allowed") > 0, "{events:#?}");
    }
    let mut random = Random::new(42);
    let events = RecordedEvents::default();
    for _ in 0..10 {
        let queue = memory(LeakyQueue::new(Quota::per_second(1)).max_waiting(3));
        let window = memory(FixedWindow::new(Quota::per_second(3)));
        round(queue.clone(), &events, &mut random).await;
        round(window.clone(), &events, &mut random).await;
        round(Deferred(queue, 2), &events, &mut random).await;
        round(Deferred(window, 1), &events, &mut random).await;
    }
}

/// The limits of the counts are not those of the escalation. Clients choose how many denials there are.
#[tokio::test]
async fn misconfigured_counts_of_an_escalation_emit_one_warning() {
    let (events, escalation) = (RecordedEvents::default(), Escalation::new("default", Quota::per_minute(1)));
    let one = || memory(FixedWindow::new(Quota::per_hour(1)));
    let limiter = Escalating::new(one(), one(), escalation).observe(events.clone());
    for call in 0..5 {
        let decision = limiter.check(&"a", 1).await.expect("a decision");
        assert_eq!(decision.is_allowed(), call == 0);
    }
    let events = events.take();
    assert!(events.len() == 1 && events[0].starts_with("warning: escalation failed"), "{events:#?}");
}

/// A layer answers alike with and without an observer.
#[tokio::test]
async fn observer_does_not_change_responses() {
    let answers = |observed: bool| async move {
        let events = RecordedEvents::default();
        let layer = if observed { layer(two_an_hour(), &events) } else { unobserved(two_an_hour()) };
        let service = layer.layer(echo());
        let mut answers = Vec::new();
        for request in ["a", "a", "a", "exempt", "missing", "misconfigured", "b"] {
            let answer = pin!(service.clone().oneshot(request)).await;
            answers.push(answer.map_err(|error| error.to_string()));
        }
        answers
    };
    assert_eq!(answers(true).await, answers(false).await);
}

/// A warning of the responder reaches the observers for immediate, pending and settled decisions.
#[tokio::test]
async fn a_repeated_limit_name_is_reported_on_every_path() {
    fn warnings(events: &RecordedEvents) -> usize {
        events.take().iter().filter(|event| event.starts_with("warning: ") && event.contains("\"default\"")).count()
    }
    let request = || http::Request::new(());
    for responder in [Http::new(), Http::new().headers(Headers::new().request_extension(true))] {
        let events = RecordedEvents::default();
        let layer = RateLimitLayer::new(Global, two_an_hour()).responder(responder).observe(events.clone());
        for clone in [layer.clone(), layer] {
            let Ok(_) = clone.layer(service_fn(page)).oneshot(request()).await;
        }
        assert_eq!(warnings(&events), 1, "once for all clones of a layer");

        let deferred = RateLimitLayer::new(Global, BoxLimiter::new(Deferred(two_an_hour(), 1)));
        let deferred = deferred.responder(responder).observe(events.clone());
        let Ok(_) = deferred.layer(service_fn(page)).oneshot(request()).await;
        assert_eq!(warnings(&events), 1, "a decision that pended");

        let settled = RateLimitLayer::new(Global, two_an_hour()).responder(responder).observe(events.clone());
        let Ok(_) = settled.settle(OnlySuccesses).layer(service_fn(page)).oneshot(request()).await;
        assert_eq!(warnings(&events), 1, "a charge that is settled");

        let map_body = RateLimitLayer::new(Global, two_an_hour()).responder(responder.map_body());
        let Ok(_) = map_body.observe(events.clone()).layer(service_fn(page)).oneshot(request()).await;
        assert_eq!(warnings(&events), 1, "any body");

        let grpc =
            RateLimitLayer::new(Global, two_an_hour()).responder(Grpc::new().headers(Headers::none().rate_limit(true)));
        let Ok(_) = grpc.observe(events.clone()).layer(service_fn(page)).oneshot(request()).await;
        assert_eq!(warnings(&events), 1, "gRPC");

        let by_type = responder.grpc(Grpc::new());
        let by_type = RateLimitLayer::new(Global, two_an_hour()).responder(by_type).observe(events.clone());
        let Ok(_) = by_type.layer(service_fn(page)).oneshot(request()).await;
        assert_eq!(warnings(&events), 1, "by content type");
    }
}

/// Without connect info every request would be exempt: no request has a key, and nobody asked for that.
#[tokio::test]
async fn exemption_for_want_of_a_peer_warns_once() {
    let with_key = || http::Request::get("/").header("x-api-key", "k").body(()).expect("a request");
    let key = Credential::api_key("x-api-key").or(PeerIp::new());
    for policy in [MissingKeyPolicy::Exempt, MissingKeyPolicy::Reject] {
        let events = RecordedEvents::default();
        let layer = RateLimitLayer::new(key.clone(), two_an_hour()).missing_key(policy).observe(events.clone());
        let page = service_fn(async |_: http::Request<()>| {
            Ok::<_, Infallible>(http::Response::new(http_body_util::Full::<bytes::Bytes>::default()))
        });
        let Ok(_) = layer.layer(page).oneshot(with_key()).await;
        assert!(!events.take().iter().any(|event| event.starts_with("warning")), "the first key is there");
        for clone in [layer.clone(), layer] {
            for _ in 0..3 {
                let Ok(_) = clone.layer(page).oneshot(http::Request::new(())).await;
            }
        }
        let events = events.take();
        let warnings: Vec<_> = events.iter().filter(|event| event.starts_with("warning")).collect();
        if policy == MissingKeyPolicy::Reject {
            assert_eq!(warnings, [""; 0], "the responses say it");
            continue;
        }
        assert_eq!(events.iter().filter(|event| *event == "missing_key_exempt").count(), 6, "{events:#?}");
        let [warning] = warnings[..] else { panic!("{events:#?}") };
        assert!(warning.contains("exempt") && warning.contains("peer address missing"), "{warning}");
    }
}

/// Each kind of warning is emitted once, whatever other warnings came before.
#[tokio::test]
async fn a_warning_does_not_suppress_one_of_another_kind() {
    let events = RecordedEvents::default();
    let key = Credential::api_key("x-api-key").or(PeerIp::new());
    let layer = RateLimitLayer::new(key, two_an_hour()).missing_key(MissingKeyPolicy::Exempt).observe(events.clone());
    for _ in 0..2 {
        for with_key in [false, true] {
            let mut request = http::Request::new(());
            if with_key {
                request.headers_mut().insert("x-api-key", http::HeaderValue::from_static("k"));
            }
            let Ok(_) = layer.layer(service_fn(page)).oneshot(request).await;
        }
    }
    let warnings = events.take().iter().filter(|event| event.starts_with("warning")).count();
    assert_eq!(warnings, 2, "the exemption, and the repeated name");
}
