//! The contract of `tower::Service` while requests wait for their start: a waiting request holds no readiness of the
//! inner service, and a request that stops waiting leaks nothing. (The times of starts are tested elsewhere.)
//!
//! Timers and limiters run on tokio's paused clock, which each test advances.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt as _};
use tower_ratelimit::response::{BoxError, Rejection};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, DynLimit, FixedWindow, Gcra, LeakyQueue, Limit, Limiter, ManualClock, Memory, Quota,
    TokenBucket, TokioClock, Verdict,
};
use tower_test::mock;

use crate::support::{
    Act, ByNumber, Counter, Failure, Limited, Pool, Rejecting, RemoteLimiter, StubLimiter, TestRequest, decision,
    limit, limited, memory, rejecting, several,
};

const SECOND: Duration = Duration::from_secs(1);

fn after(delay: Duration) -> StubLimiter {
    StubLimiter(Ok(decision(Verdict::AllowedAfter(delay))))
}

/// Creates a limiter of one a second for each key, without bursts.
fn one_a_second() -> BoxLimiter<&'static str> {
    memory(Gcra::new(Quota::per_second(1)).burst(1), TokioClock::new())
}

/// Creates a layer whose requests wait for up to ten seconds.
fn waiting(limiter: &(impl Limiter<&'static str> + Clone)) -> Rejecting {
    rejecting(limiter.clone()).max_wait(10 * SECOND)
}

/// Returns the delay of one more request.
fn next_delay(limiter: &BoxLimiter<&'static str>) -> Duration {
    let peeked = limiter.peek(&"a", AcquireOptions::default().max_delay(100 * SECOND)).try_ready().expect("memory");
    peeked.expect("a decision").delay()
}

/// Makes the service ready, and calls it.
fn send(
    service: &mut Limited<Counter>,
    request: TestRequest,
) -> task::Spawn<impl Future<Output = Result<usize, BoxError>> + use<>> {
    assert_ready_ok!(service.poll_ready());
    task::spawn(service.call(request))
}

#[tokio::test(start_paused = true)]
async fn delayed_request_releases_readiness_and_makes_another_instance_ready_at_its_start() {
    let pool = Pool::new(1);
    let mut service = limited(pool.service(), after(SECOND));
    let mut neighbour = service.clone();
    assert_ready_ok!(service.poll_ready());
    let ready = service.get_ref().get_ref().instance;
    assert_pending!(neighbour.poll_ready());

    let mut response = task::spawn(service.call(TestRequest::new("a")));
    assert_eq!(pool.free(), 1, "released in `call`");
    assert!(neighbour.is_woken(), "a waiting request does not delay others");
    assert_pending!(response.poll());

    advance(Duration::from_millis(999)).await;
    assert_pending!(response.poll());
    assert_eq!(pool.calls(), [], "not before its start");
    advance(Duration::from_millis(1)).await;
    assert!(response.is_woken());
    let by = assert_ready_ok!(response.poll());
    assert_ne!(by, ready);
    assert_eq!(pool.calls(), [(by, TestRequest::new("a"))]);
}

#[tokio::test(start_paused = true)]
async fn pending_decision_with_a_delay_releases_readiness() {
    let (pool, limiter) = (Pool::new(1), RemoteLimiter::default());
    let mut service = limited(pool.service(), limiter.clone());
    let mut response = send(&mut service, TestRequest::new("a"));
    assert_pending!(response.poll());
    assert_eq!(pool.free(), 0, "kept while the decision is pending");

    limiter.next_acquire().complete(after(SECOND));
    assert_pending!(response.poll());
    assert_eq!(pool.free(), 1, "released while the request waits");
    advance(SECOND).await;
    assert_ready_ok!(response.poll());
}

/// The start is due, and the inner service is busy.
#[tokio::test(start_paused = true)]
async fn delayed_request_waits_for_readiness_at_its_start() {
    let pool = Pool::new(1);
    let mut service = limited(pool.service(), after(SECOND));
    let mut response = send(&mut service, TestRequest::new("a"));
    let busy = send(&mut service, TestRequest::new("exempt").with_act(Act::Hang));
    assert_pending!(response.poll());
    advance(SECOND).await;
    assert_pending!(response.poll());
    drop(busy);
    assert!(response.is_woken());
    assert_ready_ok!(response.poll());
}

/// The start of a request whose service fails goes to the next waiting request.
#[tokio::test(start_paused = true)]
async fn waiting_request_returns_the_readiness_error_and_its_start_goes_to_the_next() {
    let limiter = one_a_second();
    let (inner, mut handle) = mock::pair::<TestRequest, usize>();
    let layer = waiting(&limiter);
    let mut service = mock::Spawn::new(layer.layer(inner));
    assert_ready_ok!(service.poll_ready());
    let _first = service.call(TestRequest::new("a"));
    assert_ready_ok!(service.poll_ready());
    let mut second = task::spawn(service.call(TestRequest::new("a")));
    assert_pending!(second.poll());
    let pool = Pool::new(1);
    let mut other = mock::Spawn::new(layer.layer(pool.service()));
    let mut third = send(&mut other, TestRequest::new("a"));
    assert_pending!(third.poll());

    sleep(SECOND + Duration::from_millis(1)).await;
    assert_pending!(third.poll());
    handle.send_error(Failure);
    assert_eq!(assert_ready_err!(second.poll()).downcast_ref(), Some(&Failure));
    assert!(third.is_woken());
    assert_ready_ok!(third.poll());
}

#[tokio::test(start_paused = true)]
async fn hold_of_a_waiting_request_whose_service_fails_is_released() {
    let window = FixedWindow::new(Quota::per_hour(1));
    let store = Memory::<u32, _>::builder(window).clock(TokioClock::new()).build().expect("a limiter");
    let limiter = ByNumber(BoxLimiter::new(store.clone()));
    let (inner, mut handle) = mock::pair::<TestRequest, usize>();
    let whole = |held: u64, _: Result<&usize, &BoxError>| held;
    let mut service = mock::Spawn::new(waiting(&limiter).settle(whole).layer(inner));
    let outside = limiter.hold(&"a", AcquireOptions::default()).await.expect("memory").held.expect("one is free");
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call(TestRequest::new("a")));
    assert_pending!(response.poll());
    outside.release().await.expect("done");
    sleep(SECOND).await;
    handle.send_error(Failure);
    assert_eq!(assert_ready_err!(response.poll()).downcast_ref(), Some(&Failure));
    sleep(SECOND).await;
    assert_eq!(store.usage()[0].held, 0);
    assert!(limiter.check(&"a", 1).await.expect("a decision").is_allowed(), "nothing was charged");
}

/// The request is dropped at each stage.
#[tokio::test(start_paused = true)]
async fn waiting_request_that_is_dropped_leaks_nothing_and_delays_the_next_by_one_interval_at_most() {
    for stage in ["not polled", "waiting", "due", "awaiting readiness"] {
        let (limiter, pool) = (one_a_second(), Pool::new(1));
        let mut service = mock::Spawn::new(waiting(&limiter).layer(pool.service()));
        drop(send(&mut service, TestRequest::new("a")));
        let mut response = send(&mut service, TestRequest::new("a"));
        let mut busy = None;
        match stage {
            "not polled" => {}
            "waiting" => assert_pending!(response.poll()),
            "due" => {
                assert_pending!(response.poll());
                sleep(SECOND + Duration::from_millis(1)).await;
            }
            _ => {
                busy = Some(send(&mut service, TestRequest::new("exempt").with_act(Act::Hang)));
                sleep(SECOND + Duration::from_millis(1)).await;
                assert_pending!(response.poll());
            }
        }
        drop(response);
        drop(busy);
        assert_eq!(pool.free(), 1, "{stage}");
        let mut next = send(&mut service, TestRequest::new("a"));
        if !next.is_woken() {
            let _ = next.poll();
        }
        sleep(SECOND + Duration::from_millis(1)).await;
        let _ = next.poll();
        let forwarded = pool.calls().iter().filter(|(_, request)| *request == TestRequest::new("a")).count();
        assert_eq!(forwarded, 2, "{stage}: the first request and the last");
    }
}

#[tokio::test(start_paused = true)]
async fn forwarded_request_stays_charged_after_waiting() {
    for act in [Act::Answer, Act::Fail, Act::Hang] {
        let (limiter, pool) = (one_a_second(), Pool::new(1));
        let mut service = mock::Spawn::new(waiting(&limiter).layer(pool.service()));
        drop(send(&mut service, TestRequest::new("a")));
        let mut response = send(&mut service, TestRequest::new("a").with_act(act));
        assert_pending!(response.poll());
        sleep(SECOND + Duration::from_millis(1)).await;
        let _ = response.poll();
        drop(response);
        assert_eq!(next_delay(&limiter), Duration::from_millis(999), "{act:?}");
        assert_eq!(pool.free(), 1);
    }
}

/// Without a timer the server is misconfigured. The request is not charged.
#[test]
fn delayed_request_without_a_timer_is_rejected() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for is_in_runtime in [false, true] {
        let _entered = is_in_runtime.then(|| runtime.enter());
        let (gcra, queue) = (Gcra::new(Quota::per_second(1)).burst(1), LeakyQueue::new(Quota::per_second(1)));
        for limiter in [memory(gcra, ManualClock::new()), memory(queue.max_waiting(5), ManualClock::new())] {
            let pool = Pool::new(1);
            let mut service = mock::Spawn::new(waiting(&limiter).layer(pool.service()));
            assert_ready_ok!(send(&mut service, TestRequest::new("a")).poll());
            let error = assert_ready_err!(send(&mut service, TestRequest::new("a")).poll());
            let rejected = error.downcast_ref::<Rejection>().expect("the limiter's error");
            assert!(rejected.is_misconfigured());
            let Rejection::Unavailable(cause) = rejected else { panic!("{rejected:?}") };
            assert!(cause.to_string().contains("no tokio runtime with a timer"), "{cause}");
            assert_eq!(rejected.to_string(), "server misconfigured");
            assert_eq!((next_delay(&limiter), pool.free()), (SECOND, 1));
        }
    }
}

/// Returns the starts of requests that arrive together, in milliseconds.
async fn starts<S>(service: S, requests: usize) -> Vec<u128>
where
    S: Service<TestRequest, Response = usize, Error = BoxError> + Clone,
{
    let started = Instant::now();
    let starts = join_all((0..requests).map(|_| {
        let response = service.clone().oneshot(TestRequest::new("a"));
        async move { response.await.map(|_| started.elapsed().as_millis()) }
    }));
    let mut starts: Vec<_> = starts.await.into_iter().map(|start| start.expect("within the maximum wait")).collect();
    starts.sort_unstable();
    starts
}

/// Ten requests a second, and a limit of tokens, of which each request costs fifty.
fn requests_and_tokens(tokens: TokenBucket) -> BoxLimiter<&'static str> {
    let requests = Limit::new("requests", Gcra::new(Quota::per_second(10)).burst(1)).fixed_cost(1);
    several([DynLimit::new(requests), limit("tokens", tokens)], TokioClock::new())
}

fn fifty(_: &TestRequest) -> u64 {
    50
}

/// The estimated wait of a request counts its cost on the limit that it waits for: one request, not 50 tokens.
#[tokio::test(start_paused = true)]
async fn requests_wait_for_a_limit_with_a_fixed_cost_by_that_cost() {
    let limiter = requests_and_tokens(TokenBucket::new(Quota::per_second(1000)));
    let layer = rejecting(limiter).cost(fifty).max_wait(SECOND);
    let pool = Pool::new(100);
    let expected = [0, 100, 200, 300, 400, 500, 600, 700];
    assert_eq!(starts(layer.layer(pool.service()), 8).await, expected);
    sleep(10 * SECOND).await;
    let settling = layer.settle(|_: u64, _: Result<&usize, &BoxError>| 0);
    assert_eq!(starts(settling.layer(pool.service()), 8).await, expected, "the tokens are held");
}

/// The second limit denies requests that the first one lets through: they move to its queue, with their cost there.
#[tokio::test(start_paused = true)]
async fn requests_move_between_limits_of_different_costs() {
    let limiter = requests_and_tokens(TokenBucket::new(Quota::per_second(50)).burst(100));
    let layer = rejecting(limiter).cost(fifty).max_wait(5 * SECOND);
    // The burst of tokens lasts for two requests; then each waits for fifty tokens.
    assert_eq!(starts(layer.layer(Pool::new(100).service()), 5).await, [0, 100, 1000, 2000, 3000]);
}
