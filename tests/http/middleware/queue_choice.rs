//! In which queue a request waits if its key has several, and what the result of its ask tells the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt};
use tower_ratelimit::limiter::{Fallback, LimiterFuture, LimitsOfKey, Outcome};
use tower_ratelimit::response::{BoxError, Rejection};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Costs, DynLimit, Error, FixedWindow, InFlight, LeakyQueue, Limit, Limiter, Quota,
    TokenBucket, per_key,
};

use crate::load::{
    Call, CallService, Calls, Remote, SECOND, in_flight, inner, layer, limited, memory, of_all, recorder, several,
};
use crate::support::{NOTIFICATIONS, Task, ms, spawn};

fn ten_seconds(limit: u64) -> FixedWindow {
    FixedWindow::new(Quota::new(limit, 10 * SECOND))
}

fn send(service: &CallService, call: Call) -> Task<Result<Instant, BoxError>> {
    spawn(service.clone().oneshot(call))
}

fn started(calls: &Calls) -> Vec<u32> {
    calls.lock().unwrap().iter().map(|(_, call)| call.number).collect()
}

/// A limiter that fails from a time on.
struct Failing {
    inner: BoxLimiter<u32>,
    fails: Arc<AtomicBool>,
}

impl Limiter<u32> for Failing {
    fn acquire(&self, key: &u32, options: AcquireOptions) -> LimiterFuture<Outcome> {
        if self.fails.load(Relaxed) {
            return LimiterFuture::ready(Err(Error::unavailable("test: the store does not respond")));
        }
        self.inner.acquire(key, options)
    }

    fn limits_of(&self, key: &u32, limits: &mut LimitsOfKey<'_>) {
        self.inner.limits_of(key, limits);
    }
}

/// Two layers wait for one unit. The ask of the older request fails, so the unit is for the other.
#[tokio::test(start_paused = true)]
async fn release_whose_ask_fails_is_passed_on() {
    let _lock = NOTIFICATIONS.lock().await;
    let (limiter, fails) = (memory(InFlight::new(1)), Arc::new(AtomicBool::new(false)));
    let failing = BoxLimiter::new(Failing { inner: limiter.clone(), fails: Arc::clone(&fails) });
    let [older, newer] =
        [failing, limiter.clone()].map(|limiter| in_flight(layer(limiter).max_wait(100 * SECOND), inner()));
    let outcome = limiter.acquire(&0, AcquireOptions::default().keep_guard()).await.expect("memory");
    let held = outcome.held.expect("the unit is free");
    let older = send(&older, Call::of(0));
    sleep(ms(30)).await;
    let newer = send(&newer, Call::of(0));
    sleep(ms(300)).await;
    fails.store(true, Relaxed);
    let released_at = Instant::now();
    drop(held);
    older.await.expect("no panic").expect_err("the limiter failed");
    assert_eq!(newer.await.expect("no panic").expect("a start"), released_at);
}

/// Requests wait for input units, others for the window of all. A new request without input waits behind the latter.
#[tokio::test(start_paused = true)]
async fn request_that_costs_nothing_in_one_queue_waits_in_the_other() {
    let input = Limit::new("input", TokenBucket::new(Quota::per_minute(10))).cost_of("input");
    let limits = vec![DynLimit::new(input), of_all(ten_seconds(4))];
    let limiter = Remote::new(several(limits), ms(20));
    let (calls, inner) = recorder();
    let cost: fn(&Call) -> Costs = |call| Costs::new().add("input", call.cost);
    let service = CallService::new(layer(limiter).max_wait(100 * SECOND).cost(cost).layer(inner));
    let call = |number, cost| send(&service, Call::number(number).cost(cost));
    drop(call(100, 10));
    sleep(ms(100)).await;
    drop(call(101, 10));
    sleep(ms(100)).await;
    for number in 0..9 {
        drop(call(number, 0));
        sleep(ms(30)).await;
    }
    let waits = started(&calls);
    assert_eq!(waits, [100, 0, 1, 2]);
    sleep(9 * SECOND + ms(520)).await;
    for number in 9..20 {
        drop(call(number, 0));
        sleep(ms(5)).await;
    }
    sleep(70 * SECOND).await;
    let started = started(&calls);
    let without_input = started.iter().copied().filter(|number| *number < 100);
    assert!(without_input.eq(0..20), "{started:?}");
}

/// One key has two tiers. A cost above the smaller one is refused for good, and says nothing about other requests.
#[tokio::test(start_paused = true)]
async fn request_that_can_never_start_tells_the_others_nothing() {
    let tier: fn(&u32) -> FixedWindow = |key| ten_seconds(if *key == 0 { 100 } else { 5 });
    let no_sub_key: fn(&u32) = |_| ();
    let limiter = several(vec![DynLimit::new(Limit::new("tiers", per_key(tier)).keyed_by(no_sub_key))]);
    let service = limited(layer(limiter).max_wait(25 * SECOND), inner());
    let call = |key, cost| send(&service, Call::of(key).cost(cost));
    call(0, 100).await.expect("no panic").expect("the window is free");
    let mut calls = Vec::new();
    for (key, cost) in [(0, 85), (1, 10), (0, 20)] {
        sleep(ms(10)).await;
        calls.push(call(key, cost));
    }
    sleep(10 * SECOND).await;
    let _waits = call(0, 100);
    sleep(ms(10)).await;
    let is_exceeding = async |call: Task<Result<Instant, BoxError>>| {
        let error = call.await.expect("no panic").expect_err("a denial");
        match error.downcast_ref::<Rejection>() {
            Some(Rejection::OverLimit(decision)) => decision.exceeds_limit(),
            other => panic!("{other:?}"),
        }
    };
    assert!(is_exceeding(calls.remove(1)).await, "10 is above the tier");
    assert!(!is_exceeding(call(0, 100)).await, "its wait is too long");
}

/// The primary limiter counts by organisation, the secondary one by user, and both name their limit alike.
#[tokio::test(start_paused = true)]
async fn requests_behind_a_fallback_wait_for_the_limit_that_denied_them() {
    let organisation: fn(&u32) -> u32 = |user| user / 10;
    let primary = several(vec![DynLimit::new(Limit::new("api", ten_seconds(2)).keyed_by(organisation))]);
    let secondary = several(vec![DynLimit::new(Limit::new("api", ten_seconds(2)))]);
    let (calls, inner) = recorder();
    let service = limited(layer(Fallback::new(primary, secondary)).max_wait(100 * SECOND), inner);
    for (number, user) in [10, 10, 11, 11, 11, 11, 10].into_iter().enumerate() {
        let number = u32::try_from(number).expect("few");
        drop(send(&service, Call { number, ..Call::of(user) }));
        sleep(ms(10)).await;
    }
    sleep(60 * SECOND).await;
    assert_eq!(started(&calls), [0, 1, 2, 3, 4, 5, 6]);
}

/// A shadow beside a queue that is blocked for a moment rejects none of those that wait.
#[tokio::test(start_paused = true)]
async fn request_waits_through_a_block_beside_a_shadow() {
    let shadow = || DynLimit::new(Limit::new("shadow", ten_seconds(1000)).shadow());
    for is_beside in [false, true] {
        let mut limits = vec![of_all(LeakyQueue::new(Quota::new(6, 60 * SECOND)))];
        limits.extend(is_beside.then(shadow));
        let limiter = several(limits);
        let (calls, inner) = recorder();
        let service = limited(layer(limiter.clone()), inner);
        for number in 0..3 {
            drop(send(&service, Call::number(number)));
            sleep(ms(10)).await;
        }
        sleep(ms(500)).await;
        limiter.block("all", &0, SECOND).await.expect("memory");
        sleep(60 * SECOND).await;
        assert_eq!(started(&calls), [0, 1, 2], "beside a shadow: {is_beside}");
    }
}

/// A function of a user panics for one of the keys that wait. Its request fails. The others start, and no place is lost.
#[tokio::test(start_paused = true)]
async fn key_whose_function_panics_fails_alone() {
    let fails = Arc::new(AtomicBool::new(false));
    let panics = Arc::clone(&fails);
    let tier = move |key: &u32| {
        assert!(*key != 1 || !panics.load(Relaxed), "intended panic");
        ten_seconds(1)
    };
    let limiter = several(vec![DynLimit::new(Limit::new("tiers", per_key(tier)).keyed_by(|_: &u32| ()))]);
    let service = limited(layer(limiter).max_wait(50 * SECOND).max_waiters(3), inner());
    send(&service, Call::of(0)).await.expect("no panic").expect("the window is free");
    for _ in 0..3 {
        let mut calls = Vec::new();
        for key in [0, 1, 2] {
            calls.push(send(&service, Call::of(key)));
            sleep(ms(10)).await;
        }
        fails.store(true, Relaxed);
        let mut results = Vec::new();
        for call in calls {
            results.push(call.await.expect("no panic").is_ok());
        }
        fails.store(false, Relaxed);
        assert_eq!(results, [true, false, true]);
    }
}
