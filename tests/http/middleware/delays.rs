//! Waiting in virtual time: requests start in order of arrival, as early as the limit allows. A request that would wait
//! for too long is denied immediately. A cancelled waiter frees its place, and a waiter holds no permit of the inner
//! service.
//!
//! All times are whole milliseconds, the resolution of tokio's timer, so that starts are exact.

use std::collections::HashMap;
use std::future::{Future, ready};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::key::Global;
use tower_ratelimit::limiter::{Held, LimiterFuture, Outcome};
use tower_ratelimit::response::{BoxError, RejectWithError, Rejected};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, Limiter, Memory, Quota,
    RateLimitLayer, SlidingLog, SlidingWindow, TokenBucket, TokioClock, Verdict,
};

use crate::support::{ms, spawn};

const SECOND: Duration = Duration::from_secs(1);

/// One request each 100 ms.
const TEN_A_SECOND: Quota = Quota::per_second(10);

fn memory(algorithm: impl Algorithm) -> BoxLimiter<()> {
    BoxLimiter::new(Memory::builder(algorithm).max_keys(100).clock(TokioClock::new()).build().unwrap())
}

fn layer<A>(limiter: A) -> RateLimitLayer<Global, A, RejectWithError> {
    RateLimitLayer::new(Global, limiter).responder(RejectWithError)
}

/// Creates a service that answers with the virtual time of the call.
fn clock_service() -> impl Service<u32, Response = Duration, Error = BoxError, Future: Send> + Clone + Send + 'static {
    let started = Instant::now();
    service_fn(move |_: u32| ready(Ok(started.elapsed())))
}

/// The outcome of a call: the time of service, or the time of the denial and its `retry_after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CallOutcome {
    Served(Duration),
    Denied { at: Duration, retry_after: Option<Duration> },
}

use CallOutcome::{Denied, Served};

fn denied(at: Duration, retry_after: Duration) -> CallOutcome {
    Denied { at, retry_after: Some(retry_after) }
}

/// Calls the service now, and awaits the response in a task.
fn call<S>(service: &S, caller: u32, started: Instant) -> JoinHandle<CallOutcome>
where
    S: Service<u32, Response = Duration, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    let response = service.clone().call(caller);
    spawn(async move {
        match response.await {
            Ok(at) => Served(at),
            Err(error) => {
                let rejected = error.downcast::<Rejected>().expect("the limiter's error");
                Denied { at: started.elapsed(), retry_after: rejected.rejection().retry_after() }
            }
        }
    })
}

/// Makes calls one after another at one time. The service is always ready.
async fn call_all<S>(service: &S, callers: u32) -> Vec<CallOutcome>
where
    S: Service<u32, Response = Duration, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    let started = Instant::now();
    let answers: Vec<_> = (0..callers).map(|caller| call(service, caller, started)).collect();
    let mut outcomes = Vec::new();
    for answer in answers {
        outcomes.push(answer.await.unwrap());
    }
    outcomes
}

fn served_each(spacing: Duration, callers: u32) -> Vec<CallOutcome> {
    (0..callers).map(|caller| Served(spacing * caller)).collect()
}

// ---------------------------------------------------------------------------------------------------------------------
// The leaky queue
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn leaky_queue_starts_requests_at_constant_spacing() {
    let service = layer(memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(19))).layer(clock_service());
    assert_eq!(call_all(&service, 20).await, served_each(ms(100), 20));
}

#[tokio::test(start_paused = true)]
async fn leaky_queue_keeps_the_spacing_for_irregular_arrivals() {
    let service = layer(memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(50))).layer(clock_service());
    let started = Instant::now();
    let mut answers = Vec::new();
    // Bursts, single calls, and a pause in which the queue becomes empty.
    for (caller, pause) in [0, 0, 0, 30, 0, 250, 1, 1, 0, 2000, 0, 99, 2, 0].into_iter().enumerate() {
        sleep(ms(pause)).await;
        let arrived = started.elapsed();
        answers.push((arrived, call(&service, u32::try_from(caller).unwrap(), started)));
    }
    let mut free_at = Duration::ZERO;
    for (arrived, answer) in answers {
        let start = arrived.max(free_at);
        assert_eq!(answer.await.unwrap(), Served(start));
        free_at = start + ms(100);
    }
}

#[tokio::test(start_paused = true)]
async fn leaky_queue_denies_immediately_when_it_is_full() {
    let service = layer(memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(4))).layer(clock_service());
    let mut expected = served_each(ms(100), 5);
    // The queue has space for the sixth when the second starts.
    expected.extend([denied(Duration::ZERO, ms(100)); 3]);
    assert_eq!(call_all(&service, 8).await, expected);

    // All have started. The next start is 100 ms after the last.
    sleep(ms(100)).await;
    let outcomes = call_all(&service, 8).await;
    assert_eq!(outcomes.iter().filter(|outcome| matches!(outcome, Served(_))).count(), 5);
}

#[tokio::test(start_paused = true)]
async fn leaky_queue_without_waiting_denies_immediately() {
    let service = layer(memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(0))).layer(clock_service());
    let expected = [Served(Duration::ZERO), denied(Duration::ZERO, ms(100))];
    assert_eq!(call_all(&service, 2).await, expected);
}

#[tokio::test(start_paused = true)]
async fn max_wait_bounds_the_wait_and_does_not_lengthen_a_queue() {
    let queue = || memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(3));

    let none = layer(queue()).max_wait(Duration::ZERO).layer(clock_service());
    assert_eq!(call_all(&none, 2).await, [Served(Duration::ZERO), denied(Duration::ZERO, ms(100))]);

    let started = Instant::now();
    let some = layer(queue()).max_wait(ms(150)).layer(clock_service());
    let outcomes = [Served(Duration::ZERO), Served(ms(100)), denied(Duration::ZERO, ms(50))];
    assert_eq!(call_all(&some, 3).await, outcomes);
    assert_eq!(started.elapsed(), ms(100));

    let long = layer(queue()).max_wait(Duration::from_secs(3600)).layer(clock_service());
    let mut outcomes = served_each(ms(100), 4);
    outcomes.push(denied(Duration::ZERO, ms(100)));
    assert_eq!(call_all(&long, 5).await, outcomes);
}

// ---------------------------------------------------------------------------------------------------------------------
// `max_wait`
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn only_a_leaky_queue_waits_without_max_wait() {
    let limiters = [
        memory(Gcra::new(Quota::per_second(1))),
        memory(TokenBucket::new(Quota::per_second(1))),
        memory(LeakyBucket::new(Quota::per_second(1))),
        memory(FixedWindow::new(Quota::per_second(1))),
        memory(SlidingWindow::new(Quota::per_second(1))),
        memory(SlidingLog::new(Quota::per_second(1))),
    ];
    for limiter in limiters {
        let service = layer(limiter).layer(clock_service());
        let outcomes = call_all(&service, 2).await;
        assert_eq!(outcomes[0], Served(Duration::ZERO));
        assert!(matches!(outcomes[1], Denied { at: Duration::ZERO, retry_after: Some(_) }), "{outcomes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn buckets_schedule_starts_first_come_first_served() {
    let limiters = [
        memory(Gcra::new(TEN_A_SECOND).burst(2)),
        memory(TokenBucket::new(TEN_A_SECOND).burst(2)),
        memory(LeakyBucket::new(TEN_A_SECOND).burst(2)),
    ];
    for limiter in limiters {
        let service = layer(limiter).max_wait(SECOND).layer(clock_service());
        // Two immediately, then one each 100 ms.
        let mut expected: Vec<_> = (0..12).map(|caller: u32| Served(ms(100) * caller.saturating_sub(1))).collect();
        // The thirteenth would wait for 1.1 s, and so would the others: a denial is not charged.
        expected.extend([denied(Duration::ZERO, ms(100)); 3]);
        assert_eq!(call_all(&service, 15).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn token_bucket_delay_is_proportional_to_the_cost() {
    let limiter = memory(TokenBucket::new(TEN_A_SECOND).burst(5));
    let service = layer(limiter).max_wait(SECOND).cost(|tokens: &u32| u64::from(*tokens)).layer(clock_service());
    let started = Instant::now();
    let answers: Vec<_> = [5, 3, 0, 1, 6, 5, 2].into_iter().map(|cost| call(&service, cost, started)).collect();
    let mut outcomes = Vec::new();
    for answer in answers {
        outcomes.push(answer.await.unwrap());
    }
    let immediate = Duration::ZERO;
    let expected = [
        Served(immediate),
        Served(ms(300)),
        // A cost of zero does not wait.
        Served(immediate),
        Served(ms(400)),
        // Six exceed the burst.
        Denied { at: immediate, retry_after: None },
        Served(ms(900)),
        denied(immediate, ms(100)),
    ];
    assert_eq!(outcomes, expected);
}

/// Windows and logs do not schedule starts: a waiting request acquires again after `retry_after`.
#[tokio::test(start_paused = true)]
async fn waiters_for_a_window_or_a_log_acquire_again_until_max_wait() {
    let three_a_second = Quota::per_second(3);
    for limiter in [memory(FixedWindow::new(three_a_second)), memory(SlidingLog::new(three_a_second))] {
        let service = layer(limiter).max_wait(3 * SECOND).layer(clock_service());
        let mut outcomes = call_all(&service, 20).await;
        outcomes.sort();
        let mut expected: Vec<_> = (0..12).map(|index: u32| Served(SECOND * (index / 3))).collect();
        // The other eight would start after 4 s or later.
        expected.extend([denied(Duration::ZERO, SECOND); 8]);
        assert_eq!(outcomes, expected);
    }
}

/// Blocks are aligned to the clock, which starts at any time: starts are not whole milliseconds, so the test checks
/// bounds.
#[tokio::test(start_paused = true)]
async fn waiters_for_a_sliding_window_acquire_again_until_max_wait() {
    for window in [SlidingWindow::new(Quota::per_second(3)), SlidingWindow::new(Quota::per_second(3)).weighted()] {
        let service = layer(memory(window)).max_wait(3 * SECOND).layer(clock_service());
        let outcomes = call_all(&service, 20).await;
        let mut served: Vec<_> =
            outcomes.iter().filter_map(|outcome| if let Served(at) = outcome { Some(*at) } else { None }).collect();
        served.sort();
        // A hit counts for up to 1.1 s: three at 0, and at the latest at 1.1 s and at 2.2 s.
        assert!((9..=12).contains(&served.len()), "{served:?}");
        assert_eq!(served[2], Duration::ZERO);
        for outcome in outcomes {
            let (Served(at) | Denied { at, .. }) = outcome;
            // Each of 20 timers may be late by a tick.
            assert!(at <= 3 * SECOND + ms(1) * 20, "{outcome:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_is_denied_immediately_when_its_wait_exceeds_max_wait() {
    let limiters = [
        memory(Gcra::new(Quota::per_minute(1))),
        memory(TokenBucket::new(Quota::per_minute(1))),
        memory(LeakyBucket::new(Quota::per_minute(1))),
        memory(LeakyQueue::new(Quota::per_minute(1))),
        memory(FixedWindow::new(Quota::per_minute(1))),
        memory(SlidingLog::new(Quota::per_minute(1))),
    ];
    for limiter in limiters {
        let service = layer(limiter).max_wait(ms(59_999)).layer(clock_service());
        let started = Instant::now();
        assert_eq!(call(&service, 0, started).await.unwrap(), Served(Duration::ZERO));
        for _ in 0..3 {
            let outcome = call(&service, 1, started).await.unwrap();
            assert!(matches!(outcome, Denied { at: Duration::ZERO, retry_after: Some(_) }), "{outcome:?}");
        }
        // A millisecond later the wait is within `max_wait`.
        sleep(ms(1)).await;
        assert!(matches!(call(&service, 1, started).await.unwrap(), Served(_)));
        assert_eq!(started.elapsed(), Duration::from_secs(60));
    }
}

/// `max_wait` bounds the whole wait, however often the request acquires again.
#[tokio::test(start_paused = true)]
async fn max_wait_bounds_repeated_acquires() {
    /// Always denies with a short `retry_after`.
    #[derive(Clone)]
    struct NeverReady(TokioClock);

    impl Limiter<()> for NeverReady {
        fn acquire(&self, (): &(), _options: AcquireOptions) -> LimiterFuture<Outcome> {
            use tower_ratelimit::Clock;

            let verdict = Verdict::Denied { retry_after: Duration::from_micros(100) };
            LimiterFuture::ready(Ok(Decision::without_limit(self.0.now(), verdict).into()))
        }
    }

    let service = layer(NeverReady(TokioClock::new())).max_wait(ms(50)).layer(clock_service());
    let outcomes = call_all(&service, 1).await;
    let Denied { at, .. } = outcomes[0] else { panic!("{outcomes:?}") };
    assert!(at <= ms(51), "the request waited for {at:?}");
}

// ---------------------------------------------------------------------------------------------------------------------
// Many requests
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn thousand_waiters_for_a_bucket_start_in_the_order_of_acquires() {
    let limiter = memory(Gcra::new(Quota::per_second(1000)).strict());
    let service = layer(limiter).max_wait(ms(600)).layer(clock_service());
    let mut expected = served_each(ms(1), 601);
    expected.extend([denied(Duration::ZERO, ms(1)); 399]);
    assert_eq!(call_all(&service, 1000).await, expected);
}

#[tokio::test(start_paused = true)]
async fn thousand_waiters_of_ten_keys_wait_per_key() {
    let memory = Memory::builder(LeakyQueue::new(TEN_A_SECOND).max_waiting(1000)).max_keys(100);
    let limiter = memory.clock(TokioClock::new()).build().unwrap();
    let by_last_digit = |caller: &u32| Some(*caller % 10);
    let service = RateLimitLayer::new(by_last_digit, limiter).responder(RejectWithError).layer(clock_service());
    let expected: Vec<_> = (0..1000_u32).map(|caller| Served(ms(100) * (caller / 10))).collect();
    assert_eq!(call_all(&service, 1000).await, expected);
}

#[tokio::test(start_paused = true)]
async fn thousand_waiters_for_a_window_are_answered_within_max_wait() {
    for limiter in [memory(FixedWindow::new(Quota::per_second(100))), memory(SlidingLog::new(Quota::per_second(100)))] {
        let service = layer(limiter).max_wait(5 * SECOND).layer(clock_service());
        let mut outcomes = call_all(&service, 1000).await;
        outcomes.sort();
        let mut expected: Vec<_> = (0..600).map(|index: u32| Served(SECOND * (index / 100))).collect();
        expected.extend([denied(Duration::ZERO, SECOND); 400]);
        assert_eq!(outcomes, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn request_is_denied_immediately_when_max_waiters_wait() {
    let layer = layer(memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(100))).max_waiters(3).max_waiters_per_key(3);
    let service = layer.layer(clock_service());
    let started = Instant::now();
    // All services of a layer share `max_waiters`.
    let other = layer.layer(clock_service());
    let services = [&service, &other, &service, &other, &service, &other];
    let answers: Vec<_> = (0..6).map(|caller| call(services[caller as usize], caller, started)).collect();
    let mut outcomes = Vec::new();
    for answer in answers {
        outcomes.push(answer.await.unwrap());
    }
    let mut expected = served_each(ms(100), 4);
    expected.extend([denied(Duration::ZERO, ms(400)); 2]);
    assert_eq!(outcomes, expected);

    // A request without a permit is denied before it is charged: the next start is at 400 ms. The permits are free
    // again.
    let outcomes = call_all(&service, 5).await;
    let mut expected: Vec<_> = (4..7).map(|index: u32| Served(ms(100) * index)).collect();
    expected.extend([denied(Duration::ZERO, ms(400)); 2]);
    assert_eq!(outcomes, expected);
}

/// A request that finds no free permit is denied without a charge, with the unchanged status of the key.
#[tokio::test(start_paused = true)]
async fn request_without_a_permit_gets_the_limit_status() {
    let limiter = memory(Gcra::new(TEN_A_SECOND).burst(2));
    let mut service = layer(limiter.clone()).max_wait(SECOND).max_waiters(0).layer(clock_service());
    for caller in 0..2 {
        assert!(service.call(caller).await.is_ok());
    }
    let rejected = service.call(2).await.unwrap_err().downcast::<Rejected>().unwrap();
    let decision = rejected.rejection().decision().unwrap();
    let peeked = limiter.peek(&(), AcquireOptions::default()).await.unwrap();
    assert_eq!((decision.retry_after(), decision.reset()), (Some(ms(100)), Some(ms(200))));
    assert_eq!((peeked.retry_after(), peeked.reset()), (Some(ms(100)), Some(ms(200))));
}

#[tokio::test(start_paused = true)]
async fn waiter_for_a_blocked_key_acquires_again_when_the_block_ends() {
    for (max_wait, outcome) in [(500, Served(ms(500))), (499, denied(Duration::ZERO, ms(500)))] {
        for limiter in [memory(Gcra::new(TEN_A_SECOND)), memory(LeakyQueue::new(TEN_A_SECOND))] {
            limiter.block("default", &(), ms(500)).await.unwrap();
            let service = layer(limiter).max_wait(ms(max_wait)).layer(clock_service());
            assert_eq!(call_all(&service, 1).await, [outcome]);
        }
    }
    // A start after `max_wait` is denied immediately, whatever the block.
    let limiter = memory(Gcra::new(Quota::per_second(1)).strict());
    let service = layer(limiter.clone()).max_wait(ms(900)).layer(clock_service());
    assert_eq!(call_all(&service, 1).await, [Served(Duration::ZERO)]);
    limiter.block("default", &(), ms(500)).await.unwrap();
    // After 100 ms, the start at 1 s is within `max_wait`.
    assert_eq!(call_all(&service, 1).await, [denied(Duration::ZERO, ms(100))]);
}

#[tokio::test(start_paused = true)]
async fn waiters_that_acquire_again_count_towards_max_waiters() {
    let service = layer(memory(FixedWindow::new(Quota::per_second(1))))
        .max_wait(10 * SECOND)
        .max_waiters(2)
        .max_waiters_per_key(2)
        .layer(clock_service());
    let mut outcomes = call_all(&service, 5).await;
    outcomes.sort();
    let mut expected = served_each(SECOND, 3);
    expected.extend([denied(Duration::ZERO, 3 * SECOND); 2]);
    assert_eq!(outcomes, expected);
}

#[tokio::test(start_paused = true)]
async fn request_is_denied_immediately_when_max_waiters_is_zero() {
    for limiter in [memory(LeakyQueue::new(TEN_A_SECOND)), memory(FixedWindow::new(Quota::new(1, ms(100))))] {
        let service = layer(limiter).max_wait(SECOND).max_waiters(0).layer(clock_service());
        assert_eq!(call_all(&service, 2).await, [Served(Duration::ZERO), denied(Duration::ZERO, ms(100))]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Cancellation
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn cancelled_waiter_frees_its_place_and_its_start() {
    let service = layer(memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(4))).max_waiters(4);
    let service = service.max_waiters_per_key(4).layer(clock_service());
    let started = Instant::now();
    let mut answers: Vec<_> = (0..5).map(|caller| call(&service, caller, started)).collect();
    sleep(ms(50)).await;
    // The queue is full, and all permits are in use.
    assert!(matches!(call(&service, 5, started).await.unwrap(), Denied { .. }));
    answers.remove(2).abort();
    sleep(ms(1)).await;
    // Its place is free, and those behind it move up.
    let next = call(&service, 6, started);
    assert!(matches!(call(&service, 7, started).await.unwrap(), Denied { .. }));

    let mut outcomes = Vec::new();
    for answer in answers {
        outcomes.push(answer.await.unwrap());
    }
    assert_eq!(outcomes, [0, 100, 200, 300].map(|at| Served(ms(at))));
    assert_eq!(next.await.unwrap(), Served(ms(400)));
}

/// A new request takes its place.
#[tokio::test(start_paused = true)]
async fn cancelled_last_waiter_is_not_charged() {
    for limiter in [memory(LeakyQueue::new(TEN_A_SECOND)), memory(Gcra::new(TEN_A_SECOND).strict())] {
        let service = layer(limiter).max_wait(SECOND).layer(clock_service());
        let started = Instant::now();
        let mut answers: Vec<_> = (0..4).map(|caller| call(&service, caller, started)).collect();
        sleep(ms(50)).await;
        answers.pop().unwrap().abort();
        sleep(ms(1)).await;
        assert_eq!(call(&service, 4, started).await.unwrap(), Served(ms(300)));
        for (index, answer) in (0_u32..).zip(answers) {
            assert_eq!(answer.await.unwrap(), Served(ms(100) * index));
        }
        assert_eq!(call(&service, 5, started).await.unwrap(), Served(ms(400)));
    }
}

/// The inner service never receives two requests within the spacing, whichever waiter is cancelled.
#[tokio::test(start_paused = true)]
async fn spacing_holds_when_waiters_are_cancelled() {
    for limiter in [memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(50)), memory(Gcra::new(TEN_A_SECOND).strict())] {
        let service = layer(limiter).max_wait(10 * SECOND).layer(clock_service());
        let started = Instant::now();
        let mut answers: Vec<_> = (0..10).map(|caller| call(&service, caller, started)).collect();
        sleep(ms(50)).await;
        for cancelled in [7, 4, 2] {
            answers.remove(cancelled).abort();
        }
        sleep(ms(1)).await;
        answers.extend((10..15).map(|caller| call(&service, caller, started)));
        let mut served = Vec::new();
        for answer in answers {
            let Served(at) = answer.await.unwrap() else { panic!("the queue has space for all") };
            served.push(at);
        }
        served.sort();
        assert!(served.windows(2).all(|pair| pair[1] >= pair[0] + ms(100)), "{served:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiter_that_acquires_again_is_not_charged() {
    let limiter = memory(FixedWindow::new(Quota::per_second(2)));
    let service = layer(limiter.clone()).max_wait(10 * SECOND).max_waiters(1).layer(clock_service());
    let started = Instant::now();
    let answers: Vec<_> = (0..3).map(|caller| call(&service, caller, started)).collect();
    sleep(ms(500)).await;
    answers[2].abort();
    sleep(ms(600)).await;
    assert_eq!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().remaining(), Some(2));
    // Its permit is free.
    let answers: Vec<_> = (3..6).map(|caller| call(&service, caller, started)).collect();
    for (answer, at) in answers.into_iter().zip([1100, 1100, 2100]) {
        assert_eq!(answer.await.unwrap(), Served(ms(at)));
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_response_dropped_unpolled_stays_charged() {
    let limiter = memory(LeakyQueue::new(TEN_A_SECOND));
    let mut service = layer(limiter.clone()).layer(clock_service());
    assert!(service.call(0).await.is_ok());
    let waiting = service.call(1);
    assert_eq!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().delay(), ms(200));
    drop(waiting);
    assert_eq!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().delay(), ms(200));
    // The charge drains as if the request had been forwarded.
    sleep(ms(200)).await;
    assert_eq!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().delay(), Duration::ZERO);
}

// ---------------------------------------------------------------------------------------------------------------------
// Readiness
// ---------------------------------------------------------------------------------------------------------------------

/// A service with a number of permits: `poll_ready` takes one, and dropping the instance or the response frees it. It
/// panics if it is called without a permit.
struct Permits {
    shared: Arc<Shared>,
    ready: bool,
}

struct Shared {
    free: AtomicU32,
    /// The numbers of instances made ready and of calls.
    readied: AtomicU32,
    called: AtomicU32,
    readiness: Mutex<Readiness>,
    started: Instant,
}

#[derive(Clone, Copy)]
enum Readiness {
    Permits,
    NotBefore(Instant),
    Broken,
}

impl Permits {
    fn new(permits: u32) -> Self {
        let shared = Shared {
            free: AtomicU32::new(permits),
            readied: AtomicU32::new(0),
            called: AtomicU32::new(0),
            readiness: Mutex::new(Readiness::Permits),
            started: Instant::now(),
        };
        Self { shared: Arc::new(shared), ready: false }
    }
}

impl Shared {
    fn free(&self) -> u32 {
        self.free.load(Ordering::SeqCst)
    }
}

impl Clone for Permits {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), ready: false }
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        if self.ready {
            self.shared.free.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Service<u32> for Permits {
    type Response = Duration;
    type Error = BoxError;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Duration, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let readiness = *self.shared.readiness.lock().unwrap();
        let not_yet = match readiness {
            Readiness::Broken => return Poll::Ready(Err("broken".into())),
            Readiness::NotBefore(moment) => Instant::now() < moment,
            Readiness::Permits => false,
        };
        let take = |free: u32| free.checked_sub(1);
        if self.ready {
            return Poll::Ready(Ok(()));
        }
        if not_yet || self.shared.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            // Polls again each millisecond.
            let waker = cx.waker().clone();
            spawn(async move {
                sleep(ms(1)).await;
                waker.wake();
            });
            return Poll::Pending;
        }
        self.shared.readied.fetch_add(1, Ordering::SeqCst);
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _caller: u32) -> Self::Future {
        assert!(self.ready, "called an instance that was not made ready");
        self.ready = false;
        self.shared.called.fetch_add(1, Ordering::SeqCst);
        // The response owns the permit.
        let permit = Self { shared: Arc::clone(&self.shared), ready: true };
        Box::pin(async move { Ok(permit.shared.started.elapsed()) })
    }
}

/// Makes the service ready, and calls it. The service is kept until the response, so that dropping it frees nothing
/// earlier.
async fn ready_call<S>(service: &S, caller: u32) -> JoinHandle<Result<Duration, BoxError>>
where
    S: Service<u32, Response = Duration, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    let mut service = service.clone();
    let ready = tokio::time::timeout(60 * SECOND, service.ready()).await.expect("not starved");
    let response = ready.unwrap().call(caller);
    spawn(async move {
        let answer = response.await;
        drop(service);
        answer
    })
}

#[tokio::test(start_paused = true)]
async fn waiting_request_holds_no_service_permit() {
    let limiters = [
        memory(LeakyQueue::new(Quota::per_second(1)).max_waiting(2)),
        memory(Gcra::new(Quota::per_second(1))),
        memory(FixedWindow::new(Quota::per_second(1))),
    ];
    for limiter in limiters {
        let permits = Permits::new(1);
        let shared = Arc::clone(&permits.shared);
        let service = layer(limiter).max_wait(2 * SECOND).layer(permits);
        assert_eq!(ready_call(&service, 0).await.await.unwrap().unwrap(), Duration::ZERO);

        let waiting = [ready_call(&service, 1).await, ready_call(&service, 2).await];
        assert_eq!(shared.free(), 1, "waiting requests hold no permit");
        let (called, readied) = (shared.called.load(Ordering::SeqCst), shared.readied.load(Ordering::SeqCst));
        assert_eq!((called, readied), (1, 3));
        for waiting in waiting {
            waiting.await.unwrap().unwrap();
        }
        assert_eq!(shared.free(), 1);
        // Each waiting request made an instance ready once more, at its start.
        assert_eq!((shared.called.load(Ordering::SeqCst), shared.readied.load(Ordering::SeqCst)), (3, 5));
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_request_does_not_block_a_concurrency_limit() {
    let limiter = Memory::builder(Gcra::new(Quota::per_minute(1))).max_keys(100).clock(TokioClock::new());
    let by_caller = |caller: &u32| Some(*caller);
    let limit =
        RateLimitLayer::new(by_caller, limiter.build().unwrap()).responder(RejectWithError).max_wait(60 * SECOND);
    let service = limit.layer(ConcurrencyLimit::new(clock_service(), 1));

    assert_eq!(ready_call(&service, 7).await.await.unwrap().unwrap(), Duration::ZERO);
    let waiting = ready_call(&service, 7).await;
    for other in 0..5 {
        let served = tokio::time::timeout(SECOND, ready_call(&service, other)).await.expect("not starved");
        assert_eq!(served.await.unwrap().unwrap(), Duration::ZERO);
    }
    assert_eq!(waiting.await.unwrap().unwrap(), 60 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn delayed_request_waits_for_the_service_after_its_start() {
    let permits = Permits::new(1);
    let shared = Arc::clone(&permits.shared);
    let service = layer(memory(LeakyQueue::new(TEN_A_SECOND))).layer(permits);
    ready_call(&service, 0).await.await.unwrap().unwrap();
    let waiting = ready_call(&service, 1).await;
    *shared.readiness.lock().unwrap() = Readiness::NotBefore(shared.started + ms(700));
    assert_eq!(waiting.await.unwrap().unwrap(), ms(700));
}

#[tokio::test(start_paused = true)]
async fn request_stays_charged_when_the_service_fails_during_the_wait() {
    let permits = Permits::new(1);
    let shared = Arc::clone(&permits.shared);
    let limiter = memory(LeakyQueue::new(TEN_A_SECOND));
    let service = layer(limiter.clone()).layer(permits);
    ready_call(&service, 0).await.await.unwrap().unwrap();
    let waiting = ready_call(&service, 1).await;
    assert_eq!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().delay(), ms(200));
    *shared.readiness.lock().unwrap() = Readiness::Broken;

    assert_eq!(waiting.await.unwrap().unwrap_err().to_string(), "broken");
    assert_eq!((shared.called.load(Ordering::SeqCst), shared.free()), (1, 1));
    // Its start was at 100 ms, which is now.
    assert_eq!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().delay(), ms(100));
}

#[tokio::test(start_paused = true)]
async fn request_dropped_while_the_service_gets_ready_stays_charged() {
    let permits = Permits::new(1);
    let shared = Arc::clone(&permits.shared);
    let limiter = memory(Gcra::new(Quota::per_second(1)).burst(2));
    let service = layer(limiter.clone()).max_wait(5 * SECOND).layer(permits);
    for caller in 0..2 {
        ready_call(&service, caller).await.await.unwrap().unwrap();
    }
    let waiting = ready_call(&service, 2).await;
    *shared.readiness.lock().unwrap() = Readiness::NotBefore(shared.started + 60 * SECOND);
    sleep(ms(1500)).await;
    let remaining = async || limiter.peek(&(), AcquireOptions::default()).await.unwrap().remaining().unwrap();
    assert_eq!(remaining().await, 0);
    waiting.abort();
    sleep(ms(1)).await;
    assert_eq!(remaining().await, 0);
    // Three were charged: the third has drained after three seconds.
    sleep(ms(1499)).await;
    assert_eq!(remaining().await, 2);
}

/// A layer that settles holds its cost, so no start is scheduled: a waiting request acquires again.
#[tokio::test(start_paused = true)]
async fn layer_that_settles_asks_again_until_a_hold_ends() {
    for limiter in [memory(FixedWindow::new(Quota::per_hour(1))), memory(Gcra::new(Quota::per_hour(1)).strict())] {
        // Each response takes 300 ms, and is settled at 0.
        let slow = service_fn(|_: u32| async {
            sleep(ms(300)).await;
            Ok::<_, BoxError>(())
        });
        let free = |_: u64, _: Result<&(), &BoxError>| 0;
        let service = layer(limiter.clone()).settle(free).max_wait(2 * 3600 * SECOND).layer(slow);
        let started = Instant::now();
        let mut first = pin!(service.clone().call(0));
        assert!(tokio::time::timeout(ms(1), first.as_mut()).await.is_err(), "the first request is in flight");
        let denied = limiter.peek(&(), AcquireOptions::default()).await.unwrap();
        assert!(!denied.is_allowed() && denied.is_estimate());
        let mut second = pin!(service.clone().call(1));
        assert!(tokio::time::timeout(ms(1), second.as_mut()).await.is_err(), "the second request waits");
        first.await.unwrap();
        assert_eq!(started.elapsed(), ms(300));
        second.await.unwrap();
        // It acquired again each 100 ms, not after the estimate of an hour.
        assert!((ms(600)..ms(701)).contains(&started.elapsed()), "{:?}", started.elapsed());
        assert!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().is_allowed(), "nothing was charged");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Limiters with pending decisions
// ---------------------------------------------------------------------------------------------------------------------

/// A limiter with scripted verdicts for each caller, pending for `DECISION_TIME`. It supports holds.
#[derive(Clone, Default)]
struct RemoteLimiter {
    verdicts: Arc<Mutex<HashMap<u32, Vec<Verdict>>>>,
    settled: Arc<Mutex<Vec<(u32, u64)>>>,
}

const DECISION_TIME: Duration = ms(5);

impl RemoteLimiter {
    fn script(&self, caller: u32, verdicts: impl IntoIterator<Item = Verdict>) {
        self.verdicts.lock().unwrap().insert(caller, verdicts.into_iter().collect());
    }
}

impl Limiter<u32> for RemoteLimiter {
    fn acquire(&self, caller: &u32, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let verdict = self.verdicts.lock().unwrap().get_mut(caller).expect("a scripted caller").remove(0);
        let (settled, caller) = (Arc::clone(&self.settled), *caller);
        LimiterFuture::pending(async move {
            sleep(DECISION_TIME).await;
            let decision = Decision::without_limit(tower_ratelimit::Timestamp::EPOCH, verdict);
            let settle = move |actual| {
                LimiterFuture::pending(async move {
                    sleep(DECISION_TIME).await;
                    settled.lock().unwrap().push((caller, actual));
                    Ok(())
                })
            };
            let held = (options.hold && verdict.is_allowed()).then(|| Held::new(options.cost, settle));
            Ok(Outcome::new(decision, held))
        })
    }
}

fn by_caller<A>(limiter: A) -> RateLimitLayer<impl Fn(&u32) -> Option<u32> + Clone, A, RejectWithError> {
    RateLimitLayer::new(|caller: &u32| Some(*caller), limiter).responder(RejectWithError)
}

#[tokio::test(start_paused = true)]
async fn pending_decision_keeps_the_ready_instance_and_a_delay_releases_it() {
    let limiter = RemoteLimiter::default();
    limiter.script(0, [Verdict::Allowed]);
    limiter.script(1, [Verdict::AllowedAfter(ms(100))]);
    let permits = Permits::new(1);
    let shared = Arc::clone(&permits.shared);
    let service = by_caller(limiter).layer(permits);

    let allowed = ready_call(&service, 0).await;
    sleep(ms(1)).await;
    assert_eq!(shared.free(), 0, "the pending request keeps the ready instance");
    assert_eq!(allowed.await.unwrap().unwrap(), DECISION_TIME);
    assert_eq!(shared.readied.load(Ordering::SeqCst), 1);

    let delayed = ready_call(&service, 1).await;
    sleep(ms(1)).await;
    assert_eq!(shared.free(), 0);
    sleep(DECISION_TIME).await;
    assert_eq!(shared.free(), 1);
    assert_eq!(delayed.await.unwrap().unwrap(), 2 * DECISION_TIME + ms(100));
    assert_eq!(shared.readied.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn remote_limiter_is_called_again_after_retry_after() {
    let in_100_ms = Verdict::Denied { retry_after: ms(100) };
    let limiter = RemoteLimiter::default();
    limiter.script(0, [in_100_ms, in_100_ms, Verdict::Allowed]);
    // The second acquire schedules a start.
    limiter.script(1, [in_100_ms, Verdict::AllowedAfter(ms(50))]);
    limiter.script(2, [in_100_ms, Verdict::ExceedsLimit]);
    limiter.script(3, [Verdict::Denied { retry_after: ms(301) }]);
    let service = by_caller(limiter).max_wait(ms(300)).layer(clock_service());
    let at = |waited: u64, decisions: u32| ms(waited) + DECISION_TIME * decisions;
    let expected = [
        Served(at(200, 1)),
        Served(at(150, 1)),
        Denied { at: at(100, 1), retry_after: None },
        denied(at(0, 1), ms(301)),
    ];
    assert_eq!(call_all(&service, 4).await, expected);
}

/// The time of pending decisions counts towards `max_wait`.
#[tokio::test(start_paused = true)]
async fn max_wait_includes_the_time_of_pending_decisions() {
    let limiter = RemoteLimiter::default();
    limiter.script(0, vec![Verdict::Denied { retry_after: ms(1) }; 1000]);
    let service = by_caller(limiter).max_wait(ms(100)).layer(clock_service());
    let outcomes = call_all(&service, 1).await;
    let Denied { at, .. } = outcomes[0] else { panic!("{outcomes:?}") };
    assert!(at <= ms(100) + DECISION_TIME, "the request waited for {at:?}");
}

/// A layer that settles and whose service becomes ready late holds from the decision on. It releases the hold if it
/// never forwards the request.
#[tokio::test(start_paused = true)]
async fn remote_hold_is_released_in_the_background_if_the_request_is_not_forwarded() {
    let limiter = RemoteLimiter::default();
    let whole = |held: u64, _: Result<&Duration, &BoxError>| held;
    for (caller, leaves) in [(0, true), (1, false)] {
        // The second acquire is allowed, and the service must be made ready again.
        limiter.script(caller, [Verdict::Denied { retry_after: ms(100) }, Verdict::Allowed]);
        let permits = Permits::new(1);
        let shared = Arc::clone(&permits.shared);
        let service = by_caller(limiter.clone()).settle(whole).max_wait(SECOND).layer(permits);
        let waiting = ready_call(&service, caller).await;
        *shared.readiness.lock().unwrap() = Readiness::NotBefore(shared.started + 60 * SECOND);
        sleep(ms(200)).await;
        assert!(limiter.settled.lock().unwrap().is_empty());
        if leaves {
            waiting.abort();
        } else {
            *shared.readiness.lock().unwrap() = Readiness::Broken;
        }
        sleep(ms(10)).await;
        assert_eq!(shared.called.load(Ordering::SeqCst), 0);
        assert_eq!(std::mem::take(&mut *limiter.settled.lock().unwrap()), [(caller, 0)]);
    }
}

/// A custom limiter may hold for a later start. The hold is released if the request is dropped before, and settled
/// otherwise.
#[tokio::test(start_paused = true)]
async fn hold_for_a_later_start_is_released_if_the_request_is_dropped_before() {
    let limiter = RemoteLimiter::default();
    limiter.script(0, [Verdict::AllowedAfter(SECOND)]);
    limiter.script(1, [Verdict::AllowedAfter(SECOND)]);
    let whole = |held: u64, _: Result<&Duration, &BoxError>| held;
    let service = by_caller(limiter.clone()).cost(|_: &u32| 3).settle(whole).layer(clock_service());
    let started = Instant::now();
    let (leaving, staying) = (call(&service, 0, started), call(&service, 1, started));
    sleep(ms(500)).await;
    leaving.abort();
    assert_eq!(staying.await.unwrap(), Served(DECISION_TIME + SECOND));
    sleep(ms(10)).await;
    let mut settled = limiter.settled.lock().unwrap().clone();
    settled.sort_unstable();
    assert_eq!(settled, [(0, 0), (1, 3)]);
}

/// A scheduled start is charged when it is scheduled, and needs no settlement.
#[tokio::test(start_paused = true)]
async fn remote_scheduled_start_is_awaited_beyond_max_waiters() {
    let limiter = RemoteLimiter::default();
    limiter.script(0, [Verdict::AllowedAfter(SECOND)]);
    limiter.script(1, [Verdict::AllowedAfter(SECOND)]);
    let service = by_caller(limiter.clone()).max_waiters(1).layer(clock_service());
    // Both acquired while the permit was free.
    assert_eq!(call_all(&service, 2).await, [Served(DECISION_TIME + SECOND); 2]);
    assert!(limiter.settled.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn request_dropped_during_a_pending_decision_settles_nothing() {
    let limiter = RemoteLimiter::default();
    limiter.script(0, [Verdict::Allowed]);
    let permits = Permits::new(1);
    let shared = Arc::clone(&permits.shared);
    let service = by_caller(limiter.clone()).layer(permits);
    let deciding = ready_call(&service, 0).await;
    sleep(ms(1)).await;
    deciding.abort();
    sleep(ms(50)).await;
    assert_eq!((shared.called.load(Ordering::SeqCst), shared.free()), (0, 1));
    assert!(limiter.settled.lock().unwrap().is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// Several limits
// ---------------------------------------------------------------------------------------------------------------------

fn several<Key: ?Sized, L>(limits: L) -> Memory<Key, L>
where
    L: tower_ratelimit::store::MemoryLimits<Key, tower_ratelimit::store::DefaultHashBuilder>,
{
    Memory::builder(limits).max_keys(100).clock(TokioClock::new()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn several_limits_schedule_a_start_only_while_all_have_usage() {
    let limiter = several((
        Limit::new("spacing", LeakyQueue::new(TEN_A_SECOND).max_waiting(100)),
        Limit::new("minute", Gcra::new(Quota::per_second(1)).burst(5)),
    ));
    let service = layer(limiter).max_wait(2 * SECOND).layer(clock_service());
    // From 400 ms on the spacing allows every request: a request that waits for the other limit acquires again.
    let mut outcomes = call_all(&service, 8).await;
    outcomes[5..].sort();
    let mut expected: Vec<_> = [0, 100, 200, 300, 400, 1000, 2000].map(|at| Served(ms(at))).into();
    expected.push(denied(2 * SECOND, SECOND));
    assert_eq!(outcomes, expected);
}

/// A start that one limit schedules may not be free in another: all limits schedule, or none does.
#[tokio::test(start_paused = true)]
async fn leaky_queue_beside_a_window_schedules_no_starts() {
    let limits = || {
        several((
            Limit::new("spacing", LeakyQueue::new(TEN_A_SECOND).max_waiting(100)),
            Limit::new("second", FixedWindow::new(Quota::per_second(3))),
        ))
    };
    let service = layer(limits()).layer(clock_service());
    assert_eq!(call_all(&service, 2).await, [Served(Duration::ZERO), denied(Duration::ZERO, ms(100))]);

    // With `max_wait` a request acquires again, within both limits.
    let service = layer(limits()).max_wait(ms(1100)).layer(clock_service());
    let mut outcomes = call_all(&service, 6).await;
    outcomes.sort();
    let mut expected: Vec<_> = [0, 100, 200, 1000, 1100].map(|at| Served(ms(at))).into();
    expected.push(denied(ms(1100), ms(100)));
    assert_eq!(outcomes, expected);
}

/// A request that waits for its own limit must not delay requests that share another limit with it.
#[tokio::test(start_paused = true)]
async fn waiter_for_its_own_limit_does_not_block_a_shared_limit() {
    let limiter = several((
        Limit::new("caller", Gcra::new(Quota::per_minute(1))).keyed_by(|caller: &u32| *caller),
        Limit::new("all", Gcra::new(Quota::per_second(100))).keyed_by(|_: &u32| ()),
    ));
    let service = by_caller(limiter).max_wait(60 * SECOND).layer(clock_service());
    let started = Instant::now();
    assert_eq!(call(&service, 7, started).await.unwrap(), Served(Duration::ZERO));
    let waiting = call(&service, 7, started);
    assert_eq!(call(&service, 8, started).await.unwrap(), Served(Duration::ZERO));
    assert_eq!(waiting.await.unwrap(), Served(60 * SECOND));
}

/// A shadow limit does not change how requests wait.
#[tokio::test(start_paused = true)]
async fn shadow_limit_does_not_prevent_scheduled_starts() {
    let limiter = several((
        Limit::new("enforced", Gcra::new(Quota::per_second(1)).strict()),
        Limit::new("trial", FixedWindow::new(Quota::per_second(1))).shadow(),
    ));
    let service = layer(limiter).max_wait(SECOND).layer(clock_service());
    let expected = [Served(Duration::ZERO), Served(SECOND), denied(Duration::ZERO, SECOND)];
    assert_eq!(call_all(&service, 3).await, expected);
}

// ---------------------------------------------------------------------------------------------------------------------
// Without a timer
// ---------------------------------------------------------------------------------------------------------------------

/// Waiting needs tokio's timer. Outside of a runtime a delayed request is rejected, and stays charged.
#[test]
fn delayed_request_is_rejected_outside_of_a_runtime() {
    let limiter = Memory::builder(LeakyQueue::new(Quota::per_hour(1))).max_keys(100).build().unwrap();
    let service = service_fn(|_: u32| ready(Ok::<_, BoxError>(())));
    let mut service = layer(limiter.clone()).layer(service);
    let mut now = |caller| {
        let mut response = pin!(service.call(caller));
        match response.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("the response is pending without a timer"),
        }
    };
    assert!(now(0).is_ok());
    for caller in 1..4 {
        let rejected = now(caller).unwrap_err().downcast::<Rejected>().unwrap();
        // The first one is charged for its start, so that the queue denies the others.
        assert_eq!(rejected.rejection().is_misconfigured(), caller == 1, "{rejected}");
    }
}

#[test]
fn delayed_request_is_rejected_in_a_runtime_without_a_timer() {
    let limiter = BoxLimiter::new(Memory::new(LeakyQueue::new(TEN_A_SECOND).max_waiting(5)));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut service = layer(limiter).layer(service_fn(|_: u32| ready(Ok::<_, BoxError>(()))));
        assert!(service.ready().await.expect("ready").call(1).await.is_ok());
        let error = service.ready().await.expect("ready").call(2).await.expect_err("a delay without a timer");
        let rejected = error.downcast::<Rejected>().expect("a rejection");
        assert!(rejected.rejection().is_misconfigured());
        let tower_ratelimit::response::Rejection::Unavailable(cause) = rejected.rejection() else {
            panic!("{rejected:?}")
        };
        assert!(cause.to_string().contains("no tokio runtime with a timer"), "{cause}");
        assert_eq!(rejected.to_string(), "server misconfigured");
    });
}

/// The estimate assumes that the held cost drains, an hour here. A waiter does not sleep for that long.
#[tokio::test(start_paused = true)]
async fn waiter_denied_by_a_hold_starts_soon_after_it_is_settled() {
    let started = Instant::now();
    let inner = service_fn(move |_: u32| async move {
        sleep(Duration::from_millis(250)).await;
        Ok::<_, BoxError>(started.elapsed())
    });
    let limiter = memory(FixedWindow::new(Quota::per_hour(1)));
    let nothing = |_: u64, _: Result<&Duration, &BoxError>| 0;
    let service = layer(limiter).settle(nothing).max_wait(Duration::from_secs(5)).layer(inner);
    let (first, second) = (call(&service, 1, started), call(&service, 2, started));
    assert_eq!(first.await.unwrap(), Served(Duration::from_millis(250)));
    let Served(at) = second.await.unwrap() else { panic!("the first hold was released in time") };
    // Started at 250 ms, when the first hold was released.
    assert_eq!(at, Duration::from_millis(500));

    // `max_wait` bounds the wait, not the estimate.
    let brief = layer(memory(FixedWindow::new(Quota::per_hour(1)))).settle(nothing);
    let brief = brief.max_wait(Duration::from_millis(150)).layer(service_fn(move |_: u32| async move {
        sleep(Duration::from_secs(10)).await;
        Ok::<_, BoxError>(started.elapsed())
    }));
    let began = started.elapsed();
    let (_first, second) = (call(&brief, 1, started), call(&brief, 2, started));
    let Denied { at, .. } = second.await.unwrap() else { panic!("the first request takes ten seconds") };
    assert_eq!(at, began + Duration::from_millis(150));
}
