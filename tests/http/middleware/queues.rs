//! Queues of waiting requests: order, bounds, cancellation at every state, and shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, advance, sleep, sleep_until, timeout};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Held, LimiterFuture, Outcome};
use tower_ratelimit::response::{RejectWithError, Rejection};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, DynLimit, FixedWindow, Gcra, InFlight, Limit, Limiter, Memory, Quota, RateLimitLayer,
    SlidingLog, TokioClock, Verdict,
};

use crate::load::{Call, CallService, Counts, SECOND, held, in_flight, inner, layer, limited, memory, recorder};
use crate::random::Random;
use crate::support::{
    KeyFn, NOTIFICATIONS, Pool, RemoteLimiter, StubLimiter, TestRequest, boxed, decision, key_of, spawn,
};

fn window(limit: u64, period: Duration) -> BoxLimiter<u32> {
    memory(FixedWindow::new(Quota::new(limit, period)))
}

fn denied(retry_after: Duration) -> StubLimiter {
    StubLimiter(Ok(decision(Verdict::Denied { retry_after })))
}

/// Lets the drivers run.
async fn run() {
    for _ in 0..5 {
        yield_now().await;
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Order and bounds
// ---------------------------------------------------------------------------------------------------------------------

/// The oldest waiter gives its place to a new one.
#[tokio::test(start_paused = true)]
async fn newest_first_rejects_the_oldest_waiter_when_the_queue_is_full() {
    let (calls, inner) = recorder();
    let layer = layer(window(1, SECOND)).max_wait(10 * SECOND).newest_first();
    let service = limited(layer.max_waiters(2).max_waiters_per_key(2), inner);
    let sent: Vec<_> = (0..5).map(|number| spawn(service.clone().oneshot(Call::number(number)))).collect();
    let mut served = Vec::new();
    for call in sent {
        served.push(call.await.unwrap().is_ok());
    }
    assert_eq!(served, [true, false, false, true, true]);
    let order: Vec<_> = calls.lock().unwrap().iter().map(|(_, call)| call.number).collect();
    assert_eq!(order, [0, 4, 3]);
}

/// The law of places. The model counts the waiting requests of each key: a key has at most its bound, by default half of
/// all places and at most 1000; and the last tenth of the places is for keys that have no waiting request.
#[tokio::test(start_paused = true)]
async fn one_key_leaves_places_to_others() {
    let mut random = Random::new(1);
    let mut next = move |below| random.index(below);
    let mut outcomes = [0, 0];
    for round in 0..120 {
        let max_waiters = [1, 2, 3, 10, 25, 100][next(6)];
        let set_per_key = [None, Some(1 + next(max_waiters + 2))][next(2)];
        let per_key = set_per_key.unwrap_or_else(|| max_waiters.div_ceil(2));
        let kept = (max_waiters / 10).min(max_waiters.saturating_sub(per_key));
        let layer = layer(window(1, SECOND)).max_wait(10_000 * SECOND);
        // The order of the settings does not matter.
        let layer = match (set_per_key, next(2)) {
            (None, _) => layer.max_waiters(max_waiters),
            (Some(per_key), 0) => layer.max_waiters_per_key(per_key).max_waiters(max_waiters),
            (Some(per_key), _) => layer.max_waiters(max_waiters).max_waiters_per_key(per_key),
        };
        // All services of a layer share the places.
        let mut services = [limited(layer.clone(), inner()), limited(layer, inner())];
        let keys = 2 + next(30);
        for key in 0..keys {
            assert!(
                services[0].call(Call::of(u32::try_from(key).expect("few"))).await.is_ok(),
                "the first request of the second"
            );
        }
        let mut waiting: Vec<Vec<task::Spawn<_>>> = (0..keys).map(|_| Vec::new()).collect();
        for step in 0..4 * max_waiters {
            // The first key asks for as many places as all others together.
            let key = if next(2) == 0 { 0 } else { next(keys) };
            let (of_key, of_all) = (waiting[key].len(), waiting.iter().map(Vec::len).sum::<usize>());
            if next(5) == 0 && of_key > 0 {
                drop(waiting[key].swap_remove(next(of_key)));
                continue;
            }
            let may_wait = of_key < per_key && of_all < if of_key == 0 { max_waiters } else { max_waiters - kept };
            let mut call = task::spawn(services[next(2)].call(Call::of(u32::try_from(key).expect("few"))));
            let waits = call.poll().is_pending();
            let context =
                format!("round {round}, step {step}: {max_waiters} and {set_per_key:?}, {of_key} of {of_all} wait");
            assert_eq!(waits, may_wait, "{context}");
            outcomes[usize::from(waits)] += 1;
            if waits {
                waiting[key].push(call);
            }
        }
    }
    assert!(outcomes.iter().all(|&count| count > 1000), "{outcomes:?}: the test proves nothing");
}

/// With the defaults one key takes a tenth of the places, and ten keys leave a tenth to others.
#[tokio::test(start_paused = true)]
async fn ten_keys_do_not_take_all_places() {
    let mut service = limited(layer(window(1, SECOND)).max_wait(10_000 * SECOND), inner());
    let mut waiting = Vec::new();
    let mut places = Vec::new();
    for key in 0..12_u32 {
        assert!(service.call(Call::of(key)).await.is_ok());
        let before = waiting.len();
        for _ in 0..1100 {
            let mut call = task::spawn(service.call(Call::of(key)));
            if call.poll().is_pending() {
                waiting.push(call);
            }
        }
        places.push(waiting.len() - before);
    }
    assert_eq!(places, [1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1, 1, 1]);
}

/// A start of one cost is not used by a request of another cost.
#[tokio::test(start_paused = true)]
async fn start_goes_to_a_request_of_the_same_cost_only() {
    let limiter = memory(Gcra::new(Quota::per_second(10)).burst(10));
    let (calls, inner) = recorder();
    let service = limited(layer(limiter.clone()).max_wait(10 * SECOND), inner);
    let call = |cost| spawn(service.clone().oneshot(Call::of(0).cost(cost)));
    assert!(call(10).await.unwrap().is_ok());
    let (leaving, staying) = (call(5), call(1));
    run().await;
    leaving.abort();
    assert!(staying.await.unwrap().is_ok());
    let costs: Vec<_> = calls.lock().unwrap().iter().map(|(_, call)| call.cost).collect();
    assert_eq!(costs, [10, 1]);
    // The start for five at 500 ms was lost: 600 ms have passed, and 16 of 10 + 6 are used.
    let peeked = limiter.peek(&0, AcquireOptions::default()).try_ready().expect("memory").expect("a decision");
    assert_eq!(peeked.remaining(), Some(0));
}

// ---------------------------------------------------------------------------------------------------------------------
// Cancellation
// ---------------------------------------------------------------------------------------------------------------------

/// A request leaves before the ask, during the ask, after the admission, or after the hand-over. The next request
/// starts in its place.
#[tokio::test(start_paused = true)]
async fn start_of_a_request_that_left_goes_to_the_next() {
    for stage in ["before the ask", "during the ask", "after the admission", "after the hand-over"] {
        let (limiter, pool) = (RemoteLimiter::default(), Pool::new(9));
        let layer = RateLimitLayer::new(key_of as KeyFn, BoxLimiter::new(limiter.clone())).responder(RejectWithError);
        let mut service = layer.max_wait(60 * SECOND).layer(pool.service());
        let mut first = task::spawn(service.ready().await.unwrap().call(TestRequest::new("a")));
        limiter.next_acquire().complete(denied(SECOND));
        assert_pending!(first.poll());
        let mut second = task::spawn(service.ready().await.unwrap().call(TestRequest::new("a")));
        assert_pending!(second.poll());
        run().await;

        let mut first = Some(first);
        if stage == "before the ask" {
            first = None;
        }
        advance(SECOND).await;
        run().await;
        let ask = limiter.next_acquire();
        if stage == "during the ask" {
            first = None;
        }
        let delay = if stage == "after the admission" { SECOND } else { Duration::ZERO };
        let verdict = if delay.is_zero() { Verdict::Allowed } else { Verdict::AllowedAfter(delay) };
        ask.complete(StubLimiter(Ok(decision(verdict))));
        run().await;
        if stage == "after the admission" {
            first = None;
            advance(delay).await;
            run().await;
        }
        if stage == "after the hand-over" {
            assert!(first.as_ref().is_some_and(task::Spawn::is_woken), "the start was handed over");
            first = None;
            run().await;
        }
        assert!(first.is_none());
        assert!(second.is_woken(), "{stage}");
        assert_ready_ok!(second.poll());
        assert_eq!(pool.calls().len(), 1, "{stage}");
    }
}

/// A held cost for which no request is left is released.
#[tokio::test(start_paused = true)]
async fn hold_of_a_request_that_left_last_is_released() {
    for stage in ["before the ask", "after the hand-over"] {
        let one_a_minute = FixedWindow::new(Quota::per_minute(1));
        let limiter = Memory::builder(one_a_minute).clock(TokioClock::new()).build().expect("a limit");
        let (calls, inner) = recorder();
        let mut service = held(layer(limiter.clone()).max_wait(10 * SECOND), inner);
        let outside = limiter.hold(&0, AcquireOptions::default()).await.unwrap().held.expect("one is free");
        let mut waiting = task::spawn(service.ready().await.unwrap().call(Call::of(0)));
        assert_pending!(waiting.poll());
        run().await;
        outside.release().await.unwrap();
        if stage == "after the hand-over" {
            sleep(SECOND).await;
            assert!(waiting.is_woken());
            assert_eq!(limiter.usage()[0].held, 1);
        }
        drop(waiting);
        sleep(SECOND).await;
        assert_eq!(limiter.usage()[0].held, 0, "{stage}");
        let free = limiter.peek(&0, AcquireOptions::default()).await.unwrap();
        assert_eq!(free.remaining(), Some(1), "{stage}");
        assert_eq!(*calls.lock().unwrap(), []);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Releases
// ---------------------------------------------------------------------------------------------------------------------

/// A limiter of requests in flight: it holds its only slot, and every end of a hold releases the slot.
#[derive(Clone, Default)]
struct OneSlot(Arc<AtomicBool>);

impl Limiter<u32> for OneSlot {
    fn acquire(&self, _key: &u32, options: AcquireOptions) -> LimiterFuture<Outcome> {
        assert!(options.hold);
        if self.0.swap(true, Ordering::SeqCst) {
            let denied = decision(Verdict::Denied { retry_after: 60 * SECOND }).with_estimate(true);
            return LimiterFuture::ready(Ok(denied.into()));
        }
        let slot = self.clone();
        let held = Held::new(1, move |_| {
            slot.0.store(false, Ordering::SeqCst);
            LimiterFuture::ready(Ok(()))
        });
        LimiterFuture::ready(Ok(Outcome::new(decision(Verdict::Allowed), Some(held))))
    }
}

/// Five requests wait for one slot. Each runs for 700 ms, or its client leaves in the meantime.
#[tokio::test(start_paused = true)]
async fn waiter_starts_within_10_ms_of_a_release() {
    let run_time = Duration::from_millis(700);
    for client_leaves in [false, true] {
        let (calls, inner) = recorder();
        let service = held(layer(OneSlot::default()).max_wait(60 * SECOND), inner);
        let call = Call::of(0).work(if client_leaves { 10 * run_time } else { run_time });
        let sent: Vec<_> = (0..5).map(|_| spawn(service.clone().oneshot(call))).collect();
        for (index, call) in sent.iter().enumerate() {
            let started = loop {
                run().await;
                if let Some((start, _)) = calls.lock().unwrap().get(index).copied() {
                    break start;
                }
                sleep(Duration::from_millis(1)).await;
            };
            sleep_until(started + run_time).await;
            if client_leaves {
                call.abort();
            }
        }
        sleep(SECOND).await;
        let calls = calls.lock().unwrap();
        assert_eq!(calls.len(), 5);
        for pair in calls.windows(2) {
            let after_release = pair[1].0 - (pair[0].0 + run_time);
            assert!(after_release < Duration::from_millis(10), "{after_release:?} after the release");
        }
    }
}

/// Waiting requests start as soon as an operation gives them capacity, in order. A start that is booked
/// already stays: the last request of a bucket waits for it.
#[tokio::test(start_paused = true)]
async fn waiters_start_at_once_after_a_reset_an_unblock_and_a_lower_usage() {
    type Limits = Memory<u32, Vec<DynLimit<u32>>>;
    type Operation = fn(&Limits) -> LimiterFuture<()>;
    let operations: [(&str, Operation); 3] = [
        ("reset", |limiter| limiter.reset(&0)),
        ("unblock", |limiter| limiter.block("limit", &0, Duration::ZERO)),
        ("set usage", |limiter| limiter.set_usage("limit", &0, 0)),
    ];
    let bucket = || DynLimit::new(Limit::new("limit", Gcra::new(Quota::per_hour(2)).burst(2)));
    let window = || DynLimit::new(Limit::new("limit", FixedWindow::new(Quota::per_hour(2))));
    for (kind, limit) in [("bucket", bucket as fn() -> DynLimit<u32>), ("window", window)] {
        for (operation, run_operation) in operations {
            let limiter: Limits = Memory::builder(vec![limit()]).clock(TokioClock::new()).build().expect("a limit");
            if operation == "unblock" {
                limiter.block("limit", &0, 3600 * SECOND).await.expect("memory");
            } else {
                limiter.set_usage("limit", &0, 2).await.expect("memory");
            }
            let service = limited(layer(limiter.clone()).max_wait(7200 * SECOND), inner());
            let calls = [1, 2].map(|number| spawn(service.clone().oneshot(Call::number(number))));
            // Between two of the queue's own asks.
            sleep(Duration::from_millis(1300)).await;
            let before = Instant::now();
            run_operation(&limiter).await.expect("memory");
            let served = if kind == "bucket" { 1 } else { 2 };
            for call in calls.into_iter().take(served) {
                assert!(call.await.unwrap().is_ok());
                assert!(before.elapsed() < Duration::from_millis(10), "{kind}, {operation}: {:?}", before.elapsed());
            }
        }
    }
}

/// Limits that admit all waiting requests replace the limit for which they wait: whatever the new limits are, the requests
/// start at once, in order of arrival.
#[tokio::test(start_paused = true)]
async fn waiters_start_at_once_whatever_replaces_their_limit() {
    type Limits = Vec<DynLimit<u32>>;
    fn limit(name: &'static str, algorithm: impl Algorithm) -> DynLimit<u32> {
        DynLimit::new(Limit::new(name, algorithm).keyed_by(|_: &u32| ()))
    }
    fn window(per_hour: u64) -> DynLimit<u32> {
        limit("limit", FixedWindow::new(Quota::per_hour(per_hour)))
    }
    fn bucket(name: &'static str, burst: u64) -> DynLimit<u32> {
        limit(name, Gcra::new(Quota::per_hour(burst)).burst(burst))
    }
    fn keeping(units: u64) -> DynLimit<u32> {
        let limit = Limit::new("limit", FixedWindow::new(Quota::per_hour(100))).keyed_by(|_: &u32| ());
        DynLimit::new(limit.keep_free_by(move |_: &u32| units))
    }
    let _lock = NOTIFICATIONS.lock().await;
    let before: [fn() -> DynLimit<u32>; 3] = [|| bucket("limit", 2), || window(2), || limit("limit", InFlight::new(2))];
    let replacements: [fn() -> Limits; 6] = [
        || vec![limit("limit", SlidingLog::new(Quota::per_hour(100)))],
        || vec![bucket("limit", 100)],
        || vec![bucket("other", 100)],
        || vec![limit("other", InFlight::new(100))],
        || vec![window(1000), bucket("stricter", 100)],
        || vec![keeping(7)],
    ];
    for (kind, first) in before.into_iter().enumerate() {
        for (number, replacement) in replacements.into_iter().enumerate() {
            let limiter: Memory<u32, Limits> =
                Memory::builder(vec![first()]).clock(TokioClock::new()).build().expect("a limit");
            let (calls, inner) = recorder();
            let service = in_flight(layer(limiter.clone()).max_wait(1_000_000 * SECOND), inner);
            let options = || AcquireOptions::default().keep_guard();
            let used = [limiter.acquire(&0, options()).await, limiter.acquire(&0, options()).await];
            let sent: Vec<_> = (0..20).map(|number| spawn(service.clone().oneshot(Call::number(number)))).collect();
            // Between two of the queue's own asks.
            sleep(Duration::from_millis(1300)).await;
            assert!(calls.lock().unwrap().is_empty());
            let before = Instant::now();
            limiter.replace(replacement()).expect("valid limits");
            for call in sent {
                assert!(call.await.unwrap().is_ok());
            }
            assert!(before.elapsed() < Duration::from_millis(10), "{kind}, {number}: {:?}", before.elapsed());
            assert!(calls.lock().unwrap().is_sorted_by_key(|(_, call)| call.number), "{kind}, {number}");
            drop(used);
        }
    }
}

/// A limiter that names no limits, denies a request until a time, and then returns a guard that the layer does not keep.
#[derive(Clone)]
struct GuardIsNotKept(Instant);

impl Limiter<u32> for GuardIsNotKept {
    fn acquire(&self, _key: &u32, _options: AcquireOptions) -> LimiterFuture<Outcome> {
        let wait = self.0.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            return LimiterFuture::ready(Ok(decision(Verdict::Denied { retry_after: wait }).into()));
        }
        let guard = Held::until_end(1, || LimiterFuture::ready(Ok(())));
        LimiterFuture::ready(Ok(Outcome::new(decision(Verdict::Allowed), Some(guard))))
    }
}

/// The layer releases the guard, and the release wakes the queue of the request: not under the lock of the queue. In a
/// thread, so that a deadlock fails the test.
#[test]
fn guard_that_is_not_kept_ends_the_wait_with_an_error() {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(boxed(async move {
            let limiter = GuardIsNotKept(Instant::now() + SECOND);
            let service = held(layer(limiter).max_wait(10 * SECOND), inner());
            let error = service.oneshot(Call::of(0)).await.expect_err("the guard is not kept");
            let rejected = error.downcast_ref::<Rejection>().expect("the layer's error");
            sender.send(rejected.is_misconfigured()).expect("the test waits");
        }));
    });
    assert_eq!(receiver.recv_timeout(60 * SECOND), Ok(true));
}

// ---------------------------------------------------------------------------------------------------------------------
// Shutdown
// ---------------------------------------------------------------------------------------------------------------------

/// The runtime of the driver shuts down. A request in another runtime is served.
#[test]
fn waiter_is_served_after_the_runtime_of_the_driver_has_shut_down() {
    let limiter = Memory::new(FixedWindow::new(Quota::new(1, Duration::from_millis(200))));
    let service = limited(layer(limiter).max_wait(10 * SECOND), inner());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let first = runtime();
    let waiting = first.spawn({
        let service = service.clone();
        boxed(async move {
            assert!(service.clone().oneshot(Call::of(0)).await.is_ok());
            service.oneshot(Call::of(0)).await
        })
    });
    first.block_on(run());
    let second = runtime();
    let other = second.spawn(boxed(service.clone().oneshot(Call::of(0))));
    second.block_on(run());
    drop(first);
    drop(waiting);
    assert!(second.block_on(async { timeout(20 * SECOND, other).await }).expect("no hang").unwrap().is_ok());
}

/// Nothing keeps the limiter when the service and its requests are gone.
#[tokio::test(start_paused = true)]
async fn driver_ends_with_the_service() {
    let limiter = Arc::new(window(1, 60 * SECOND));
    let service = limited(layer(Arc::clone(&limiter)).max_wait(100 * SECOND), inner());
    assert!(service.clone().oneshot(Call::of(0)).await.is_ok());
    let mut waiting = task::spawn(service.clone().oneshot(Call::of(0)));
    assert_pending!(waiting.poll());
    run().await;
    drop((waiting, service));
    run().await;
    assert_eq!(Arc::strong_count(&limiter), 1);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "the driver has ended");
}

// ---------------------------------------------------------------------------------------------------------------------
// Random joins, leaves and settlements on several threads
// ---------------------------------------------------------------------------------------------------------------------

/// Requests hold a slot of a few while they run, and leave at random times. The model: at most `SLOTS` requests run at a
/// time, each request ends once, each patient one is served, and nothing is held or waits at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_joins_and_leaves_lose_no_start() {
    const SLOTS: usize = 3;
    let limiter = Memory::new(FixedWindow::new(Quota::new(SLOTS as u64, Duration::from_secs(3600))));
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let starts = Arc::new([const { AtomicBool::new(false) }; 600]);
    let inner = {
        let (running, most, starts) = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&starts));
        CallService::new(service_fn(move |call: Call| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            starts[call.number as usize].store(true, Ordering::SeqCst);
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(call.work).await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(Instant::now())
            }
        }))
    };
    let counts = Arc::new(Counts::default());
    let layer = counts.of(layer(limiter.clone()).max_wait(60 * SECOND));
    let service = held(layer.clone(), inner);
    let mut random = Random::new(1);
    let mut next = move |below| random.below(below);
    let mut calls = Vec::new();
    for index in 0..600 {
        let (micros, client_timeout) = (next(1500), Duration::from_micros(next(20_000)));
        let mut call = boxed(service.clone().oneshot(Call::number(index).work(Duration::from_micros(micros))));
        let starts = Arc::clone(&starts);
        let is_patient = index % 3 == 0;
        calls.push(spawn(async move {
            if is_patient {
                return call.await.is_ok();
            }
            match timeout(client_timeout, &mut call).await {
                Ok(result) => result.is_ok(),
                // A request that is dropped in the inner service is charged its whole cost, so it leaves before that.
                Err(_) => !starts[index as usize].load(Ordering::SeqCst) || call.await.is_ok(),
            }
        }));
        if next(4) == 0 {
            sleep(Duration::from_micros(next(800))).await;
        }
    }
    for call in calls {
        assert!(call.await.unwrap(), "a request that stays is served");
    }
    let [served, rejected, left] =
        [&counts.served, &counts.rejected, &counts.left].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(rejected, 0);
    assert!(served > 100 && left > 50, "{served} served, {left} left: the test proves nothing");
    assert!(most.load(Ordering::SeqCst) <= SLOTS);
    assert_eq!(limiter.usage()[0].held, 0);
    let described = format!("{layer:?}");
    assert!(described.contains("waiting: 0"), "{described}");
}
