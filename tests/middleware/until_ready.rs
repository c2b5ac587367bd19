//! Waiting without the middleware: `until_ready` and `LimitedStream`, in paused time.

use std::hash::Hash;
use std::time::Duration;

use futures_util::{Stream as _, StreamExt as _, TryStreamExt as _, stream};
use tokio::time::Instant;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Acquisition, LimitedStream, Limiter, Outcome, until_ready};
use tower_ratelimit::{AcquireOptions, Error, FixedWindow, Gcra, LeakyQueue, Memory, Quota, SlidingLog, TokioClock};

const SECOND: Duration = Duration::from_secs(1);

fn memory<Key: Hash + ?Sized, A: Algorithm>(algorithm: A) -> Memory<Key, A, TokioClock> {
    Memory::builder(algorithm).clock(TokioClock::new()).build().expect("a limiter")
}

/// The starts of six concurrent callers, in order.
async fn starts<A: Algorithm>(algorithm: A) -> Vec<u128> {
    let (limiter, started) = (memory(algorithm), Instant::now());
    let callers = (0..6).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let decision = until_ready(&limiter, "a", AcquireOptions::default()).await.expect("a decision");
            assert!(decision.is_allowed());
            started.elapsed().as_millis()
        })
    });
    let mut starts = Vec::new();
    for caller in callers.collect::<Vec<_>>() {
        starts.push(caller.await.expect("no panic"));
    }
    starts.sort_unstable();
    starts
}

#[tokio::test(start_paused = true)]
async fn until_ready_waits_for_each_algorithm_as_it_admits() {
    assert_eq!(starts(Gcra::new(Quota::per_second(10)).burst(2)).await, [0, 0, 100, 200, 300, 400]);
    assert_eq!(starts(FixedWindow::new(Quota::per_second(2))).await, [0, 0, 1000, 1000, 2000, 2000]);
    assert_eq!(starts(SlidingLog::new(Quota::per_second(3))).await, [0, 0, 0, 1000, 1000, 1000]);
    // Two may wait. A caller beyond the queue asks again when the queue has a place.
    assert_eq!(starts(LeakyQueue::new(Quota::per_second(10)).max_waiting(2)).await, [0, 100, 200, 300, 400, 500]);
}

#[tokio::test(start_paused = true)]
async fn until_ready_returns_a_denial_at_once_if_no_start_is_possible() {
    let limiter = memory(FixedWindow::new(Quota::per_second(2)));
    let started = Instant::now();
    let exceeding = until_ready(&limiter, "a", AcquireOptions::cost(3)).await.expect("a decision");
    assert!(exceeding.exceeds_limit());

    let mut brief = AcquireOptions::cost(2);
    brief.max_delay = Some(SECOND / 2);
    assert!(until_ready(&limiter, "a", brief).await.expect("a decision").is_allowed());
    let denied = until_ready(&limiter, "a", brief).await.expect("a decision");
    assert_eq!(denied.retry_after(), Some(SECOND));
    assert_eq!(started.elapsed(), Duration::ZERO);

    let unsupported = until_ready(&limiter, "a", AcquireOptions::default().hold()).await.expect_err("a hold");
    assert!(unsupported.is_unsupported());
}

#[tokio::test(start_paused = true)]
async fn until_ready_asks_again_soon_while_a_cost_is_held() {
    let limiter = memory(FixedWindow::new(Quota::per_hour(1)));
    let Acquisition::Ready(Ok(Outcome { held: Some(held), .. })) = limiter.hold("a", AcquireOptions::default()) else {
        panic!("the limit is unused")
    };
    let (waiting, started) = (limiter.clone(), Instant::now());
    let waiter = tokio::spawn(async move { until_ready(&waiting, "a", AcquireOptions::default()).await });
    tokio::time::sleep(Duration::from_millis(250)).await;
    held.release().await.expect("released");
    assert!(waiter.await.expect("no panic").expect("a decision").is_allowed());
    assert_eq!(started.elapsed(), Duration::from_millis(300));
}

#[test]
fn until_ready_without_a_timer_is_a_configuration_error() {
    let limiter = Memory::new(Gcra::new(Quota::per_hour(1)).burst(1));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        assert!(until_ready(&limiter, "a", AcquireOptions::default()).await.is_ok());
        assert!(until_ready(&limiter, "a", AcquireOptions::default()).await.expect_err("no timer").is_config());
    });
}

#[tokio::test(start_paused = true)]
async fn limited_stream_yields_all_items_in_order_at_the_rate() {
    let limiter = memory(Gcra::new(Quota::per_second(10)).burst(1));
    let started = Instant::now();
    let mut items = LimitedStream::new(stream::iter([1, 2, 3]), limiter.clone(), 7_u64).cost(1);
    assert_eq!(items.size_hint(), (3, Some(3)));
    let mut seen = Vec::new();
    while let Some(item) = items.next().await {
        seen.push((item.expect("an item"), started.elapsed().as_millis()));
    }
    assert_eq!(seen, [(1, 0), (2, 100), (3, 200)]);

    let exceeding = LimitedStream::new(stream::iter([1]), limiter, 7_u64).cost(2);
    let error: Error = exceeding.try_collect::<Vec<_>>().await.expect_err("a cost above the burst");
    assert!(error.is_config(), "{error}");
}
