//! Laws of the rules of a queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::key::Global;
use tower_ratelimit::observe::{Event, WaitEnd};
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    BoxLimiter, FixedWindow, Gcra, LeakyQueue, Limit, Limiter, Memory, Quota, RateLimitLayer, TokioClock,
};

use crate::fairness::{served_per_tenant, tenants_below_one_capacity};
use crate::goodput::{Remote, open_loop, per_span, recorder};
use crate::support::{Task, boxed, ms, spawn};

const SECOND: Duration = Duration::from_secs(1);

fn memory(algorithm: impl Algorithm) -> Memory<(), impl Algorithm> {
    Memory::builder(algorithm).clock(TokioClock::new()).build().expect("a limit")
}

/// What became of the requests of a layer.
#[derive(Default)]
struct Counts {
    refused: AtomicUsize,
    rejected: AtomicUsize,
}

impl Counts {
    fn observe(&self, event: &Event<'_>) {
        let count = match event {
            Event::WaitRefused => &self.refused,
            Event::WaitEnded { end: WaitEnd::Rejected, .. } => &self.rejected,
            _ => return,
        };
        count.fetch_add(1, Relaxed);
    }
}

/// The process with the short link does not take every start.
#[tokio::test(start_paused = true)]
async fn processes_with_unequal_links_share_a_bucket() {
    let shared = memory(Gcra::new(Quota::per_second(50)).burst(1));
    let mut loads = Vec::new();
    for delay in [Duration::from_micros(200), ms(25), ms(25)] {
        let (calls, inner) = recorder();
        let layer = RateLimitLayer::new(Global, Remote::new(shared.clone(), delay)).responder(RejectWithError);
        let service = layer.max_wait(5 * SECOND).layer(inner);
        loads.push((calls, spawn(open_loop(service, 40, 100 * SECOND, 20 * SECOND, |_| ()))));
    }
    let mut served = Vec::new();
    for (calls, load) in loads {
        load.await.expect("the load");
        served.push(calls.lock().unwrap().len());
    }
    assert!(served.iter().all(|&served| served >= 200), "{served:?} of 1000");
    assert!(served.iter().sum::<usize>() >= 950, "{served:?} of 1000");
}

/// Three tenants (40/s) with twenty workers each, below one capacity (50/s) that is 25 ms away. Without the rule the delays
/// of asks decide, which are random: in two of three runs one tenant receives four times as much as the others.
#[tokio::test(start_paused = true)]
async fn tenants_with_many_workers_receive_equal_parts() {
    for _ in 0..5 {
        let [of_tenant, of_all] = [40, 50].map(|rate| Gcra::new(Quota::per_second(rate)).burst(5));
        let limiter = Remote::new(tenants_below_one_capacity(of_tenant, of_all, true), ms(25));
        let served = served_per_tenant(limiter, &[20; 3], 3 * SECOND, ms(20)).await;
        assert!(served.iter().all(|served| (400..=600).contains(served)), "{served:?} of 1500");
    }
}

/// Users of one organisation that all give up after a second, over a link of 25 ms: the first in order are about to leave.
#[tokio::test(start_paused = true)]
async fn users_that_give_up_lose_no_starts() {
    let user = Limit::new("user", Gcra::new(Quota::per_second(5)));
    let organisation = Limit::new("organisation", Gcra::new(Quota::per_second(50))).keyed_by(|_: &u32| ());
    let limiter = Memory::builder((user, organisation)).clock(TokioClock::new()).build().expect("limits");
    let limiter = Remote::new(BoxLimiter::new(limiter), ms(25));
    let (calls, inner) = recorder();
    let layer = RateLimitLayer::new(|user: &u32| Some(*user), limiter).responder(RejectWithError);
    let (service, started, time) = (layer.max_wait(10 * SECOND).layer(inner), Instant::now(), 12 * SECOND);
    open_loop(service, 75, SECOND, time, |index| index).await;
    let spans = per_span(&calls, started, 3 * SECOND, time);
    assert!(spans.iter().all(|&served| served >= 135), "{spans:?} of 150");
}

/// 15 requests a second, of which 10 can start.
#[tokio::test(start_paused = true)]
async fn request_that_cannot_start_in_time_is_refused_at_once() {
    let counts = Arc::new(Counts::default());
    let observed = Arc::clone(&counts);
    let layer = RateLimitLayer::new(Global, memory(Gcra::new(Quota::per_second(10)).burst(1)));
    let layer = layer.responder(RejectWithError).max_wait(2 * SECOND);
    let service = layer.observe(move |event: &Event<'_>| observed.observe(event)).layer(recorder().1);
    open_loop(service, 15, 100 * SECOND, 20 * SECOND, |_| ()).await;
    let (refused, rejected) = (counts.refused.load(Relaxed), counts.rejected.load(Relaxed));
    assert!(refused >= 75 && rejected <= 2, "{refused} at once, {rejected} late");
}

/// Two processes share a bucket, and each receives half.
#[tokio::test(start_paused = true)]
async fn process_that_receives_a_part_refuses_by_its_part() {
    let shared = memory(Gcra::new(Quota::per_second(20)).burst(1));
    let (counts, mut loads) = (Arc::new(Counts::default()), tokio::task::JoinSet::new());
    for _ in 0..2 {
        let observed = Arc::clone(&counts);
        let layer = RateLimitLayer::new(Global, Remote::new(shared.clone(), ms(2))).responder(RejectWithError);
        let layer = layer.max_wait(2 * SECOND).observe(move |event: &Event<'_>| observed.observe(event));
        loads.spawn(boxed(open_loop(layer.layer(recorder().1), 20, 100 * SECOND, 30 * SECOND, |_| ())));
    }
    while loads.join_next().await.is_some() {}
    let (refused, rejected) = (counts.refused.load(Relaxed), counts.rejected.load(Relaxed));
    // 600 of 1200 requests start.
    assert!(rejected <= refused, "{refused} at once, {rejected} late");
}

/// Runs so many processes that share a limit over a link, each with a load. Returns the requests that start, and the asks.
async fn starts_and_asks(
    limit: Memory<(), impl Algorithm>,
    (processes, link): (usize, Duration),
    max_wait: Duration,
    (per_second, time): (u32, Duration),
) -> (usize, usize) {
    let (asks, mut loads) = (Arc::new(AtomicUsize::new(0)), Vec::new());
    for _ in 0..processes {
        let (calls, inner) = recorder();
        let observed = Arc::clone(&asks);
        let layer = RateLimitLayer::new(Global, Remote::new(limit.clone(), link)).responder(RejectWithError);
        let layer = layer.max_wait(max_wait).observe(move |event: &Event<'_>| {
            observed.fetch_add(usize::from(matches!(event, Event::WaitAsked { .. })), Relaxed);
        });
        loads.push((calls, spawn(open_loop(layer.layer(inner), per_second, 100 * SECOND, time, |_| ()))));
    }
    let mut started = 0;
    for (calls, load) in loads {
        load.await.expect("the load");
        started += calls.lock().unwrap().len();
    }
    (started, asks.load(Relaxed))
}

/// Eight processes ask for the starts of one bucket, each of which only one can receive.
#[tokio::test(start_paused = true)]
async fn processes_ask_about_as_often_as_a_limit_admits() {
    let shared = memory(Gcra::new(Quota::per_second(500)).burst(1));
    let (started, asks) = starts_and_asks(shared, (8, ms(25)), 5 * SECOND, (93, 6 * SECOND)).await;
    assert!(started >= 2_850 && asks <= 4 * started, "{started} of 3000, {asks} asks");
}

/// The end of a hold makes the time of the next start unknown. The queue asks after each release, and not in vain again and
/// again.
#[tokio::test(start_paused = true)]
async fn held_units_are_asked_for_seldom() {
    let limiter = Remote::new(memory(FixedWindow::new(Quota::per_hour(10))), Duration::from_micros(200));
    let asks = Arc::new(AtomicUsize::new(0));
    let observed = Arc::clone(&asks);
    let layer = RateLimitLayer::new(Global, limiter).responder(RejectWithError).max_wait(SECOND);
    let layer = layer.settle(|_: u64, _: Result<&(), &BoxError>| 0).observe(move |event: &Event<'_>| {
        observed.fetch_add(usize::from(matches!(event, Event::WaitAsked { .. })), Relaxed);
    });
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);
    let service = layer.layer(service_fn(move |()| {
        counted.fetch_add(1, Relaxed);
        async {
            sleep(ms(200)).await;
            Ok::<_, BoxError>(())
        }
    }));
    open_loop(service, 75, 100 * SECOND, 10 * SECOND, |_| ()).await;
    let (asks, served) = (asks.load(Relaxed), served.load(Relaxed));
    assert!(served >= 475 && asks <= 3 * served, "{served} of 500, {asks} asks");
}

/// A queue asks again within a second, however far its first forecast is: another process may have reset the key.
#[tokio::test(start_paused = true)]
async fn reset_by_another_process_is_seen_within_a_second() {
    let limiter = memory(FixedWindow::new(Quota::per_hour(1)));
    let layer = RateLimitLayer::new(Global, Remote::new(limiter.clone(), ms(1))).responder(RejectWithError);
    let service = layer.max_wait(10_000 * SECOND).layer(recorder().1);
    service.clone().oneshot(()).await.expect("the first");
    let waiting = spawn(service.oneshot(()));
    sleep(ms(10)).await;
    // The queue does not know of an operation on the limiter behind its link.
    limiter.reset(&()).await.expect("a limiter in memory");
    let reset_at = Instant::now();
    waiting.await.expect("no panic").expect("a start");
    assert!(reset_at.elapsed() <= ms(1010), "{:?}", reset_at.elapsed());
}

/// The start of a request that leaves is used by the next one of its key.
#[tokio::test(start_paused = true)]
async fn request_that_leaves_costs_its_key_nothing() {
    let limiter = memory(Gcra::new(Quota::per_second(10)).burst(1));
    let (calls, inner) = recorder();
    let service = RateLimitLayer::new(Global, limiter).responder(RejectWithError).max_wait(10 * SECOND).layer(inner);
    service.clone().oneshot(()).await.expect("the first");
    let started = Instant::now();
    let waiting: Vec<_> = (0..20).map(|_| spawn(service.clone().oneshot(()))).collect();
    sleep(ms(50)).await;
    waiting.iter().step_by(2).for_each(Task::abort);
    for call in waiting.into_iter().skip(1).step_by(2) {
        call.await.expect("no panic").expect("a start");
    }
    assert_eq!(started.elapsed(), ms(1000), "ten starts, one each 100 ms");
    assert_eq!(calls.lock().unwrap().len(), 11);
}

/// Two processes share a `LeakyQueue` with one place. A denial says when a place is free, whatever start the ask accepts.
#[tokio::test(start_paused = true)]
async fn full_leaky_queue_is_asked_when_a_place_is_free() {
    let limit = memory(LeakyQueue::new(Quota::per_second(5)).max_waiting(1));
    let (started, asks) = starts_and_asks(limit, (2, ms(1)), 2 * SECOND, (10, 20 * SECOND)).await;
    assert!(started >= 95 && asks <= 4 * started, "{started} of 100, {asks} asks");
}
