//! Denials that are remembered: exact, dropped when the key is changed, and never asked for again while they hold.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::limiter::{Acquisition, AdminOperation, Chained, DeniedCache, Limiter, LimiterFuture, Outcome};
use tower_ratelimit::{
    AcquireOptions, Clock as _, Decision, DecisionSource, Error, FixedWindow, Gcra, LeakyQueue, ManualClock, Memory,
    Quota, SlidingLog, SlidingWindow, per_key,
};

/// A limiter that counts how often it is asked.
struct Counted<L> {
    limiter: L,
    asked: Arc<AtomicU64>,
}

impl<L: Limiter<u64, Future = Ready<Result<Outcome, Error>>>> Limiter<u64> for Counted<L> {
    type Future = L::Future;

    fn acquire(&self, key: &u64, ask: AcquireOptions) -> Acquisition<Self::Future> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        // As a store elsewhere answers.
        match self.limiter.acquire(key, ask) {
            Acquisition::Ready(result) => Acquisition::Pending(ready(result)),
            pending @ Acquisition::Pending(_) => pending,
        }
    }

    fn peek(&self, key: &u64, ask: AcquireOptions) -> LimiterFuture<Decision> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.limiter.peek(key, ask)
    }

    fn administer(&self, key: &u64, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.limiter.administer(key, operation)
    }
}

type Cached<L> = DeniedCache<Counted<L>, ManualClock>;

fn cached<L>(limiter: L, clock: &ManualClock) -> (Cached<L>, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Counted { limiter, asked: Arc::clone(&asked) };
    (DeniedCache::with_clock(counted, 64, clock.clone()), asked)
}

fn per_second(limit: u64, clock: &ManualClock) -> Memory<FixedWindow, ManualClock> {
    Memory::builder(FixedWindow::new(Quota::per_second(limit))).clock(clock.clone()).build().expect("a limit")
}

async fn ask(limiter: &impl Limiter<u64>, key: u64, ask: AcquireOptions) -> Outcome {
    limiter.acquire(&key, ask).await.expect("an answer")
}

async fn is_allowed(limiter: &impl Limiter<u64>, key: u64) -> bool {
    ask(limiter, key, AcquireOptions::default()).await.decision.is_allowed()
}

#[tokio::test]
async fn a_refused_key_is_not_asked_for_again_until_it_has_a_chance() {
    let clock = ManualClock::new();
    let (limiter, asked) = cached(per_second(1, &clock), &clock);
    assert!(is_allowed(&limiter, 1).await);
    let first = ask(&limiter, 1, AcquireOptions::default()).await.decision;
    assert_eq!(asked.load(Ordering::Relaxed), 2);

    clock.advance(Duration::from_millis(400));
    let remembered = ask(&limiter, 1, AcquireOptions::default()).await.decision;
    assert_eq!(asked.load(Ordering::Relaxed), 2, "it was asked for");
    assert_eq!((first.source(), remembered.source()), (DecisionSource::Store, DecisionSource::Cache));
    assert_eq!(remembered.retry_after(), Some(Duration::from_millis(600)));
    assert_eq!(remembered.reset(), Some(Duration::from_millis(600)));
    assert_eq!(remembered.decided_at(), clock.now());

    clock.advance(Duration::from_millis(600));
    assert!(is_allowed(&limiter, 1).await);
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn other_keys_lower_costs_and_longer_patience_are_asked_for() {
    let clock = ManualClock::new();
    let (limiter, asked) = cached(per_second(3, &clock), &clock);
    assert!(is_allowed(&limiter, 1).await);
    assert!(!ask(&limiter, 1, AcquireOptions::cost(3)).await.decision.is_allowed());
    assert!(!ask(&limiter, 1, AcquireOptions::cost(3)).await.decision.is_allowed());
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    assert!(ask(&limiter, 1, AcquireOptions::cost(2)).await.decision.is_allowed());
    assert!(is_allowed(&limiter, 2).await);
    let patient = AcquireOptions::cost(3).max_delay(Duration::from_secs(9));
    assert!(!ask(&limiter, 1, patient).await.decision.is_allowed());
    assert_eq!(asked.load(Ordering::Relaxed), 5);
}

/// Nobody knows when a hold ends: a denial due to one is asked for anew each time.
#[tokio::test]
async fn denial_due_to_a_hold_is_not_remembered() {
    let clock = ManualClock::new();
    let (limiter, asked) = cached(per_second(1, &clock), &clock);
    let held = ask(&limiter, 1, AcquireOptions::default().hold()).await.held.expect("a guard");
    for count in 2..5 {
        let denied = ask(&limiter, 1, AcquireOptions::default()).await.decision;
        assert!(!denied.is_allowed() && denied.is_estimate() && !denied.exceeds_limit());
        assert_eq!((denied.source(), asked.load(Ordering::Relaxed)), (DecisionSource::Store, count));
    }
    held.release().await.expect("done");
    assert!(is_allowed(&limiter, 1).await);
    // A denial by what was charged is remembered.
    let denied = ask(&limiter, 1, AcquireOptions::default()).await.decision;
    assert!(!denied.is_allowed() && !denied.is_estimate());
    assert_eq!(ask(&limiter, 1, AcquireOptions::default()).await.decision.source(), DecisionSource::Cache);
}

/// A remembered denial by what was charged holds, whatever is held and settled meanwhile: it gives the key nothing earlier.
#[tokio::test]
async fn settled_hold_leaves_a_remembered_denial_exact() {
    let clock = ManualClock::new();
    let (limiter, _) = cached(per_second(2, &clock), &clock);
    let held = ask(&limiter, 1, AcquireOptions::default().hold()).await.held.expect("a guard");
    assert!(is_allowed(&limiter, 1).await);
    held.settle(1).await.expect("done");
    assert!(!is_allowed(&limiter, 1).await);
    clock.advance(Duration::from_secs(1));
    assert!(is_allowed(&limiter, 1).await);
}

#[tokio::test]
async fn reset_is_seen_at_once() {
    let clock = ManualClock::new();
    let (limiter, _) = cached(per_second(1, &clock), &clock);
    assert!(is_allowed(&limiter, 1).await);
    assert!(!is_allowed(&limiter, 1).await);
    limiter.reset(&1).await.expect("done");
    assert!(is_allowed(&limiter, 1).await);
}

#[tokio::test]
async fn a_block_that_is_lifted_is_not_remembered() {
    let clock = ManualClock::new();
    let (limiter, _) = cached(per_second(5, &clock), &clock);
    limiter.block("default", &1, Duration::from_secs(60)).await.expect("done");
    assert!(!is_allowed(&limiter, 1).await);
    limiter.unblock("default", &1).await.expect("done");
    assert!(is_allowed(&limiter, 1).await);
}

#[tokio::test]
async fn denial_under_way_during_a_reset_is_not_remembered() {
    let clock = ManualClock::new();
    let (limiter, _) = cached(per_second(1, &clock), &clock);
    assert!(is_allowed(&limiter, 1).await);
    let under_way = limiter.acquire(&1, AcquireOptions::default());
    limiter.reset(&1).await.expect("done");
    assert!(!under_way.await.expect("an answer").decision.is_allowed());
    assert!(is_allowed(&limiter, 1).await);
}

#[tokio::test]
async fn a_refusal_is_remembered_no_longer_than_its_greatest_age() {
    let clock = ManualClock::new();
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Counted { limiter: per_second(1, &clock), asked: Arc::clone(&asked) };
    let limiter = DeniedCache::with_clock(counted, 64, clock.clone()).max_age(Duration::from_millis(100));
    assert!(is_allowed(&limiter, 1).await);
    assert!(!is_allowed(&limiter, 1).await);
    clock.advance(Duration::from_millis(99));
    assert!(!is_allowed(&limiter, 1).await);
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    clock.advance(Duration::from_millis(1));
    let anew = ask(&limiter, 1, AcquireOptions::default()).await.decision;
    assert_eq!(anew.retry_after(), Some(Duration::from_millis(900)));
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_cost_that_exceeds_the_limit_is_not_asked_for_again() {
    let clock = ManualClock::new();
    let (limiter, asked) = cached(per_second(3, &clock), &clock);
    let first = ask(&limiter, 1, AcquireOptions::cost(4)).await.decision;
    let remembered = ask(&limiter, 1, AcquireOptions::cost(4)).await.decision;
    assert!(first.exceeds_limit() && remembered.exceeds_limit());
    assert_eq!((first.source(), remembered.source()), (DecisionSource::Store, DecisionSource::Cache));
    assert!(ask(&limiter, 1, AcquireOptions::cost(5)).await.decision.exceeds_limit());
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    // What costs less may have room.
    assert!(ask(&limiter, 1, AcquireOptions::cost(3)).await.decision.is_allowed());
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    // The limit may have been raised meanwhile.
    clock.advance(DeniedCache::<()>::EXCEEDS_LIMIT_TTL.saturating_sub(Duration::from_micros(1)));
    assert!(ask(&limiter, 1, AcquireOptions::cost(4)).await.decision.exceeds_limit());
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    clock.advance(Duration::from_micros(1));
    assert!(ask(&limiter, 1, AcquireOptions::cost(4)).await.decision.exceeds_limit());
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_cost_that_exceeds_the_limit_is_remembered_no_longer_than_the_greatest_age() {
    let clock = ManualClock::new();
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Counted { limiter: per_second(3, &clock), asked: Arc::clone(&asked) };
    let limiter = DeniedCache::with_clock(counted, 64, clock.clone()).max_age(Duration::from_millis(100));
    assert!(ask(&limiter, 1, AcquireOptions::cost(4)).await.decision.exceeds_limit());
    clock.advance(Duration::from_millis(100));
    assert!(ask(&limiter, 1, AcquireOptions::cost(4)).await.decision.exceeds_limit());
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn peek_tells_the_remembered_refusal_and_a_refusal_by_peek_is_remembered() {
    let clock = ManualClock::new();
    let (limiter, asked) = cached(per_second(1, &clock), &clock);
    assert!(is_allowed(&limiter, 1).await);
    let peeked = limiter.peek(&1, AcquireOptions::default()).await.expect("an answer");
    assert_eq!((asked.load(Ordering::Relaxed), peeked.source()), (2, DecisionSource::Store));
    assert!(!is_allowed(&limiter, 1).await);
    let again = limiter.peek(&1, AcquireOptions::default()).await.expect("an answer");
    assert_eq!((asked.load(Ordering::Relaxed), again.source()), (2, DecisionSource::Cache));
    assert_eq!(again.retry_after(), peeked.retry_after());
    // A question about the figures costs nothing, and is asked.
    limiter.peek(&1, AcquireOptions::cost(0)).await.expect("an answer");
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn after_a_raised_quota_invalidate_and_clear_end_the_old_refusal() {
    const KEYS: u64 = 40;
    let limit = Arc::new(AtomicU64::new(1));
    let of_key = {
        let limit = Arc::clone(&limit);
        move |_: &u64| FixedWindow::new(Quota::per_hour(limit.load(Ordering::Relaxed)))
    };
    let clock = ManualClock::new();
    let memory = Memory::builder(per_key(of_key)).clock(clock.clone()).build().expect("a limit");
    let (limiter, asked) = cached(memory, &clock);
    for key in 0..KEYS {
        assert!(is_allowed(&limiter, key).await && !is_allowed(&limiter, key).await);
    }
    limit.store(2, Ordering::Relaxed);
    let before = asked.load(Ordering::Relaxed);
    assert!(!is_allowed(&limiter, 1).await, "the cache can't know that the quota was raised");
    assert_eq!(asked.load(Ordering::Relaxed), before);
    limiter.invalidate(&1);
    assert!(is_allowed(&limiter, 1).await);
    limiter.clear();
    for key in 2..KEYS {
        assert!(is_allowed(&limiter, key).await, "{key}");
    }
}

#[tokio::test]
async fn a_refusal_that_is_under_way_during_clear_or_invalidate_is_not_remembered() {
    let clock = ManualClock::new();
    let (limiter, _) = cached(per_second(1, &clock), &clock);
    let ends: [fn(&Cached<_>); 2] = [|limiter| limiter.invalidate(&1), |limiter| limiter.clear()];
    for end in ends {
        limiter.reset(&1).await.expect("done");
        assert!(is_allowed(&limiter, 1).await);
        let under_way = limiter.acquire(&1, AcquireOptions::default());
        end(&limiter);
        assert!(!under_way.await.expect("an answer").decision.is_allowed());
        let anew = ask(&limiter, 1, AcquireOptions::default()).await.decision;
        assert_eq!(anew.source(), DecisionSource::Store);
    }
}

type Counting = Arc<Counted<Memory<FixedWindow, ManualClock>>>;

/// A cache around two chained limiters, and the counts of calls that reach their stores.
fn cached_chain(
    limits: [u64; 2],
    clock: &ManualClock,
) -> (DeniedCache<Chained<Counting, Counting>, ManualClock>, [Arc<AtomicU64>; 2]) {
    let reached: [Arc<AtomicU64>; 2] = Default::default();
    let counting = |index: usize, period: u64| {
        let limit = FixedWindow::new(Quota::new(limits[index], Duration::from_secs(period)));
        let limiter = Memory::builder(limit).clock(clock.clone()).build().expect("a limit");
        Arc::new(Counted { limiter, asked: Arc::clone(&reached[index]) })
    };
    (DeniedCache::with_clock(Chained::new(counting(0, 10), counting(1, 20)), 64, clock.clone()), reached)
}

async fn assert_cached_denial_of_a_chain_reaches_no_store(limits: [u64; 2], cost: u64) {
    let clock = ManualClock::new();
    let (limiter, reached) = cached_chain(limits, &clock);
    let count = || reached.each_ref().map(|reached| reached.load(Ordering::Relaxed));
    while ask(&limiter, 1, AcquireOptions::cost(cost)).await.decision.is_allowed() {}
    let first = ask(&limiter, 1, AcquireOptions::cost(cost)).await.decision;
    let before = count();
    clock.advance(Duration::from_secs(3));
    for _ in 0..100 {
        let again = ask(&limiter, 1, AcquireOptions::cost(cost)).await.decision;
        assert_eq!(again.source(), DecisionSource::Cache);
        let expected = first.retry_after().map(|wait| wait.saturating_sub(Duration::from_secs(3)));
        assert_eq!((again.retry_after(), again.exceeds_limit()), (expected, first.exceeds_limit()), "{limits:?}");
        assert_eq!(limiter.peek(&1, AcquireOptions::cost(cost)).await.expect("an answer").retry_after(), expected);
    }
    assert_eq!(count(), before, "{limits:?}");
}

#[tokio::test]
async fn denied_cache_around_chained_caches_denials_of_the_first() {
    assert_cached_denial_of_a_chain_reaches_no_store([2, 9], 1).await;
}

#[tokio::test]
async fn denied_cache_around_chained_caches_denials_of_the_second() {
    assert_cached_denial_of_a_chain_reaches_no_store([9, 2], 1).await;
}

/// The cached wait is the longer one, that of the second limiter.
#[tokio::test]
async fn denied_cache_around_chained_caches_denials_of_both() {
    assert_cached_denial_of_a_chain_reaches_no_store([2, 2], 1).await;
}

#[tokio::test]
async fn denied_cache_around_chained_caches_costs_that_exceed_a_limit() {
    assert_cached_denial_of_a_chain_reaches_no_store([2, 9], 3).await;
    assert_cached_denial_of_a_chain_reaches_no_store([9, 2], 3).await;
}

/// With the cache and without it: the same verdicts and times.
fn is_exact(seed: Vec<(u64, u64, u64)>, here: &impl Limiter<u64>, there: &impl Limiter<u64>, clock: &ManualClock) {
    tokio_test::block_on(async {
        for (pause, key, cost) in seed {
            clock.advance(Duration::from_millis(pause));
            let (here, there) =
                (ask(here, key, AcquireOptions::cost(cost)).await, ask(there, key, AcquireOptions::cost(cost)).await);
            let told = |decision: &Decision| (decision.verdict(), decision.reset(), decision.decided_at());
            assert_eq!(told(&here.decision), told(&there.decision));
        }
    });
}

fn traces() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    // Of one cost a key: to a higher one the time of the lower is told.
    proptest::collection::vec((0_u64..400, 0_u64..3), 1..200)
        .prop_map(|steps| steps.into_iter().map(|(pause, key)| (pause, key, key + 1)).collect())
}

macro_rules! exact {
    ($($name:ident: $algorithm:expr;)+) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(64))]
            $(
                #[test]
                fn $name(trace in traces()) {
                    let clock = ManualClock::new();
                    let memory = || Memory::builder($algorithm).max_keys(64).clock(clock.clone()).build().expect("a limit");
                    is_exact(trace, &memory(), &cached(memory(), &clock).0, &clock);
                }
            )+
        }
    };
}

const QUOTA: Quota = Quota::per_second(4);

exact! {
    gcra_is_exact: Gcra::new(QUOTA);
    a_queue_is_exact: LeakyQueue::new(QUOTA).max_waiting(3);
    a_fixed_window_is_exact: FixedWindow::new(QUOTA);
    a_sliding_window_is_exact: SlidingWindow::new(QUOTA).blocks(4);
    a_weighted_window_is_exact: SlidingWindow::new(QUOTA).blocks(4).weighted();
    a_log_is_exact: SlidingLog::new(QUOTA);
}
