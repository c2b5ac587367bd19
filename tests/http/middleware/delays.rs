//! Waiting in virtual time, where the traces do not go: blocks, several limits, and remote limiters.
//!
//! All times are whole milliseconds, the resolution of tokio's timer, so that starts are exact.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::{Layer, Service};
use tower_ratelimit::limiter::{Held, LimiterFuture, Outcome};
use tower_ratelimit::response::{BoxError, Rejection};
use tower_ratelimit::{
    AcquireOptions, Decision, DynLimit, Gcra, LeakyQueue, Limit, Limiter, Quota, SlidingWindow, TokioClock, Verdict,
};

use crate::load::{Call, CallService, SECOND, inner, layer, limited, memory, of_each, several};
use crate::support::{Task, ms, spawn};

/// One request each 100 ms.
const TEN_A_SECOND: Quota = Quota::per_second(10);

const CALL: Call = Call::of(0);

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
fn call(service: &CallService, call: Call, started: Instant) -> Task<CallOutcome> {
    let response = service.clone().call(call);
    spawn(async move {
        match response.await {
            Ok(at) => Served(at - started),
            Err(error) => {
                let rejected = error.downcast::<Rejection>().expect("the limiter's error");
                Denied { at: started.elapsed(), retry_after: rejected.retry_after() }
            }
        }
    })
}

/// Makes calls one after another at one time. The service is always ready.
async fn call_all(service: &CallService, calls: &[Call]) -> Vec<CallOutcome> {
    let started = Instant::now();
    let answers: Vec<_> = calls.iter().map(|one| call(service, *one, started)).collect();
    let mut outcomes = Vec::new();
    for answer in answers {
        outcomes.push(answer.await.unwrap());
    }
    outcomes
}

// ---------------------------------------------------------------------------------------------------------------------
// `max_wait`
// ---------------------------------------------------------------------------------------------------------------------

/// Blocks are aligned to the clock, which starts at any time: starts are not whole milliseconds, so the test checks
/// bounds.
#[tokio::test(start_paused = true)]
async fn waiters_for_a_sliding_window_acquire_again_until_max_wait() {
    for window in [SlidingWindow::new(Quota::per_second(3)), SlidingWindow::new(Quota::per_second(3)).weighted()] {
        let service = limited(layer(memory(window)).max_wait(3 * SECOND), inner());
        let outcomes = call_all(&service, &[CALL; 20]).await;
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

/// `max_wait` bounds the whole wait, however often the request acquires again.
#[tokio::test(start_paused = true)]
async fn max_wait_bounds_repeated_acquires() {
    /// Always denies with a short `retry_after`.
    #[derive(Clone)]
    struct NeverReady(TokioClock);

    impl Limiter<u32> for NeverReady {
        fn acquire(&self, _: &u32, _options: AcquireOptions) -> LimiterFuture<Outcome> {
            use tower_ratelimit::Clock;

            let verdict = Verdict::Denied { retry_after: Duration::from_micros(100) };
            LimiterFuture::ready(Ok(Decision::without_limit(self.0.now(), verdict).into()))
        }
    }

    let service = limited(layer(NeverReady(TokioClock::new())).max_wait(ms(50)), inner());
    let outcomes = call_all(&service, &[CALL]).await;
    let Denied { at, .. } = outcomes[0] else { panic!("{outcomes:?}") };
    assert!(at <= ms(51), "the request waited for {at:?}");
}

#[tokio::test(start_paused = true)]
async fn waiter_for_a_blocked_key_acquires_again_when_the_block_ends() {
    for (max_wait, outcome) in [(500, Served(ms(500))), (499, denied(Duration::ZERO, ms(500)))] {
        for limiter in [memory(Gcra::new(TEN_A_SECOND)), memory(LeakyQueue::new(TEN_A_SECOND))] {
            limiter.block("default", &0, ms(500)).await.unwrap();
            let service = limited(layer(limiter).max_wait(ms(max_wait)), inner());
            assert_eq!(call_all(&service, &[CALL]).await, [outcome]);
        }
    }
    // A start after `max_wait` is denied immediately, whatever the block.
    let limiter = memory(Gcra::new(Quota::per_second(1)).strict());
    let service = limited(layer(limiter.clone()).max_wait(ms(900)), inner());
    assert_eq!(call_all(&service, &[CALL]).await, [Served(Duration::ZERO)]);
    limiter.block("default", &0, ms(500)).await.unwrap();
    // After 100 ms, the start at 1 s is within `max_wait`.
    assert_eq!(call_all(&service, &[CALL]).await, [denied(Duration::ZERO, ms(100))]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Cancellation
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn waiting_response_dropped_unpolled_stays_charged() {
    let limiter = memory(LeakyQueue::new(TEN_A_SECOND));
    let mut service = limited(layer(limiter.clone()), inner());
    assert!(service.call(CALL).await.is_ok());
    let waiting = service.call(CALL);
    assert_eq!(limiter.peek(&0, AcquireOptions::default()).await.unwrap().delay(), ms(200));
    drop(waiting);
    assert_eq!(limiter.peek(&0, AcquireOptions::default()).await.unwrap().delay(), ms(200));
    // The charge drains as if the request had been forwarded.
    sleep(ms(200)).await;
    assert_eq!(limiter.peek(&0, AcquireOptions::default()).await.unwrap().delay(), Duration::ZERO);
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

#[tokio::test(start_paused = true)]
async fn remote_limiter_is_called_again_after_retry_after() {
    let in_100_ms = Verdict::Denied { retry_after: ms(100) };
    let limiter = RemoteLimiter::default();
    limiter.script(0, [in_100_ms, in_100_ms, Verdict::Allowed]);
    // The second acquire schedules a start.
    limiter.script(1, [in_100_ms, Verdict::AllowedAfter(ms(50))]);
    limiter.script(2, [in_100_ms, Verdict::ExceedsLimit]);
    limiter.script(3, [Verdict::Denied { retry_after: ms(301) }]);
    let service = limited(layer(limiter).max_wait(ms(300)), inner());
    let at = |waited: u64, decisions: u32| ms(waited) + DECISION_TIME * decisions;
    let expected = [
        Served(at(200, 1)),
        Served(at(150, 1)),
        Denied { at: at(100, 1), retry_after: None },
        denied(at(0, 1), ms(301)),
    ];
    assert_eq!(call_all(&service, &[0, 1, 2, 3].map(Call::of)).await, expected);
}

/// The time of pending decisions counts towards `max_wait`.
#[tokio::test(start_paused = true)]
async fn max_wait_includes_the_time_of_pending_decisions() {
    let limiter = RemoteLimiter::default();
    limiter.script(0, vec![Verdict::Denied { retry_after: ms(1) }; 1000]);
    let service = limited(layer(limiter).max_wait(ms(100)), inner());
    let outcomes = call_all(&service, &[CALL]).await;
    let Denied { at, .. } = outcomes[0] else { panic!("{outcomes:?}") };
    assert!(at <= ms(100) + DECISION_TIME, "the request waited for {at:?}");
}

/// A custom limiter may hold for a later start. The hold is released if the request is dropped before, and settled
/// otherwise.
#[tokio::test(start_paused = true)]
async fn hold_for_a_later_start_is_released_if_the_request_is_dropped_before() {
    let limiter = RemoteLimiter::default();
    limiter.script(0, [Verdict::AllowedAfter(SECOND)]);
    limiter.script(1, [Verdict::AllowedAfter(SECOND)]);
    let whole = |held: u64, _: Result<&Instant, &BoxError>| held;
    let service = CallService::new(layer(limiter.clone()).cost(|_: &Call| 3).settle(whole).layer(inner()));
    let started = Instant::now();
    let [leaving, staying] = [0, 1].map(|key| call(&service, Call::of(key), started));
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
    let service = limited(layer(limiter.clone()).max_waiters(1), inner());
    // Both acquired while the permit was free.
    assert_eq!(call_all(&service, &[0, 1].map(Call::of)).await, [Served(DECISION_TIME + SECOND); 2]);
    assert!(limiter.settled.lock().unwrap().is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// Several limits
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn several_limits_schedule_a_start_only_while_all_have_usage() {
    let spacing = of_each(LeakyQueue::new(TEN_A_SECOND).max_waiting(100));
    let minute = DynLimit::new(Limit::new("minute", Gcra::new(Quota::per_second(1)).burst(5)));
    let service = limited(layer(several(vec![spacing, minute])).max_wait(2 * SECOND), inner());
    // From 400 ms on the spacing allows every request: a request that waits for the other limit acquires again.
    let mut outcomes = call_all(&service, &[CALL; 8]).await;
    outcomes[5..].sort();
    let mut expected: Vec<_> = [0, 100, 200, 300, 400, 1000, 2000].map(|at| Served(ms(at))).into();
    expected.push(denied(2 * SECOND, SECOND));
    assert_eq!(outcomes, expected);
}
