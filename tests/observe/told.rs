//! Of each request exactly one end is told, whatever becomes of it, and what comes beside is told in order.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::cost::OnlySuccesses;
use tower_ratelimit::key::{Extracted, Global, Missing};
use tower_ratelimit::limiter::Limiter;
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::{BoxError, ByContentType, Grpc, Http, RejectWithError};
use tower_ratelimit::{
    FixedWindow, Gcra, LeakyQueue, Limit, ManualClock, Memory, MissingKeyPolicy, Quota, RateLimitLayer, TokioClock,
};

use crate::support::{Broken, Notes, Slowly};

/// `exempt`, `missing`, `misassembled`, or a key.
fn whose(request: &&'static str) -> Extracted<&'static str> {
    match *request {
        "exempt" => Extracted::Exempt,
        "missing" => Extracted::Missing(Missing::from_request("nobody's")),
        "misassembled" => Extracted::Missing(Missing::from_server("no layer tells whose it is")),
        key => Extracted::Key(key),
    }
}

type Whose = fn(&&'static str) -> Extracted<&'static str>;
type Page = fn(&'static str) -> Ready<Result<(), BoxError>>;

fn layer<A>(limiter: A, notes: &Notes) -> RateLimitLayer<Whose, A, RejectWithError> {
    RateLimitLayer::new(whose as Whose, limiter).responder(RejectWithError).observe(notes.clone())
}

fn page() -> tower::util::ServiceFn<Page> {
    service_fn(|_| ready(Ok(())))
}

fn two_an_hour() -> Memory<FixedWindow, ManualClock> {
    Memory::builder(FixedWindow::new(Quota::per_hour(2))).clock(ManualClock::new()).build().expect("a limiter")
}

#[tokio::test]
async fn what_is_decided_at_once() {
    let notes = Notes::default();
    let service =
        layer(two_an_hour(), &notes).cost(|key: &&'static str| if *key == "dear" { 3 } else { 1 }).layer(page());
    for (request, told) in [
        ("a", "allowed by default in store"),
        ("a", "allowed by default in store"),
        ("a", "denied by default in store"),
        ("dear", "never by default in store"),
        ("exempt", "exempt"),
        ("missing", "missing"),
        ("misassembled", "missing"),
    ] {
        let _ = service.clone().oneshot(request).await;
        assert_eq!(notes.take(), [told], "{request}");
    }

    let lenient = layer(two_an_hour(), &notes).missing_key(MissingKeyPolicy::Exempt).layer(page());
    lenient.oneshot("missing").await.expect("let through");
    assert_eq!(notes.take(), ["missing_exempt"]);
}

#[tokio::test]
async fn what_is_decided_elsewhere() {
    let notes = Notes::default();
    let service = layer(Slowly(two_an_hour(), 3), &notes).layer(page());
    for told in ["allowed", "allowed", "denied"] {
        let _ = service.clone().oneshot("a").await;
        assert_eq!(notes.take(), [format!("{told} by default in store, pended")]);
    }
    let _ = layer(Broken, &notes).layer(page()).oneshot("a").await;
    assert_eq!(notes.take(), ["failed"]);
}

/// Dropped while it was being decided: nobody knows whether it was charged.
#[tokio::test]
async fn what_is_dropped_while_it_is_decided() {
    let notes = Notes::default();
    let mut service = layer(Slowly(two_an_hour(), 3), &notes).layer(page());
    let mut cx = Context::from_waker(Waker::noop());
    for polls in 0..3 {
        let mut future = Box::pin(service.ready().await.expect("ready").call("a"));
        for _ in 0..polls {
            assert!(future.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!(notes.take(), [""; 0]);
        drop(future);
        assert_eq!(notes.take(), ["abandoned Deciding"]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits() {
    let notes = Notes::default();
    let queue = Memory::builder(LeakyQueue::new(Quota::per_second(1)).max_waiting(3)).clock(TokioClock::new()).build();
    let mut service = layer(queue.expect("a limiter"), &notes).layer(page());
    service.ready().await.expect("ready").call("a").await.expect("the first goes at once");
    assert_eq!(notes.take(), ["allowed by default in store"]);

    let second = service.ready().await.expect("ready").call("a");
    let third = service.ready().await.expect("ready").call("a");
    assert_eq!(notes.take(), ["waits", "waits"]);
    second.await.expect("its turn");
    assert_eq!(notes.take(), ["waited 1s", "delayed by default in store"]);
    drop(third);
    assert_eq!(notes.take(), ["waited 1s", "abandoned Waiting"]);
}

#[tokio::test(start_paused = true)]
async fn what_asks_again() {
    let notes = Notes::default();
    let window = FixedWindow::new(Quota::per_second(1));
    let limiter = Memory::builder(window).clock(TokioClock::new()).build().expect("a limiter");
    let limited = layer(limiter, &notes).max_wait(Duration::from_secs(5)).max_waiters(1);
    let mut service = limited.layer(page());
    service.ready().await.expect("ready").call("a").await.expect("room");
    assert_eq!(notes.take(), ["allowed by default in store"]);
    let waiting = service.ready().await.expect("ready").call("a");
    assert_eq!(notes.take(), ["waits"]);
    // There is one seat.
    service.ready().await.expect("ready").call("a").await.expect_err("no place to wait in");
    assert_eq!(notes.take(), ["denied by default in store"]);
    waiting.await.expect("room again");
    let told = notes.take();
    assert!(told[0].starts_with("waited 1"), "{told:?}");
    assert_eq!(told[1..], ["allowed by default in store"]);
}

/// The inner service is ready at first, and has failed when the turn comes.
#[tokio::test(start_paused = true)]
async fn what_finds_the_service_gone() {
    #[derive(Clone)]
    struct Once(bool);
    impl Service<&'static str> for Once {
        type Response = ();
        type Error = BoxError;
        type Future = Ready<Result<(), BoxError>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            if std::mem::take(&mut self.0) { Poll::Ready(Ok(())) } else { Poll::Ready(Err("gone".into())) }
        }
        fn call(&mut self, _: &'static str) -> Self::Future {
            ready(Ok(()))
        }
    }
    let notes = Notes::default();
    let queue = Memory::builder(LeakyQueue::new(Quota::per_second(1))).clock(TokioClock::new()).build();
    let queue = queue.expect("a limiter");
    let layer = layer(queue, &notes);
    layer.layer(Once(true)).oneshot("a").await.expect("at once");
    notes.take();
    layer.layer(Once(true)).oneshot("a").await.expect_err("gone");
    assert_eq!(notes.take(), ["waits", "waited 1s", "abandoned Waiting"]);
}

#[tokio::test]
async fn settlement_is_observed_with_the_held_and_the_actual_cost() {
    let notes = Notes::default();
    let layer = layer(two_an_hour(), &notes).settle(|_: u64, _: Result<&(), &BoxError>| 0_u64);
    layer.layer(page()).oneshot("a").await.expect("room");
    assert_eq!(notes.take(), ["allowed by default in store", "settled 1 -> 0"]);
}

/// A response's future that is dropped before the response settles the whole cost.
#[tokio::test]
async fn dropped_response_is_observed_as_settled_whole() {
    let notes = Notes::default();
    let hangs = service_fn(|_: &'static str| std::future::pending::<Result<(), BoxError>>());
    let layer = layer(two_an_hour(), &notes).settle(|_: u64, _: Result<&(), &BoxError>| 0_u64);
    let mut service = layer.layer(hangs);
    drop(service.ready().await.expect("ready").call("a"));
    assert_eq!(notes.take(), ["allowed by default in store", "settled 1 -> 1"]);
}

#[tokio::test]
async fn several_observers_and_shadows() {
    let (first, second) = (Notes::default(), Notes::default());
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
        layer.layer(page()).oneshot("a").await.expect("room");
    }
    assert_eq!(first.take(), ["allowed by smooth in store"; 3]);
    assert_eq!(second.take().len(), 3);
    assert_eq!(shadows.load(std::sync::atomic::Ordering::Relaxed), 2);
}

/// Thousands of requests, decided here or elsewhere, forwarded, refused, waiting, and dropped at any moment.
#[tokio::test(start_paused = true)]
async fn one_end_each_whatever_happens() {
    async fn round<A: Limiter<&'static str> + Clone>(limiter: A, notes: &Notes, draw: &mut impl FnMut(u64) -> u64) {
        let waiting = layer(limiter, notes).max_wait(Duration::from_secs(3)).max_waiters(4);
        let mut service = waiting.layer(page());
        let mut cx = Context::from_waker(Waker::noop());
        let mut going = Vec::new();
        for sent in 1..=200_usize {
            let request = ["a", "b", "c", "exempt", "missing"][usize::try_from(draw(5)).expect("small")];
            let mut future = Box::pin(service.ready().await.expect("ready").call(request));
            // So many polls, and then it is dropped, or goes on beside the others.
            let ended = (0..draw(5)).any(|_| future.as_mut().poll(&mut cx).is_ready());
            if !ended && draw(2) == 0 {
                going.push(future);
            }
            if draw(4) == 0 {
                tokio::time::advance(Duration::from_millis(draw(1500))).await;
                going.retain_mut(|future| future.as_mut().poll(&mut cx).is_pending());
            }
            if sent == 200 {
                for (index, future) in going.drain(..).enumerate() {
                    if index % 2 == 0 {
                        let _ = future.await;
                    }
                }
            }
        }
        let told = notes.take();
        let beside = |note: &String| ["waits", "waited", "settled"].iter().any(|word| note.starts_with(word));
        assert_eq!(told.iter().filter(|note| !beside(note)).count(), 200, "{told:#?}");
        let count = |word: &str| told.iter().filter(|note| note.starts_with(word)).count();
        assert_eq!(count("waits"), count("waited"));
        assert!(count("abandoned") > 0 && count("waits") > 0 && count("allowed") > 0, "{told:#?}");
    }
    let mut seed = 42_u64;
    let mut draw = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let notes = Notes::default();
    for _ in 0..10 {
        let queue = Memory::builder(LeakyQueue::new(Quota::per_second(1)).max_waiting(3)).clock(TokioClock::new());
        let queue = queue.build().expect("a limiter");
        let window = Memory::builder(FixedWindow::new(Quota::per_second(3))).clock(TokioClock::new());
        let window = window.build().expect("a limiter");
        round(queue.clone(), &notes, &mut draw).await;
        round(window.clone(), &notes, &mut draw).await;
        round(Slowly(queue, 2), &notes, &mut draw).await;
        round(Slowly(window, 1), &notes, &mut draw).await;
    }
}

/// A layer without an observer, and one with, answer alike.
#[tokio::test]
async fn nothing_is_changed_by_looking() {
    let answers = |observed: bool| async move {
        let notes = Notes::default();
        let unobserved = RateLimitLayer::new(whose as Whose, two_an_hour()).responder(RejectWithError);
        let layer = if observed { unobserved.observe(notes) } else { unobserved };
        let service = layer.layer(service_fn(|request: &'static str| ready(Ok::<_, Infallible>(request))));
        let mut answers = Vec::new();
        for request in ["a", "a", "a", "exempt", "missing", "misassembled", "b"] {
            let answer = pin!(service.clone().oneshot(request)).await;
            answers.push(answer.map_err(|error| error.to_string()));
        }
        answers
    };
    assert_eq!(answers(true).await, answers(false).await);
}

/// A warning of the responder reaches the observers however the decision came about: at once, later, or to be settled.
#[tokio::test]
async fn a_repeated_limit_name_is_reported_on_every_path() {
    async fn page(_: http::Request<()>) -> Result<http::Response<http_body_util::Full<bytes::Bytes>>, Infallible> {
        let response = http::Response::builder().header("ratelimit-policy", "\"default\";q=1;w=1");
        Ok(response.body(http_body_util::Full::default()).expect("a response"))
    }
    fn warnings(notes: &Notes) -> usize {
        notes.take().iter().filter(|note| note.starts_with("warning: ") && note.contains("\"default\"")).count()
    }
    let request = || http::Request::new(());
    for responder in [Http::new(), Http::new().extensions(false)] {
        let notes = Notes::default();
        let layer = RateLimitLayer::new(Global, two_an_hour()).responder(responder).observe(notes.clone());
        for clone in [layer.clone(), layer] {
            let Ok(_) = clone.layer(service_fn(page)).oneshot(request()).await;
        }
        assert_eq!(warnings(&notes), 1, "once for all clones of a layer");

        let slowly = RateLimitLayer::new(Global, Slowly(two_an_hour(), 1)).responder(responder).observe(notes.clone());
        let Ok(_) = slowly.layer(service_fn(page)).oneshot(request()).await;
        assert_eq!(warnings(&notes), 1, "a decision that pended");

        let settled = RateLimitLayer::new(Global, two_an_hour()).responder(responder).observe(notes.clone());
        let Ok(_) = settled.settle(OnlySuccesses).layer(service_fn(page)).oneshot(request()).await;
        assert_eq!(warnings(&notes), 1, "a charge that is settled");

        let map_body = RateLimitLayer::new(Global, two_an_hour()).responder(responder.map_body());
        let Ok(_) = map_body.observe(notes.clone()).layer(service_fn(page)).oneshot(request()).await;
        assert_eq!(warnings(&notes), 1, "any body");

        let grpc = RateLimitLayer::new(Global, two_an_hour()).responder(Grpc::new().rate_limit_headers(true));
        let Ok(_) = grpc.observe(notes.clone()).layer(service_fn(page)).oneshot(request()).await;
        assert_eq!(warnings(&notes), 1, "gRPC");

        let by_type = ByContentType::new(Grpc::new(), responder);
        let by_type = RateLimitLayer::new(Global, two_an_hour()).responder(by_type).observe(notes.clone());
        let Ok(_) = by_type.layer(service_fn(page)).oneshot(request()).await;
        assert_eq!(warnings(&notes), 1, "by content type");
    }
}
