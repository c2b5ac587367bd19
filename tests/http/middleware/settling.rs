//! Costs of requests: costs from the request, costs that are held and settled by the response, layers that charge only
//! failures or successes, and reservations.

use std::cell::Cell;
use std::future::{Future, ready};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::Full;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::cost::{OnlyFailures, OnlySuccesses, Settle};
use tower_ratelimit::key::Global;
use tower_ratelimit::limiter::{Held, LimiterFuture, Outcome, Reservation};
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::{BoxError, RejectWithError, Rejection};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Costs, Decision, Detail, DynLimit, Error, FixedWindow, Gcra, Limit, LimitStatus,
    Limiter, ManualClock, Quota, RateLimitLayer, TokenBucket, Verdict,
};

use crate::support::{self, PageService, boxed, page_layer, pages, spawn};

const MINUTE: Duration = Duration::from_secs(60);
const TEN: Quota = Quota::per_minute(10);

fn memory(algorithm: impl Algorithm, clock: &ManualClock) -> BoxLimiter<()> {
    support::memory(algorithm, clock.clone())
}

async fn remaining(limiter: &impl Limiter<()>) -> u64 {
    limiter.peek(&(), AcquireOptions::default()).await.unwrap().remaining().unwrap()
}

async fn acquire(limiter: &impl Limiter<()>, cost: u64) -> Outcome {
    limiter.acquire(&(), AcquireOptions::cost(cost)).await.unwrap()
}

/// A request with its estimated cost and its actual cost, which the service answers.
type Costly = (u64, u64);

/// Services of one type, so that the compiler generates the code of the layer once.
type CostlyService = BoxCloneSyncService<Costly, u64, BoxError>;

fn echo_actual() -> CostlyService {
    inner(|(_, actual)| ready(Ok(actual)))
}

fn inner<F>(answer: impl Fn(Costly) -> F + Clone + Send + Sync + 'static) -> CostlyService
where
    F: Future<Output = Result<u64, BoxError>> + Send + 'static,
{
    CostlyService::new(service_fn(answer))
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that a layer requires")]
fn estimate(request: &Costly) -> u64 {
    request.0
}

type SettleFn = fn(u64, Result<&u64, &BoxError>) -> u64;

/// Settles at the response of the service.
fn actual(_held: u64, answer: Result<&u64, &BoxError>) -> u64 {
    *answer.expect("the service always answers")
}

fn layer(limiter: impl Limiter<()>) -> RateLimitLayer<Global, BoxLimiter<()>, RejectWithError> {
    RateLimitLayer::new(Global, BoxLimiter::new(limiter)).responder(RejectWithError)
}

fn settling(limiter: impl Limiter<()>, settle: SettleFn, inner: CostlyService) -> CostlyService {
    CostlyService::new(layer(limiter).cost(estimate).settle(settle).layer(inner))
}

/// Makes the service ready, and calls it.
async fn call(service: &mut CostlyService, request: Costly) -> Result<u64, BoxError> {
    let response = service.ready().await?.call(request);
    // The time-out fails a test that hangs.
    tokio::time::timeout(Duration::from_secs(20), response).await.expect("an answer")
}

// ---------------------------------------------------------------------------------------------------------------------
// The cost of a request
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn cost_function_determines_the_charge() {
    let clock = ManualClock::new();
    let limiter = memory(FixedWindow::new(TEN), &clock);
    let seen = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&seen);
    let inner = inner(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        ready(Ok(0))
    });
    let mut service = CostlyService::new(layer(limiter.clone()).cost(estimate).layer(inner));

    // Cost, whether it is allowed, remaining tokens.
    let steps = [
        (0, true, 10),
        (1, true, 9),
        (4, true, 5),
        // Exceeds the limit; not charged.
        (11, false, 5),
        (u64::MAX, false, 5),
        // More than remains.
        (6, false, 5),
        (5, true, 0),
        (1, false, 0),
        // A cost of 0 is allowed at the limit.
        (0, true, 0),
    ];
    for (cost, passes, left) in steps {
        let answer = call(&mut service, (cost, 0)).await;
        assert_eq!((answer.is_ok(), remaining(&limiter).await), (passes, left), "at a cost of {cost}");
        if let Err(error) = answer {
            let rejected = error.downcast::<Rejection>().unwrap();
            let exceeds = rejected.decision().unwrap().exceeds_limit();
            assert_eq!((exceeds, rejected.retry_after().is_none()), (cost > 10, cost > 10));
        }
    }
    assert_eq!(seen.load(Ordering::Relaxed), 5);
}

// ---------------------------------------------------------------------------------------------------------------------
// Settling by the response
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn settle_receives_the_held_cost_and_the_response() {
    let clock = ManualClock::new();
    let limiter = memory(FixedWindow::new(TEN), &clock);
    let settled = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&settled);
    let settle = move |charged: u64, answer: Result<&u64, &BoxError>| {
        log.lock().unwrap().push((charged, answer.copied().map_err(ToString::to_string)));
        charged
    };
    let inner = inner(|(cost, _)| ready(if cost == 3 { Err(BoxError::from("three")) } else { Ok(cost * 100) }));
    // Exempt and rejected requests are not settled.
    let layer = layer(limiter.clone()).settle(settle).cost(estimate).exempt_if(|request: &Costly| request.0 == 7);
    let mut service = CostlyService::new(layer.layer(inner));
    for cost in [1, 3, 7, 0, 11] {
        let _ = call(&mut service, (cost, 0)).await;
    }
    let expected = [(1, Ok(100)), (3, Err("three".to_owned())), (0, Ok(0))];
    assert_eq!(*settled.lock().unwrap(), expected);
    assert_eq!(remaining(&limiter).await, 6);
}

#[tokio::test]
async fn header_fields_show_the_status_before_settling() {
    let clock = ManualClock::new();
    let limiter = memory(FixedWindow::new(TEN), &clock);
    let service = page_layer(limiter.clone()).settle(OnlyFailures).layer(pages());
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(response.headers()["ratelimit"], r#""default";r=9;t=60"#);
    assert_eq!(remaining(&limiter).await, 10);
}

// ---------------------------------------------------------------------------------------------------------------------
// Failures and successes
// ---------------------------------------------------------------------------------------------------------------------

fn answer(status: u16, grpc_status: Option<&str>) -> Response<()> {
    let mut response = Response::builder().status(status);
    if let Some(grpc_status) = grpc_status {
        response = response.header("grpc-status", grpc_status);
    }
    response.body(()).unwrap()
}

#[test]
fn only_failures_classifies_http_and_grpc_statuses() {
    let fails = |answer: Result<&Response<()>, &BoxError>| {
        let number = |costs: Costs| costs.number().expect("a number");
        let failures = number(OnlyFailures.settle(Costs::from(7), answer));
        let successes = number(OnlySuccesses.settle(Costs::from(7), answer));
        // Each request is charged by exactly one of the two, in full.
        assert_eq!(failures.max(successes), 7);
        assert_eq!(failures.min(successes), 0);
        failures == 7
    };
    for status in [100, 101, 200, 201, 204, 301, 304, 399] {
        assert!(!fails(Ok(&answer(status, None))), "{status}");
        assert!(!fails(Ok(&answer(status, Some("0")))), "{status}");
    }
    for status in [400, 401, 403, 404, 429, 451, 499, 500, 503, 599, 600, 999] {
        assert!(fails(Ok(&answer(status, None))), "{status}");
        assert!(fails(Ok(&answer(status, Some("0")))), "{status}");
    }
    for grpc_status in ["1", "7", "16", "00", "", "ok"] {
        assert!(fails(Ok(&answer(200, Some(grpc_status)))), "{grpc_status:?}");
    }
    assert!(fails(Err(&"gone".into())));
}

/// A request counts as one request however it ends, and as a failure only if it fails.
#[tokio::test]
async fn fixed_cost_is_charged_however_the_request_is_settled() {
    let inner = PageService::new(service_fn(|status: Request<()>| {
        let status: u16 = status.uri().path()[1..].parse().expect("a status");
        ready(Ok(Response::builder().status(status).body(Full::default()).expect("a response")))
    }));
    let limiter = several(vec![
        DynLimit::new(Limit::new("requests", FixedWindow::new(TEN)).fixed_cost(1)),
        DynLimit::new(Limit::new("failures", FixedWindow::new(Quota::per_minute(2)))),
    ]);
    let service = page_layer(limiter.clone()).settle(OnlyFailures).layer(inner);
    for (status, answered, left) in
        [(200, 200, [9, 2]), (401, 401, [8, 1]), (200, 200, [7, 1]), (401, 401, [6, 0]), (200, 429, [6, 0])]
    {
        let request = Request::get(format!("/{status}")).body(()).expect("a request");
        assert_eq!(service.clone().oneshot(request).await.expect("a response").status(), answered);
        assert_eq!(remaining_of_all(&limiter).await, left, "{status}");
    }
}

fn several(limits: Vec<DynLimit<u32>>) -> BoxLimiter<()> {
    support::several(limits, ManualClock::new())
}

/// Returns the remaining units of each limit.
async fn remaining_of_all(limiter: &BoxLimiter<()>) -> Vec<u64> {
    let decision = limiter.peek(&(), AcquireOptions::cost(0).detail(Detail::All)).await.expect("a decision");
    decision.limits().iter().map(LimitStatus::remaining).collect()
}

/// The closures return costs in units, and each limit settles its own. A response without a unit of its own releases it.
#[tokio::test]
async fn layer_holds_and_settles_costs_in_units() {
    const BROKEN: u64 = u64::MAX;

    let inner = inner(|(_, used)| ready(if used == BROKEN { Err(BoxError::from("broken")) } else { Ok(used) }));
    let limiter = several(vec![
        DynLimit::new(Limit::new("requests", FixedWindow::new(TEN)).fixed_cost(1)),
        DynLimit::new(Limit::new("input", FixedWindow::new(Quota::per_minute(1_000))).cost_of("input")),
        DynLimit::new(Limit::new("output", FixedWindow::new(Quota::per_minute(500))).cost_of("output")),
    ]);
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&warnings);
    let layer = layer(limiter.clone())
        .cost(|_: &Costly| Costs::new().add("input", 100).add("output", 300))
        .settle(|held: u64, response: Result<&u64, &BoxError>| match response {
            Ok(&used) if used > 900 => Costs::new().add("ouptut", used),
            Ok(&used) => Costs::new().add("input", 90).add("output", used),
            Err(_) => held.into(),
        })
        .observe(move |event: &Event<'_>| match *event {
            Event::Settled { unit: Some("output"), held, actual, .. } => {
                seen.lock().unwrap().push(format!("{held} -> {actual}"));
            }
            Event::Warning { message, .. } => seen.lock().unwrap().push(message.to_owned()),
            _ => {}
        });
    let mut service = CostlyService::new(layer.layer(inner));
    // Below and above the held cost, a failure that charges no unit, and a mistyped unit.
    for (used, is_ok, left) in [
        (20, true, [9, 910, 480]),
        (BROKEN, false, [8, 910, 480]),
        (350, true, [7, 820, 130]),
        (1, false, [7, 820, 130]),
    ] {
        assert_eq!(call(&mut service, (0, used)).await.is_ok(), is_ok, "{used}");
        assert_eq!(remaining_of_all(&limiter).await, left, "{used}");
    }
    limiter.reset(&()).await.unwrap();
    assert!(call(&mut service, (0, 901)).await.is_ok());
    assert_eq!(remaining_of_all(&limiter).await, [9, 900, 200], "the whole held cost");
    let seen = warnings.lock().unwrap();
    let settled: Vec<&str> = seen.iter().map(String::as_str).filter(|text| !text.contains("ouptut")).collect();
    assert_eq!(settled, ["300 -> 20", "300 -> 0", "300 -> 350", "300 -> 300"]);
    assert_eq!(seen.len(), 5, "one warning names the unknown unit: {seen:?}");
}

// ---------------------------------------------------------------------------------------------------------------------
// Missing responses, and limiters that settle later
// ---------------------------------------------------------------------------------------------------------------------

/// A limiter that decides immediately, and settles or fails when the test notifies it.
#[derive(Clone, Default)]
struct RemoteLimiter {
    stored: Arc<Notify>,
    fails: bool,
    immediate: bool,
    settled: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl<Key: ?Sized> Limiter<Key> for RemoteLimiter {
    fn acquire(&self, _key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let decision = Decision::without_limit(ManualClock::START, Verdict::Allowed);
        let (this, cost) = (self.clone(), options.cost);
        let held = options.hold.then(|| Held::new(cost, move |actual| this.settle(cost, actual)));
        LimiterFuture::ready(Ok(Outcome::new(decision, held)))
    }
}

impl RemoteLimiter {
    fn settle(self, held: u64, actual: u64) -> LimiterFuture<()> {
        let (immediate, stored) = (self.immediate, Arc::clone(&self.stored));
        let note = move || {
            self.settled.lock().unwrap().push((held, actual));
            if self.fails { Err(Error::unavailable("connection lost")) } else { Ok(()) }
        };
        if immediate {
            return LimiterFuture::ready(note());
        }
        LimiterFuture::pending(async move {
            stored.notified().await;
            note()
        })
    }
}

#[tokio::test]
async fn response_waits_for_the_settlement() {
    for fails in [false, true] {
        let limiter = RemoteLimiter { fails, ..RemoteLimiter::default() };
        let mut service = settling(limiter.clone(), actual, echo_actual());

        let response = spawn(service.call((4, 1)));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!response.is_finished());
        limiter.stored.notify_one();
        // The response is returned even if the settlement fails.
        assert_eq!(response.await.unwrap().unwrap(), 1);
        assert_eq!(*limiter.settled.lock().unwrap(), [(4, 1)]);

        // A correct estimate is settled, too.
        limiter.stored.notify_one();
        assert_eq!(call(&mut service, (4, 4)).await.unwrap(), 4);
        assert_eq!(*limiter.settled.lock().unwrap(), [(4, 1), (4, 4)]);
    }
}

#[tokio::test]
async fn failed_settlement_loses_no_response() {
    let broken = RemoteLimiter { fails: true, immediate: true, ..RemoteLimiter::default() };
    let mut service = settling(broken.clone(), actual, echo_actual());
    assert_eq!(call(&mut service, (4, 1)).await.unwrap(), 1);
    assert_eq!(*broken.settled.lock().unwrap(), [(4, 1)]);
}

/// A limiter that does not support holds.
#[derive(Clone)]
struct WithoutHolds {
    returns_error: bool,
}

impl<Key: ?Sized> Limiter<Key> for WithoutHolds {
    fn acquire(&self, _key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        if options.hold && self.returns_error {
            return LimiterFuture::ready(Err(Error::unsupported("this limiter can't hold costs")));
        }
        LimiterFuture::ready(Ok(Decision::without_limit(ManualClock::START, Verdict::Allowed).into()))
    }
}

#[tokio::test]
async fn layer_that_settles_rejects_when_the_limiter_cannot_hold() {
    let limiter = WithoutHolds { returns_error: true };
    let rejected = call(&mut settling(limiter.clone(), actual, echo_actual()), (4, 1)).await.unwrap_err();
    let Rejection::Unavailable(error) = rejected.downcast_ref::<Rejection>().unwrap() else { panic!() };
    assert!(error.is_unsupported());
    // A layer that does not settle does not hold.
    let charging = layer(limiter).cost(estimate).layer(echo_actual());
    assert_eq!(call(&mut CostlyService::new(charging), (4, 1)).await.unwrap(), 1);

    // A decision without a guard, such as a policy, needs no settlement.
    let mut service = settling(WithoutHolds { returns_error: false }, actual, echo_actual());
    assert_eq!(call(&mut service, (4, 1)).await.unwrap(), 1);
}

#[tokio::test]
async fn service_error_waits_for_the_settlement() {
    let limiter = RemoteLimiter::default();
    let inner = inner(|_| ready(Err(BoxError::from("the service's own"))));
    let mut service = settling(limiter.clone(), |_, answer| u64::from(answer.is_ok()), inner);
    let response = spawn(service.call((1, 0)));
    tokio::task::yield_now().await;
    limiter.stored.notify_one();
    assert_eq!(response.await.unwrap().unwrap_err().to_string(), "the service's own");
    assert_eq!(*limiter.settled.lock().unwrap(), [(1, 0)]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Reservations
// ---------------------------------------------------------------------------------------------------------------------

async fn reserve(limiter: &BoxLimiter<()>, amount: u64) -> Reservation {
    Reservation::reserve(limiter, &(), AcquireOptions::cost(amount)).await.unwrap().0.expect("the hold is allowed")
}

#[tokio::test]
async fn reservation_charges_the_spent_amount_or_the_given_one() {
    for (reserved, spent, left) in [
        (4, &[][..], 10),
        (4, &[1, 2], 7),
        (4, &[4], 6),
        (4, &[4, 4, 1], 1),
        (4, &[0, 0], 10),
        (4, &[u64::MAX; 2], 0),
        (0, &[3], 7),
    ] {
        let clock = ManualClock::new();
        for limiter in [memory(Gcra::new(TEN), &clock), memory(FixedWindow::new(TEN), &clock)] {
            let mut reservation = reserve(&limiter, reserved).await;
            assert_eq!((reservation.reserved(), reservation.spent()), (reserved, 0));
            for &amount in spent {
                reservation.spend(amount);
            }
            assert_eq!(reservation.spent(), spent.iter().fold(0, |sum: u64, amount| sum.saturating_add(*amount)));
            // Spending settles nothing before the drop.
            assert_eq!(remaining(&limiter).await, 10 - reserved);
            drop(reservation);
            assert_eq!(remaining(&limiter).await, left);
            // `settle` ignores the spent amount, and the drop settles nothing more.
            limiter.reset(&()).await.unwrap();
            let mut reservation = reserve(&limiter, reserved).await;
            reservation.spend(3);
            reservation.settle(10 - left).await.unwrap();
            assert_eq!(remaining(&limiter).await, left);
        }
    }
}

#[tokio::test]
async fn denied_reservation_is_none_and_charges_nothing() {
    let clock = ManualClock::new();
    let limiter = memory(FixedWindow::new(TEN), &clock);
    let _ = acquire(&limiter, 3).await;
    let _held = reserve(&limiter, 4).await;
    for (amount, retry_after) in [(4, Some(MINUTE)), (11, None)] {
        let (reservation, decision) = Reservation::reserve(&limiter, &(), AcquireOptions::cost(amount)).await.unwrap();
        assert!(reservation.is_none());
        assert_eq!(decision.retry_after(), retry_after);
        assert_eq!(remaining(&limiter).await, 3);
    }
}

#[tokio::test]
async fn dropped_reservation_is_settled_in_the_background_when_settling_is_pending() {
    let limiter = RemoteLimiter::default();
    let (reservation, decision) = Reservation::reserve(&limiter, "stream", AcquireOptions::cost(9)).await.unwrap();
    assert!(decision.is_allowed());
    let mut reservation = reservation.unwrap();
    reservation.spend(2);
    drop(reservation);
    assert!(limiter.settled.lock().unwrap().is_empty());
    limiter.stored.notify_one();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*limiter.settled.lock().unwrap(), [(9, 2)]);

    let (reservation, _) = Reservation::reserve(&limiter, "stream", AcquireOptions::cost(9)).await.unwrap();
    limiter.stored.notify_one();
    reservation.unwrap().settle(9).await.unwrap();
    assert_eq!(*limiter.settled.lock().unwrap(), [(9, 2), (9, 9)]);
}

#[tokio::test]
async fn reservation_returns_the_error_of_a_failed_limiter() {
    struct Gone;

    impl Limiter<()> for Gone {
        fn acquire(&self, (): &(), _ask: AcquireOptions) -> LimiterFuture<Outcome> {
            LimiterFuture::pending(ready(Err(Error::unavailable("connection lost"))))
        }
    }

    assert!(Reservation::reserve(&Gone, &(), AcquireOptions::cost(9)).await.unwrap_err().is_unavailable());
}

/// A reservation whose limiter allowed the request without holding anything settles nothing.
#[tokio::test]
async fn reservation_without_a_hold_settles_nothing() {
    let (reservation, decision) =
        Reservation::reserve(&WithoutHolds { returns_error: false }, &(), AcquireOptions::cost(9)).await.unwrap();
    let reservation = reservation.unwrap();
    assert_eq!((decision.is_allowed(), reservation.reserved()), (true, 0));
    reservation.settle(4).await.unwrap();
}

/// `settle` consumes the guard, so a guard is settled once. This test compiles because neither type is `Clone`:
/// otherwise the item below would be ambiguous.
#[test]
fn held_and_reservation_cannot_be_cloned() {
    struct IfClone;

    trait AmbiguousIfClone<A> {
        fn item() {}
    }

    impl<T> AmbiguousIfClone<()> for T {}
    impl<T: Clone> AmbiguousIfClone<IfClone> for T {}

    <Held as AmbiguousIfClone<_>>::item();
    <Reservation as AmbiguousIfClone<_>>::item();
    <Cell<u8> as AmbiguousIfClone<()>>::item();
}

/// The recipe "requests and tokens" of docs/recipes.md: a client chooses the number of tokens, the layer clamps it, and the
/// model stops there. Whatever the clients say, responses use at most the limit.
#[tokio::test]
async fn understated_tokens_do_not_exceed_the_limit() {
    fn max_tokens(request: &Request<Body>) -> u64 {
        let demanded = request.headers().get("x-max-tokens").and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        demanded.unwrap_or(1_000).clamp(100, 4_000)
    }

    fn used(held: u64, response: Result<&Response<Body>, &BoxError>) -> u64 {
        response.ok().and_then(|response| response.extensions().get::<u64>()).map_or(held, |used| *used)
    }

    const LIMIT: u64 = 10_000;
    for (said, wanted) in [
        ("1", 4_000),
        ("0", 1),
        ("-1", 4_000),
        ("100", 50),
        ("4000", 4_000),
        ("18446744073709551615", 9_999),
        ("", 700),
    ] {
        let limiter = several(vec![
            DynLimit::new(Limit::new("requests", Gcra::new(Quota::per_minute(60))).fixed_cost(1)),
            DynLimit::new(Limit::new("tokens", TokenBucket::new(Quota::per_minute(LIMIT)))),
        ]);
        // All responses begin before one ends.
        let (begun, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(0)));
        let model = {
            let (begun, gate) = (Arc::clone(&begun), Arc::clone(&gate));
            service_fn(move |request: Request<Body>| {
                let (used, gate) = (max_tokens(&request).min(wanted), Arc::clone(&gate));
                begun.fetch_add(used, Ordering::Relaxed);
                async move {
                    let _open = gate.acquire().await.expect("open");
                    let mut response = Response::new(Body::empty());
                    response.extensions_mut().insert(used);
                    Ok::<_, BoxError>(response)
                }
            })
        };
        let service = page_layer(limiter.clone()).cost(max_tokens).settle(used).layer(model);
        let mut responses = JoinSet::new();
        for _ in 0..120 {
            let request = Request::get("/").header("x-max-tokens", said).body(Body::empty()).expect("a request");
            responses.spawn(boxed(service.clone().oneshot(request)));
        }
        tokio::task::yield_now().await;
        gate.add_permits(1_000);
        while responses.join_next().await.is_some() {}
        let begun = begun.load(Ordering::Relaxed);
        assert!(begun > 0 && begun <= LIMIT, "{said:?}: {begun} tokens");
        let left = remaining_of_all(&limiter).await;
        assert_eq!(LIMIT - left[1], begun, "{said:?}: what was used is charged");
    }
}
