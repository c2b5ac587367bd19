//! Waiting without the middleware: `until_ready`, `LimitedStream` and `LimitedSink`, in paused time. `traces` has
//! the starts of callers of one key.

use std::future::poll_fn;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Sink, SinkExt, Stream, StreamExt as _, TryStreamExt as _, sink, stream};
use tokio::time::Instant;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Chained, LimiterFuture, Outcome};
use tower_ratelimit::waiting::{LimitedSink, LimitedSinkError, LimitedStream, until_ready};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock as _, Decision, Error, FixedWindow, Gcra, Limiter, ManualClock, Memory, Quota,
    TokioClock, Verdict,
};

use crate::load::{of_all, several};
use crate::support::{self, boxed, spawn};

const SECOND: Duration = Duration::from_secs(1);

fn memory<Key: Hash + ?Sized + 'static>(algorithm: impl Algorithm) -> BoxLimiter<Key> {
    support::memory(algorithm, TokioClock::new())
}

#[tokio::test(start_paused = true)]
async fn until_ready_returns_a_denial_at_once_if_no_start_is_possible() {
    let limiter = memory(FixedWindow::new(Quota::per_second(2)));
    let started = Instant::now();
    let exceeding = until_ready(&limiter, "a", AcquireOptions::cost(3)).await.expect("a decision");
    assert!(exceeding.exceeds_limit());

    let brief = AcquireOptions::cost(2).max_delay(SECOND / 2);
    assert!(until_ready(&limiter, "a", brief).await.expect("a decision").is_allowed());
    let denied = until_ready(&limiter, "a", brief).await.expect("a decision");
    assert_eq!(denied.retry_after(), Some(SECOND));
    assert_eq!(started.elapsed(), Duration::ZERO);

    let unsupported = until_ready(&limiter, "a", AcquireOptions::default().hold()).await.expect_err("a hold");
    assert!(unsupported.is_unsupported());
}

/// `max_delay` bounds the whole wait, also if the caller asks several times.
#[tokio::test(start_paused = true)]
async fn until_ready_waits_no_longer_than_the_bound_in_all() {
    let millis = Duration::from_millis;
    // A caller that cannot start in time learns that from the next ask after the block.
    for (bound, expected, between) in [
        (millis(999), false, [0, 0]),
        (millis(1000), false, [900, 1000]),
        (millis(1899), false, [900, 1000]),
        (millis(1900), true, [1900, 1900]),
    ] {
        let (limiter, started) = (memory(FixedWindow::new(Quota::per_second(1))), Instant::now());
        assert!(limiter.check("a", 1).await.expect("a decision").is_allowed());
        let waiting = limiter.clone();
        let waiter = spawn(async move {
            let decision = until_ready(&waiting, "a", AcquireOptions::default().max_delay(bound)).await;
            (decision.expect("a decision").is_allowed(), started.elapsed())
        });
        // When the caller asks again, after a second, the key is blocked for 900 ms more.
        tokio::time::sleep(millis(900)).await;
        limiter.block("default", "a", SECOND).await.expect("blocked");
        let (is_allowed, waited) = waiter.await.expect("no panic");
        assert_eq!(is_allowed, expected, "{bound:?}");
        assert!(waited >= millis(between[0]) && waited <= millis(between[1]), "{bound:?}: {waited:?}");
    }
    let (limiter, started) = (memory(FixedWindow::new(Quota::per_second(1))), Instant::now());
    assert!(limiter.check("a", 1).await.expect("a decision").is_allowed());
    let decision = until_ready(&limiter, "a", AcquireOptions::default().max_delay(SECOND)).await.expect("a decision");
    assert_eq!((decision.is_allowed(), started.elapsed()), (true, SECOND), "the bound is inclusive");
}

/// The wait of such a denial is an estimate, which could otherwise end before the caller's bound.
#[tokio::test(start_paused = true)]
async fn until_ready_without_a_delay_returns_at_once_while_a_cost_is_held() {
    let limiter = memory(FixedWindow::new(Quota::per_hour(1)));
    let started = Instant::now();
    let Ok(Ok(Outcome { held: Some(_held), .. })) = limiter.hold("a", AcquireOptions::default()).try_ready() else {
        panic!("the limit is unused")
    };
    let decision = until_ready(&limiter, "a", AcquireOptions::default().max_delay(Duration::ZERO)).await;
    assert!(!decision.expect("a decision").is_allowed());
    let decision = until_ready(&limiter, "a", AcquireOptions::default().max_delay(SECOND / 4)).await;
    assert!(!decision.expect("a decision").is_allowed());
    assert_eq!(started.elapsed(), SECOND / 4);
}

#[tokio::test(start_paused = true)]
async fn until_ready_starts_when_a_held_cost_is_released() {
    let limiter = memory(FixedWindow::new(Quota::per_hour(1)));
    let Ok(Ok(Outcome { held: Some(held), .. })) = limiter.hold("a", AcquireOptions::default()).try_ready() else {
        panic!("the limit is unused")
    };
    let (waiting, started) = (limiter.clone(), Instant::now());
    let waiter = spawn(async move { until_ready(&waiting, "a", AcquireOptions::default()).await });
    tokio::time::sleep(Duration::from_millis(250)).await;
    held.release().await.expect("released");
    assert!(waiter.await.expect("no panic").expect("a decision").is_allowed());
    assert_eq!(started.elapsed(), Duration::from_millis(250));
}

/// Limits of each tenant (40/s) and of all (50/s), in one limiter each: three tenants with four callers each.
#[tokio::test(start_paused = true)]
async fn until_ready_on_one_limiter_after_the_other_gives_tenants_equal_parts() {
    let of_tenant = memory::<usize>(Gcra::new(Quota::per_second(40)).burst(5));
    let of_all = memory::<()>(Gcra::new(Quota::per_second(50)).burst(5));
    let started: Arc<[AtomicUsize; 3]> = Arc::default();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..12 {
        let (of_tenant, of_all, started) = (of_tenant.clone(), of_all.clone(), Arc::clone(&started));
        let tenant = caller / 4;
        callers.spawn(boxed(async move {
            tokio::time::sleep(SECOND * u32::try_from(tenant).expect("three")).await;
            loop {
                let _ = until_ready(&of_tenant, &tenant, 1).await.expect("a decision");
                let _ = until_ready(&of_all, &(), 1).await.expect("a decision");
                started[tenant].fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    tokio::time::sleep(10 * SECOND).await;
    started.iter().for_each(|started| started.store(0, Ordering::Relaxed));
    tokio::time::sleep(30 * SECOND).await;
    let started = started.each_ref().map(|started| started.load(Ordering::Relaxed));
    assert!(started.iter().all(|started| (400..=600).contains(started)), "{started:?} of 1500");
}

/// A start that a caller leaves is for callers of the same limiter: another one has a part that was not asked.
#[tokio::test(start_paused = true)]
async fn start_of_one_limiter_is_not_for_callers_of_another() {
    #[derive(Clone)]
    struct Closed;
    impl Limiter<str> for Closed {
        fn acquire(&self, _: &str, _: AcquireOptions) -> LimiterFuture<Outcome> {
            let verdict = Verdict::Denied { retry_after: 100 * SECOND };
            LimiterFuture::ready(Ok(Decision::without_limit(TokioClock::new().now(), verdict).into()))
        }
    }
    for leaves_after in [900, 998, 999] {
        let limiter = Memory::<str, _>::builder(Gcra::new(Quota::per_second(1)).burst(1)).clock(TokioClock::new());
        let limiter = limiter.build().expect("a limit");
        assert!(limiter.check("a", 1).is_allowed());
        let chained = Chained::new(limiter.clone(), Closed);
        let first = spawn(async move { until_ready(&limiter, "a", 1).await });
        tokio::time::sleep(Duration::from_millis(10)).await;
        let options = AcquireOptions::default().max_delay(5 * SECOND);
        let second = spawn(async move { until_ready(&chained, "a", options).await });
        tokio::time::sleep(Duration::from_millis(leaves_after - 10)).await;
        first.abort();
        assert!(!second.await.expect("no panic").expect("a decision").is_allowed(), "{leaves_after} ms");
    }
}

/// The callers of several keys below one limit wait in one queue: the first one that comes, starts first.
#[tokio::test(start_paused = true)]
async fn callers_of_one_limit_start_in_order_of_arrival() {
    for limit in [of_all(FixedWindow::new(Quota::per_second(3))), of_all(Gcra::new(Quota::per_second(3)).burst(2))] {
        let limiter = several(vec![limit]);
        let (order, mut callers) = (Arc::new(std::sync::Mutex::new(Vec::new())), Vec::new());
        for caller in 0..20_u32 {
            let (limiter, order) = (limiter.clone(), Arc::clone(&order));
            callers.push(spawn(async move {
                assert!(until_ready(&limiter, &caller, 1).await.expect("a decision").is_allowed());
                order.lock().unwrap().push(caller);
            }));
            tokio::task::yield_now().await;
        }
        for caller in callers {
            caller.await.expect("no panic");
        }
        assert!(order.lock().unwrap().is_sorted(), "{order:?}");
    }
}

/// Two limiters of a type of one's own name no limits, so nothing shows that they differ. No caller receives the start of
/// the other limiter.
#[tokio::test(start_paused = true)]
async fn callers_of_own_limiters_share_no_starts() {
    #[derive(Clone)]
    struct Own(BoxLimiter<str>);

    impl Limiter<str> for Own {
        fn acquire(&self, key: &str, options: AcquireOptions) -> LimiterFuture<Outcome> {
            self.0.acquire(key, options)
        }
    }

    let [one, other] = [1, 100].map(|rate| Own(memory(Gcra::new(Quota::per_second(rate)).burst(1))));
    let started = Instant::now();
    let call = |limiter: &Own| {
        let limiter = limiter.clone();
        spawn(
            async move { until_ready(&limiter, "a", 1).await.map(|decision| (decision.is_allowed(), started.elapsed())) },
        )
    };
    let calls: Vec<_> = [&one, &other, &one, &other, &other].map(call).into();
    let mut ends = Vec::new();
    for call in calls {
        let (is_allowed, at) = call.await.expect("no panic").expect("a decision");
        assert!(is_allowed);
        ends.push(at.as_millis());
    }
    assert_eq!(ends[0], 0);
    assert_eq!(ends[2], 1000, "{ends:?}");
    assert!(ends[3..].iter().all(|at| *at <= 30), "{ends:?}");
}

/// The wait of a key that is denied for more than a year is not awaited, and passes no item.
#[tokio::test(start_paused = true)]
async fn items_of_a_key_that_is_blocked_for_years_are_errors() {
    let limiter = memory::<u64>(Gcra::new(Quota::per_second(10)));
    limiter.block("default", &7, Duration::from_secs(400 * 86_400)).await.expect("memory");
    let mut items = LimitedStream::new(stream::iter(["a", "b"]), limiter.clone(), 7);
    for _ in 0..2 {
        let error = items.next().await.expect("an item").expect_err("the key is blocked");
        assert!(error.is_unavailable() && error.to_string().contains("more than a year"), "{error}");
    }
    let mut sink = LimitedSink::new(sink::drain(), limiter, 7);
    assert!(matches!(sink.send("a").await, Err(LimitedSinkError::Limiter(_))));
}

/// Messages cost their length, in a stream and in a sink.
#[tokio::test(start_paused = true)]
async fn items_cost_what_the_closure_returns() {
    let messages = ["four", "seventeen letters", "", "x", "exactly twenty bytes"];
    let limiter = || memory::<u64>(Gcra::new(Quota::per_second(10)).burst(20));
    let expected: Vec<_> = [4_u64, 21, 21, 22, 42].map(|bytes| u128::from(bytes.saturating_sub(20)) * 100).into();

    let (started, mut at) = (Instant::now(), Vec::new());
    let mut items = LimitedStream::new(stream::iter(messages), limiter(), 7).cost(|item: &&str| item.len() as u64);
    while let Some(item) = items.next().await {
        item.expect("an item");
        at.push(started.elapsed().as_millis());
    }
    assert_eq!(at, expected);

    let (started, mut at) = (Instant::now(), Vec::new());
    let mut items = LimitedSink::new(sink::drain(), limiter(), 7).cost(|item: &&str| item.len() as u64);
    for message in messages {
        items.send(message).await.expect("sent");
        at.push(started.elapsed().as_millis());
    }
    assert_eq!(at, expected);
    let error = items.send("more than twenty bytes").await.expect_err("above the burst");
    assert!(matches!(&error, LimitedSinkError::Limiter(error) if error.is_config()), "{error}");
    items.send("the next").await.expect("sent");
}

#[test]
fn until_ready_without_a_timer_is_a_configuration_error() {
    let limiter = support::memory::<str>(Gcra::new(Quota::per_hour(1)).burst(1), ManualClock::new());
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
    let mut items = LimitedStream::new(stream::iter([1, 2, 3]), limiter.clone(), 7_u64).cost(|_| 1);
    assert_eq!(items.size_hint(), (3, Some(3)));
    let mut seen = Vec::new();
    while let Some(item) = items.next().await {
        seen.push((item.expect("an item"), started.elapsed().as_millis()));
    }
    assert_eq!(seen, [(1, 0), (2, 100), (3, 200)]);
    assert_eq!(started.elapsed(), Duration::from_millis(200), "the end of the stream waits for nothing");

    let exceeding = LimitedStream::new(stream::iter([1]), limiter, 7_u64).cost(|_| 2);
    let error: Error = exceeding.try_collect::<Vec<_>>().await.expect_err("a cost above the burst");
    assert!(error.is_config(), "{error}");
}

/// An endless stream with a given size hint.
struct Endless((usize, Option<usize>));

impl Stream for Endless {
    type Item = u32;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
        Poll::Ready(Some(1))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0
    }
}

/// The item that waits is one of those that the stream will yield.
#[tokio::test(start_paused = true)]
async fn size_hint_of_a_limited_stream_counts_the_waiting_item() {
    const MAX: usize = usize::MAX;
    for (inner, expected) in [
        ((0, None), (1, None)),
        ((5, Some(7)), (6, Some(8))),
        ((MAX, None), (MAX, None)),
        ((MAX - 1, Some(MAX - 1)), (MAX, Some(MAX))),
        ((MAX, Some(MAX)), (MAX, None)),
    ] {
        let mut items = LimitedStream::new(Endless(inner), memory(Gcra::new(Quota::per_second(10)).burst(1)), 7_u64);
        assert_eq!(items.size_hint(), inner);
        assert!(items.next().await.is_some_and(|item| item.is_ok()));
        assert_eq!(items.size_hint(), inner);
        assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut items).poll_next(cx))).await.is_pending());
        assert_eq!(items.size_hint(), expected);
    }
}

/// A key that cannot be cloned: the adaptors do not copy it for each item.
#[derive(Hash)]
struct Connection(u64);

#[tokio::test(start_paused = true)]
async fn limited_sink_accepts_all_items_in_order_at_the_rate() {
    let (started, mut seen) = (Instant::now(), Vec::new());
    let record = sink::unfold(&mut seen, async |seen: &mut Vec<_>, item: u32| {
        seen.push((item, started.elapsed().as_millis()));
        Ok::<_, std::io::Error>(seen)
    });
    let limiter = memory(Gcra::new(Quota::per_second(10)).burst(2));
    let mut items = Box::pin(LimitedSink::new(record, limiter.clone(), Connection(7)));
    for item in 1..=4 {
        items.send(item).await.expect("accepted");
    }
    items.close().await.expect("closed");
    drop(items);
    assert_eq!(seen, [(1, 0), (2, 0), (3, 100), (4, 200)]);

    let mut exceeding = LimitedSink::new(sink::drain(), limiter, Connection(7)).cost(|_| 3);
    let error = exceeding.send(1).await.expect_err("a cost above the burst");
    assert!(matches!(&error, LimitedSinkError::Limiter(error) if error.is_config()), "{error}");
}

/// A sink that has failed.
struct Broken;

impl Sink<u32> for Broken {
    type Error = std::io::Error;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into()))
    }

    fn start_send(self: Pin<&mut Self>, _: u32) -> Result<(), Self::Error> {
        panic!("the sink was never ready")
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn item_that_the_sink_cannot_accept_is_not_charged() {
    let limiter = memory::<u64>(FixedWindow::new(Quota::per_hour(2)));
    let started = Instant::now();
    let mut broken = LimitedSink::new(Broken, limiter.clone(), 7);
    let error = broken.send(1).await.expect_err("a closed sink");
    assert!(matches!(&error, LimitedSinkError::Sink(error) if error.kind() == std::io::ErrorKind::BrokenPipe));
    assert_eq!(limiter.check(&7, 0).await.expect("a decision").remaining(), Some(2));

    // A flush and a readiness without an item charge nothing.
    let mut items: LimitedSink<_, _, _, u32> = LimitedSink::new(sink::drain(), limiter.clone(), 7);
    items.flush().await.expect("flushed");
    assert_eq!(limiter.check(&7, 0).await.expect("a decision").remaining(), Some(2));
    for _ in 0..2 {
        poll_fn(|cx| Pin::new(&mut items).poll_ready(cx)).await.expect("ready");
    }
    items.send(1).await.expect("accepted");
    assert_eq!(limiter.check(&7, 0).await.expect("a decision").remaining(), Some(1));
    assert_eq!(started.elapsed(), Duration::ZERO, "in a later window");
    items.send(2).await.expect("accepted");
    assert_eq!(limiter.check(&7, 0).await.expect("a decision").remaining(), Some(0), "each item is charged");
}

#[tokio::test(start_paused = true)]
async fn error_of_a_limited_sink_has_the_source_of_the_inner_error() {
    use std::error::Error as _;

    #[derive(Debug)]
    struct Outer(std::fmt::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("outer")
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    let error = LimitedSinkError::Sink(Outer(std::fmt::Error));
    assert_eq!(error.to_string(), "outer");
    assert!(error.source().expect("the source of the inner error").is::<std::fmt::Error>());
    let without: LimitedSinkError<Outer> = LimitedSinkError::Limiter(Error::config("invalid"));
    assert!(without.source().is_none());
}
