//! Limits on requests in flight behind the layer: services without a body, headers, misconfiguration. `releases` has the
//! queues, and `settlements` of `observe` has panics and events.

use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::limiter::{Held, LimiterFuture, Outcome};
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::{BoxError, Rejection};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, Detail, FixedWindow, Gcra, InFlight, InFlightBody, InFlightGuard, Limiter,
    ManualClock, Quota, Verdict,
};

use crate::load::{self, Call};
use crate::support::{
    Act, Page, PageService, Pool, Task, TestRequest, limit, memory, ms, page_layer, pages, rejecting, several, spawn,
};

fn peek<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> Decision {
    limiter.peek(key, AcquireOptions::default()).try_ready().expect("ready").expect("a decision")
}

fn at_most<Key: Hash + 'static>(max: u64) -> BoxLimiter<Key> {
    memory(InFlight::new(max), ManualClock::new())
}

/// The requests in flight for the key `alice`, of at most two.
fn in_flight(limiter: &BoxLimiter<&'static str>) -> u64 {
    2 - peek(limiter, &"alice").remaining().expect("one limit")
}

async fn send(service: PageService) -> Page {
    service.oneshot(Request::new(())).await.expect("a response")
}

const ALICE: TestRequest = TestRequest::new("alice");

#[tokio::test]
async fn in_flight_ends_with_the_response_of_a_service_without_a_body() {
    let limiter = at_most(2);
    let mut service = rejecting(limiter.clone()).release_on_response().layer(Pool::new(10).service());
    for act in [Act::Answer, Act::Fail, Act::Hang] {
        let mut response = task::spawn(service.ready().await.expect("ready").call(ALICE.with_act(act)));
        assert_eq!(in_flight(&limiter), 1, "{act:?}");
        if act == Act::Hang {
            drop(task::spawn(service.ready().await.expect("ready").call(ALICE.with_act(act))));
            assert_eq!(in_flight(&limiter), 1, "a future that is dropped before it is polled");
        }
        match act {
            Act::Answer => assert!(assert_ready!(response.poll()).is_ok()),
            Act::Fail => assert!(assert_ready!(response.poll()).is_err()),
            _ => assert_pending!(response.poll()),
        }
        assert_eq!(in_flight(&limiter), u64::from(act == Act::Hang), "{act:?}");
        drop(response);
        assert_eq!(in_flight(&limiter), 0, "{act:?}");
    }
}

/// A limiter that counts requests in flight, under a layer that does not track their end, rejects every request: it
/// would otherwise count nothing.
#[tokio::test]
async fn in_flight_under_a_layer_without_tracking_is_misconfigured() {
    let two = InFlight::new(2);
    let limiters = [
        memory(two, ManualClock::new()),
        several([limit("streams", two), limit("rate", Gcra::new(Quota::per_second(1)))], ManualClock::new()),
    ];
    for limiter in limiters {
        let failed = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&failed);
        let layer = page_layer(limiter.clone()).observe(move |event: &Event<'_>| {
            if let Event::Failed { error, .. } = event {
                log.lock().unwrap().push(error.to_string());
            }
        });
        let response = send(PageService::new(layer.layer(pages()))).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        assert!(!String::from_utf8_lossy(&body).contains("release_on"), "clients learn nothing");
        let settling = layer.settle(|held: u64, _: Result<&Page, &BoxError>| held);
        let response = send(PageService::new(settling.layer(pages()))).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let failed = failed.lock().unwrap();
        assert_eq!(failed.len(), 2);
        assert!(failed[0].contains("release_on_body_end"), "{}", failed[0]);
        assert!(peek(&limiter, &()).is_allowed(), "nothing is held or charged");
    }
}

#[tokio::test]
async fn in_flight_denial_has_an_estimated_wait_and_the_unit_of_the_draft() {
    let limiter = several([limit("streams", InFlight::new(1))], ManualClock::new());
    let service = page_layer(limiter).release_on_body_end().layer(pages());
    let open = service.clone().oneshot(Request::new(())).await.expect("a response");
    assert_eq!(open.headers()["ratelimit-policy"], r#""streams";q=1;qu="concurrent-requests""#);
    assert_eq!(open.headers()["ratelimit"], r#""streams";r=0"#);
    let denied = service.clone().oneshot(Request::new(())).await.expect("a response");
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.headers()["retry-after"], "1");
    drop(open);
    assert_eq!(service.oneshot(Request::new(())).await.expect("a response").status(), StatusCode::OK);
}

/// The response settles the rate, and the end of the body releases the rest.
#[tokio::test]
async fn in_flight_and_a_settled_rate_end_at_their_own_times() {
    let rate = limit("rate", FixedWindow::new(Quota::per_minute(100)));
    let limiter = several([limit("streams", InFlight::new(1)), rate], ManualClock::new());
    let layer = page_layer(limiter.clone())
        .cost(|_: &Request<()>| 1)
        .settle(|_: u64, _: Result<&Page, &BoxError>| 40)
        .release_on_body_end();
    let response = layer.layer(pages()).oneshot(Request::new(())).await.expect("a response");
    let remaining = || {
        let options = AcquireOptions::default().detail(Detail::All);
        let decision = limiter.peek(&(), options).try_ready().expect("ready").expect("a decision");
        [decision.limits()[0].remaining(), decision.limits()[1].remaining()]
    };
    assert_eq!(remaining(), [0, 60]);
    drop(response);
    assert_eq!(remaining(), [1, 60]);
}

/// When a request ends is unknown, so a rejection states the estimate of the limit, also if the last decision was an admission.
#[tokio::test(start_paused = true)]
async fn in_flight_queue_rejects_with_the_wait_of_the_limit() {
    let (mut rejected, mut started) = (0, 0);
    for (max, delay, work) in [(1, 0, 70), (1, 15, 130), (2, 0, 310), (2, 40, 90), (3, 5, 1_000)] {
        let limiter = load::Remote::new(load::memory(InFlight::new(max)), ms(delay));
        let service = load::in_flight(load::layer(limiter).max_wait(ms(250)), load::inner());
        let mut tasks = Vec::new();
        for number in 0..60 {
            tasks.push(spawn(service.clone().oneshot(Call::number(number).work(ms(work + 7 * u64::from(number % 5))))));
            tokio::time::sleep(ms(11)).await;
        }
        for task in tasks {
            let Err(error) = task.await.expect("no panic") else {
                started += 1;
                continue;
            };
            let rejection = error.downcast_ref::<Rejection>().expect("the layer's error");
            let wait = rejection.retry_after().expect("a wait");
            assert!(wait >= Duration::from_secs(1), "{max} {delay} {work}: {wait:?}");
            rejected += 1;
        }
    }
    assert!(rejected > 50 && started > 30, "{rejected} {started}");
}

/// A service that keeps the guards that it finds.
fn upgrade() -> (Arc<Mutex<Vec<InFlightGuard>>>, PageService) {
    let guards = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&guards);
    let service = service_fn(move |request: Request<()>| {
        kept.lock().unwrap().extend(request.extensions().get::<InFlightGuard>().cloned());
        std::future::ready(Ok(Page::default()))
    });
    (guards, PageService::new(service))
}

/// Exempt requests are not counted, and have no guard.
#[tokio::test]
async fn in_flight_guard_is_in_the_extensions_of_counted_requests_only() {
    let limiter = at_most(1);
    let layer = page_layer(limiter.clone()).exempt_if(|request: &Request<()>| request.uri() == "/exempt");
    let (guards, upgrade) = upgrade();
    let service = layer.release_on_body_end().layer(upgrade);
    drop(service.clone().oneshot(Request::get("/exempt").body(()).unwrap()).await.expect("a response"));
    assert!(guards.lock().unwrap().is_empty());

    // An upgrade: the response's body is dropped, and the connection keeps the guard.
    drop(service.oneshot(Request::new(())).await.expect("a response"));
    let guard = guards.lock().unwrap().pop().expect("a guard");
    assert!(!peek(&limiter, &()).is_allowed());
    let clone = guard.clone();
    drop(guard);
    assert!(!peek(&limiter, &()).is_allowed(), "a clone is left");
    drop(clone);
    assert!(peek(&limiter, &()).is_allowed());
}

/// With two layers, the guard that the handler finds keeps the request in flight in both.
#[tokio::test]
async fn in_flight_guard_of_stacked_layers_ends_both() {
    let [outer, inner] = [(); 2].map(|()| at_most(1));
    let (guards, upgrade) = upgrade();
    let service = page_layer(inner.clone()).release_on_body_end().layer(upgrade);
    let service = page_layer(outer.clone()).release_on_body_end().layer(service);
    drop(service.oneshot(Request::new(())).await.expect("a response"));
    assert!(!peek(&outer, &()).is_allowed() && !peek(&inner, &()).is_allowed());
    guards.lock().unwrap().clear();
    assert!(peek(&outer, &()).is_allowed() && peek(&inner, &()).is_allowed());
}

/// The type of the layer does not depend on the order of its methods.
#[test]
fn in_flight_tracking_survives_other_settings_of_the_layer() {
    fn tracks<L: Layer<S>, S>(_: &L, _: &S)
    where
        L::Service: Service<Request<()>, Response = Response<InFlightBody<http_body_util::Full<bytes::Bytes>>>>,
    {
    }
    let inner = pages();
    let layer = page_layer(at_most(1)).release_on_body_end();
    tracks(&layer.clone().responder(tower_ratelimit::Http::without_headers()), &inner);
    tracks(&layer.clone().cost(|_: &Request<()>| 2).max_wait(Duration::from_secs(1)), &inner);
    tracks(&layer.exempt_if(|_: &Request<()>| false), &inner);
}

/// How a limiter around another one returns the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrap {
    Mapped,
    Rebuilt,
    Dropped,
}

/// A limiter around another one, which wraps each guard.
struct Wrapping<Key: ?Sized>(BoxLimiter<Key>, Wrap);

impl<Key: ?Sized + 'static> Limiter<Key> for Wrapping<Key> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let Ok(acquired) = self.0.acquire(key, options).try_ready() else { panic!("memory is ready") };
        let acquired = acquired.map(|Outcome { decision, held, .. }| {
            let held = match self.1 {
                Wrap::Mapped => held.map(|held| held.map_settle(Held::settle)),
                Wrap::Rebuilt => held.map(|held| Held::new(held.cost(), move |actual| held.settle(actual))),
                Wrap::Dropped => None,
            };
            Outcome::new(decision, held)
        });
        LimiterFuture::pending(std::future::ready(acquired))
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.0.peek(key, options)
    }
}

/// A limiter around another one keeps the limit on requests in flight, or the layer rejects each request: ten streams
/// at a maximum of two.
#[tokio::test(start_paused = true)]
async fn wrapped_guard_keeps_in_flight() {
    for (wrap, waits, ready) in [Wrap::Mapped, Wrap::Rebuilt, Wrap::Dropped]
        .into_iter()
        .flat_map(|wrap| [(wrap, false, false), (wrap, false, true), (wrap, true, false)])
    {
        let limiter = at_most(2);
        let wrapped = BoxLimiter::new(Wrapping(limiter.clone(), wrap));
        let wrapped = if ready { BoxLimiter::new(Now(wrapped)) } else { wrapped };
        let mut layer = rejecting(wrapped).release_on_response();
        if waits {
            layer = layer.max_wait(Duration::from_secs(1));
        }
        let service = layer.layer(Pool::new(100).service());
        let streams = [(); 10].map(|()| spawn(service.clone().oneshot(ALICE.with_act(Act::Hang))));
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (mut open, mut errors) = (Vec::new(), Vec::new());
        for stream in streams {
            if stream.is_finished() {
                errors.push(stream.await.expect("no panic").expect_err("a rejection").to_string());
            } else {
                open.push(stream);
            }
        }
        let open_streams = open.len();
        if wrap == Wrap::Mapped {
            assert_eq!((open_streams, errors.len()), (2, 8), "waits: {waits}");
            assert_eq!(in_flight(&limiter), 2);
        } else {
            assert_eq!((open_streams, errors.len()), (0, 10), "{wrap:?}, waits: {waits}");
            assert!(errors.iter().all(|error| error == "server misconfigured"), "{errors:?}");
            assert_eq!(in_flight(&limiter), 0, "{wrap:?}, waits: {waits}: what was held is released");
        }
        open.iter().for_each(Task::abort);
    }
}

/// The same for streams: a guard that the response settles would not count the open body.
#[tokio::test]
async fn wrapped_guard_counts_open_bodies() {
    for wrap in [Wrap::Mapped, Wrap::Rebuilt, Wrap::Dropped] {
        let limiter = at_most(2);
        let service = page_layer(Wrapping(limiter.clone(), wrap)).release_on_body_end().layer(pages());
        let mut open = Vec::new();
        for _ in 0..10 {
            let response = service.clone().oneshot(Request::new(())).await.expect("a response");
            open.extend(Some(response).filter(|response| response.status() == StatusCode::OK));
        }
        assert_eq!(open.len(), if wrap == Wrap::Mapped { 2 } else { 0 }, "{wrap:?}");
        drop(open);
        assert_eq!(peek(&limiter, &()).remaining(), Some(2));
    }
}

/// A limiter that is ready at once.
struct Now<Key: ?Sized>(BoxLimiter<Key>);

impl<Key: ?Sized + 'static> Limiter<Key> for Now<Key> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let acquired = self.0.acquire(key, options);
        let mut acquired = task::spawn(acquired);
        LimiterFuture::ready(assert_ready!(acquired.poll()))
    }
}

/// A custom limit on requests in flight, which does not ask whether the caller keeps the guard.
#[derive(Clone)]
struct Custom;

impl Limiter<()> for Custom {
    fn acquire(&self, (): &(), options: AcquireOptions) -> LimiterFuture<Outcome> {
        let decision = Decision::without_limit(ManualClock::START, Verdict::Allowed);
        let held = Some(Held::until_end(options.cost, || LimiterFuture::ready(Ok(()))));
        LimiterFuture::ready(Ok(Outcome::new(decision, held)))
    }
}

#[tokio::test]
async fn custom_limit_in_flight_under_a_layer_without_tracking_is_misconfigured() {
    let layer = page_layer(Custom);
    let response = send(PageService::new(layer.layer(pages()))).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let tracked = send(PageService::new(layer.release_on_response().layer(pages()))).await;
    assert_eq!(tracked.status(), StatusCode::OK);
}
