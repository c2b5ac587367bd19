//! The caller's own deadline: the header `grpc-timeout` shortens the wait of a gRPC call.

use std::time::Duration;

use http::{Request, Response};
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::key::Global;
use tower_ratelimit::response::{BoxError, Grpc};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, FixedWindow, Gcra, Http, LeakyQueue, Limit, Limiter, Memory, Quota, RateLimitLayer,
    TokioClock,
};

use crate::random::Random;
use crate::support::{self, NOTIFICATIONS, ms, page_layer, pages, spawn};

const SECOND: Duration = Duration::from_secs(1);

/// A layer for gRPC calls.
fn layer(algorithm: impl Algorithm) -> RateLimitLayer<Global, BoxLimiter<()>, Grpc> {
    page_layer(memory(algorithm)).responder(Grpc::new())
}

fn memory(algorithm: impl Algorithm) -> BoxLimiter<()> {
    support::memory(algorithm, TokioClock::new())
}

fn one_per_second() -> Gcra {
    Gcra::new(Quota::per_second(1)).burst(1)
}

fn with_timeout(value: &str) -> Request<()> {
    let request = Request::post("/check").header("content-type", "application/grpc");
    let request = if value.is_empty() { request } else { request.header("grpc-timeout", value) };
    request.body(()).expect("a request")
}

/// Calls the service. Returns whether the request was served, and the time that it took.
async fn call<S, B>(service: S, request: Request<()>) -> (bool, Duration)
where
    S: Service<Request<()>, Response = Response<B>, Error = BoxError>,
{
    let started = Instant::now();
    let response = service.oneshot(request).await.expect("a response");
    (response.headers().get("grpc-status").is_none(), started.elapsed())
}

#[tokio::test(start_paused = true)]
async fn waiter_leaves_at_its_grpc_timeout_without_a_start() {
    let limiter = memory(FixedWindow::new(Quota::per_hour(1)));
    let held = limiter.hold(&(), AcquireOptions::default()).await.expect("memory").held.expect("it is free");
    let service = page_layer(limiter).responder(Grpc::new()).max_wait(10 * SECOND).layer(pages());
    let leaving = spawn(call(service.clone(), with_timeout("500m")));
    tokio::task::yield_now().await;
    let staying = spawn(call(service.clone(), with_timeout("5S")));
    assert_eq!(leaving.await.expect("no panic"), (false, ms(500)));
    held.release().await.expect("memory");
    let (is_served, waited) = staying.await.expect("no panic");
    assert_eq!((is_served, waited), (true, ms(500)), "a guard outside of the layer wakes the queue");
}

/// Without `max_wait` only a queue among the algorithms lets requests wait, whatever deadlines clients send.
#[tokio::test(start_paused = true)]
async fn grpc_timeout_without_max_wait_makes_no_queue() {
    let queue = || LeakyQueue::new(Quota::per_second(1)).max_waiting(5);
    let both = Memory::builder((Limit::new("queue", queue()), Limit::new("bucket", one_per_second())));
    let both = BoxLimiter::new(both.clock(TokioClock::new()).build().expect("limits"));
    for (name, limiter) in [
        ("a bucket", memory(one_per_second())),
        ("a window", memory(FixedWindow::new(Quota::per_second(1)))),
        ("a queue and a bucket", both),
    ] {
        let service = page_layer(limiter).responder(Grpc::new()).layer(pages());
        assert_eq!(call(service.clone(), with_timeout("10S")).await, (true, Duration::ZERO), "{name}");
        let with_deadline = spawn(call(service.clone(), with_timeout("10S")));
        tokio::task::yield_now().await;
        let others: Vec<_> = (0..20).map(|_| spawn(call(service.clone(), with_timeout("")))).collect();
        for denied in others.into_iter().chain([with_deadline]) {
            assert_eq!(denied.await.expect("no panic"), (false, Duration::ZERO), "{name}");
        }
    }
    let service = layer(queue()).layer(pages());
    assert!(call(service.clone(), with_timeout("")).await.0);
    assert_eq!(call(service, with_timeout("10S")).await, (true, SECOND), "a queue");
}

#[tokio::test(start_paused = true)]
async fn grpc_timeout_of_an_http_request_is_ignored() {
    let layer = page_layer(memory(one_per_second())).responder(Http::new().grpc(Grpc::new()));
    let service = layer.max_wait(10 * SECOND).layer(pages());
    let http = || Request::get("/").header("grpc-timeout", "1m").body(()).expect("a request");
    assert_eq!(call(service.clone(), http()).await, (true, Duration::ZERO));
    assert_eq!(call(service.clone(), with_timeout("1m")).await, (false, Duration::ZERO));
    assert_eq!(call(service, http()).await, (true, SECOND));
}

/// The law of a queue among the algorithms without `max_wait`, and of a bucket with one: a call is served at the next free
/// start, if this start is within the bound and within the call's own deadline. A call that is not served takes no start.
/// The model keeps one number, the next free start.
#[tokio::test(start_paused = true)]
async fn refused_call_is_not_charged() {
    const MAX_WAITING: u64 = 5;
    let _lock = NOTIFICATIONS.lock().await;
    let mut random = Random::new(1);
    let mut next = move |below| random.below(below);
    let (mut refused, mut served) = (0, 0);
    for round in 0..20 {
        let quota = Quota::per_second(10);
        let service = if round % 4 < 2 {
            layer(LeakyQueue::new(quota).max_waiting(MAX_WAITING)).layer(pages())
        } else {
            layer(Gcra::new(quota).burst(1)).max_wait(ms(100 * MAX_WAITING)).layer(pages())
        };
        let (started, mut free_at, mut calls) = (Instant::now(), Duration::ZERO, Vec::new());
        for index in 0..100 {
            // Odd rounds have a client whose calls are never served.
            let timeout =
                if round % 2 == 1 && index % 2 == 1 { Some(next(5)) } else { Some(next(900)).filter(|ms| *ms < 700) };
            let long = ["", "10S", "99999999H", "malformed"][usize::try_from(next(4)).expect("small")];
            let value = timeout.map_or_else(|| long.to_owned(), |timeout| format!("{timeout}m"));
            let arrived_at = started.elapsed();
            let start = free_at.max(arrived_at);
            let wait = start.saturating_sub(arrived_at);
            let is_served = wait <= ms(100 * MAX_WAITING) && timeout.is_none_or(|timeout| wait <= ms(timeout));
            if is_served {
                free_at = start + ms(100);
            }
            let expected = (is_served, if is_served { wait } else { Duration::ZERO });
            calls.push((round, index, timeout, expected, spawn(call(service.clone(), with_timeout(&value)))));
            tokio::task::yield_now().await;
            // 12 calls a second arrive on average.
            sleep(ms(next(160))).await;
        }
        for (round, index, timeout, expected, call) in calls {
            let outcome = call.await.expect("no panic");
            assert_eq!(outcome, expected, "round {round}, call {index} with a timeout of {timeout:?}");
            *(if outcome.0 { &mut served } else { &mut refused }) += 1;
        }
    }
    println!("{served} served, {refused} refused");
    assert!(served > 1000 && refused > 200, "{served} served, {refused} refused: the test proves nothing");
}
