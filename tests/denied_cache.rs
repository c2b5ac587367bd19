//! Refusals that are remembered: exact, forgotten when something is given back, and never asked for again.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::limiter::{Acquire, DeniedCache, Limiter, Outcome, Receipt, Reply};
use tower_ratelimit::{
    Ask, Clock as _, Decision, Error, FixedWindow, Gcra, LeakyQueue, ManualClock, Memory, Quota, SlidingLog,
    SlidingWindow, Source,
};

/// A limiter that counts how often it is asked.
struct Counted<L> {
    limiter: L,
    asked: Arc<AtomicU64>,
}

impl<L: Limiter<u64, Future = Ready<Result<Outcome, Error>>>> Limiter<u64> for Counted<L> {
    type Future = L::Future;

    fn acquire(&self, key: &u64, ask: Ask) -> Acquire<Self::Future> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        // As a store elsewhere answers.
        match self.limiter.acquire(key, ask) {
            Acquire::Ready(result) => Acquire::Pending(ready(result)),
            pending @ Acquire::Pending(_) => pending,
        }
    }

    fn settle(&self, key: &u64, receipt: Receipt, actual: u64) -> Reply<()> {
        self.limiter.settle(key, receipt, actual)
    }

    fn reset(&self, key: &u64) -> Reply<()> {
        self.limiter.reset(key)
    }

    fn block(&self, limit: &str, key: &u64, span: Duration) -> Reply<()> {
        self.limiter.block(limit, key, span)
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

async fn ask(limiter: &impl Limiter<u64>, key: u64, ask: Ask) -> Outcome {
    limiter.acquire(&key, ask).await.expect("an answer")
}

async fn is_allowed(limiter: &impl Limiter<u64>, key: u64) -> bool {
    ask(limiter, key, Ask::default()).await.decision.is_allowed()
}

#[tokio::test]
async fn a_refused_key_is_not_asked_for_again_until_it_has_a_chance() {
    let clock = ManualClock::new();
    let (limiter, asked) = cached(per_second(1, &clock), &clock);
    assert!(is_allowed(&limiter, 1).await);
    let first = ask(&limiter, 1, Ask::default()).await.decision;
    assert_eq!(asked.load(Ordering::Relaxed), 2);

    clock.advance(Duration::from_millis(400));
    let remembered = ask(&limiter, 1, Ask::default()).await.decision;
    assert_eq!(asked.load(Ordering::Relaxed), 2, "it was asked for");
    assert_eq!((first.source(), remembered.source()), (Source::Store, Source::Cache));
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
    assert!(!ask(&limiter, 1, Ask::cost(3)).await.decision.is_allowed());
    assert!(!ask(&limiter, 1, Ask::cost(3)).await.decision.is_allowed());
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    assert!(ask(&limiter, 1, Ask::cost(2)).await.decision.is_allowed());
    assert!(is_allowed(&limiter, 2).await);
    let patient = Ask::cost(3).within(Duration::from_secs(9));
    assert!(!ask(&limiter, 1, patient).await.decision.is_allowed());
    assert_eq!(asked.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn what_is_given_back_is_seen_at_once() {
    let clock = ManualClock::new();
    let (limiter, _) = cached(per_second(1, &clock), &clock);
    let receipt = ask(&limiter, 1, Ask::default()).await.receipt.expect("a receipt");
    assert!(!is_allowed(&limiter, 1).await);
    limiter.give_back(&1, receipt).await.expect("done");
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
    limiter.forgive("default", &1).await.expect("done");
    assert!(is_allowed(&limiter, 1).await);
}

#[tokio::test]
async fn a_refusal_that_was_under_way_while_something_was_given_back_is_not_remembered() {
    let clock = ManualClock::new();
    let (limiter, _) = cached(per_second(1, &clock), &clock);
    let receipt = ask(&limiter, 1, Ask::default()).await.receipt.expect("a receipt");
    let under_way = limiter.acquire(&1, Ask::default());
    limiter.give_back(&1, receipt).await.expect("done");
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
    let anew = ask(&limiter, 1, Ask::default()).await.decision;
    assert_eq!(anew.retry_after(), Some(Duration::from_millis(900)));
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

/// With the cache and without it: the same verdicts and times.
fn is_exact(seed: Vec<(u64, u64, u64)>, here: &impl Limiter<u64>, there: &impl Limiter<u64>, clock: &ManualClock) {
    tokio_test::block_on(async {
        for (pause, key, cost) in seed {
            clock.advance(Duration::from_millis(pause));
            let (here, there) = (ask(here, key, Ask::cost(cost)).await, ask(there, key, Ask::cost(cost)).await);
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
