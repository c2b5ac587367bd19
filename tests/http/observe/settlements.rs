//! Each hold of an allowed request has exactly one settlement, also if a part of the request panics.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::key::Global;
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::{BoxError, Rejection};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, Detail, FixedWindow, InFlight, Limit, Limiter, Memory, Quota, RateLimitLayer,
    Respond, TokioClock,
};

use crate::support::Deferred;

/// Where a request panics, or leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Nowhere,
    OnAllowed,
    Call,
    Future,
    Settle,
    MapResponse,
    /// The response never comes: the client leaves.
    Hang,
}

const EVERYWHERE: [At; 7] = [At::Nowhere, At::OnAllowed, At::Call, At::Future, At::Settle, At::MapResponse, At::Hang];

/// The inner service.
#[derive(Clone)]
struct Inner;

struct Working(At);

impl Service<At> for Inner {
    type Response = At;
    type Error = BoxError;
    type Future = Working;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, at: At) -> Working {
        assert_ne!(at, At::Call, "panic requested");
        Working(at)
    }
}

impl Future for Working {
    type Output = Result<At, BoxError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<At, BoxError>> {
        assert_ne!(self.0, At::Future, "panic requested");
        if self.0 == At::Hang { Poll::Pending } else { Poll::Ready(Ok(self.0)) }
    }
}

/// The responder.
#[derive(Clone)]
struct Responder;

impl Respond<At, At, BoxError> for Responder {
    type Response = At;
    type Context = ();

    fn on_allowed(&self, at: &mut At, _: Option<&Decision>) {
        assert_ne!(*at, At::OnAllowed, "panic requested");
    }

    fn map_response((): (), at: At) -> At {
        assert_ne!(at, At::MapResponse, "panic requested");
        at
    }

    fn on_rejected(&self, _: At, rejection: Rejection) -> Result<At, BoxError> {
        Err(rejection.to_string().into())
    }
}

/// What the events of some requests say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    allowed: usize,
    settlements: usize,
    settled: u64,
    started: usize,
    ended: usize,
}

const HELD: u64 = 3;
const ACTUAL: u64 = 1;

fn settle(_: u64, result: Result<&At, &BoxError>) -> u64 {
    assert_ne!(result.ok(), Some(&At::Settle), "panic requested");
    ACTUAL
}

/// Sends one request for each place, and returns the events, and the usage that `counts` has.
async fn run(
    limiter: BoxLimiter<()>,
    counts: BoxLimiter<()>,
    places: &[At],
    max_wait: Option<Duration>,
) -> (Seen, u64) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let record = Arc::clone(&seen);
    let layer = RateLimitLayer::new(Global, limiter)
        .responder(Responder)
        .cost(|_: &At| HELD)
        .settle(settle)
        .release_on_response()
        .observe(move |event: &Event<'_>| {
            let mut seen = record.lock().expect("no panic");
            match event {
                Event::Decided { decision, .. } => seen.allowed += usize::from(decision.is_allowed()),
                Event::Settled { actual, .. } => {
                    seen.settlements += 1;
                    seen.settled += actual;
                }
                Event::InFlightStarted { .. } => seen.started += 1,
                Event::InFlightEnded { .. } => seen.ended += 1,
                _ => {}
            }
        });
    let layer = if let Some(max_wait) = max_wait { layer.max_wait(max_wait) } else { layer };
    let service = layer.layer(Inner);
    let mut tasks = Vec::new();
    for at in places {
        let request = tokio::time::timeout(Duration::from_millis(1_500), service.clone().oneshot(*at));
        tasks.push(tokio::spawn(async move { drop(request.await) }));
    }
    for task in tasks {
        drop(task.await);
    }
    drop(service);
    let usage = counts.peek(&(), AcquireOptions::default().detail(Detail::All)).await.expect("a decision");
    let streams = usage.limits().iter().find(|limit| limit.name() == "streams");
    assert!(streams.is_none_or(|streams| streams.remaining() == streams.limit()), "{places:?}: {streams:?}");
    let usage = usage.limits().iter().find(|limit| limit.name() == "cost").expect("listed");
    let seen = *seen.lock().expect("no panic");
    (seen, usage.limit() - usage.remaining())
}

/// A limiter with a limit on costs.
fn cost(quota: Quota) -> BoxLimiter<()> {
    let limit = Limit::new("cost", FixedWindow::new(quota));
    BoxLimiter::new(Memory::builder(limit).clock(TokioClock::new()).build().expect("a limiter"))
}

/// The same with a limit on requests in flight.
fn with_in_flight() -> BoxLimiter<()> {
    let cost = Limit::new("cost", FixedWindow::new(Quota::per_hour(1000)));
    let limits = (cost, Limit::new("streams", InFlight::new(900)));
    BoxLimiter::new(Memory::builder(limits).clock(TokioClock::new()).build().expect("a limiter"))
}

fn deferred(limiter: &BoxLimiter<()>, polls: usize) -> BoxLimiter<()> {
    BoxLimiter::new(Deferred(limiter.clone(), polls))
}

fn check((seen, usage): (Seen, u64), requests: usize, in_flight: bool, case: &str) {
    assert_eq!(seen.allowed, requests, "{case}: {seen:?}");
    assert_eq!(seen.settlements, requests, "{case}: one settlement for each hold, {seen:?}");
    assert_eq!(seen.settled, usage, "{case}: what the events say is what the limiter has charged, {seen:?}");
    assert_eq!((seen.started, seen.ended), (if in_flight { requests } else { 0 }, seen.started), "{case}");
}

#[tokio::test(start_paused = true)]
async fn each_hold_settles_once_despite_panics() {
    let pairs = EVERYWHERE.into_iter().flat_map(|first| EVERYWHERE.map(|second| vec![first, second]));
    for places in EVERYWHERE.map(|at| vec![at]).into_iter().chain(pairs) {
        let (case, requests) = (format!("{places:?}"), places.len());
        let counts = cost(Quota::per_hour(1000));
        check(run(counts.clone(), counts, &places, None).await, requests, false, &case);
        let counts = cost(Quota::per_hour(1000));
        check(run(deferred(&counts, 2), counts, &places, None).await, requests, false, &case);
        let counts = with_in_flight();
        check(run(counts.clone(), counts, &places, None).await, requests, true, &case);
        let counts = with_in_flight();
        check(run(deferred(&counts, 1), counts, &places, None).await, requests, true, &case);
    }
}

/// A request that has waited in a queue.
#[tokio::test(start_paused = true)]
async fn each_hold_settles_once_after_a_wait() {
    for at in EVERYWHERE {
        let limiter = cost(Quota::new(5, Duration::from_secs(1)));
        let full = limiter.check(&(), 5).await.expect("a decision");
        assert!(full.is_allowed());
        let result = run(limiter.clone(), limiter, &[at], Some(Duration::from_secs(5))).await;
        // A request that hangs leaves after the period in which its cost is settled.
        check(result, 1, false, &format!("{at:?}"));
    }
}
