//! `DeniedCache`: cached denials are exact, are removed when the key changes, and save calls of the inner limiter.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{AdminOperation, Chained, DeniedCache, Held, LimiterFuture, Outcome};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock as _, Decision, DecisionSource, Detail, DynLimit, Error, FixedWindow, Gcra,
    LeakyQueue, Limit, LimitSnapshot, LimitStatus, Limiter, ManualClock, Memory, Quota, SlidingLog, SlidingWindow,
    Verdict, per_key,
};

use crate::immediate::{self, boxed, boxed_limits};
use crate::random::Random;

/// A limiter that counts its calls.
#[derive(Clone)]
struct Counted {
    limiter: BoxLimiter<u64>,
    calls: Arc<AtomicU64>,
}

impl Limiter<u64> for Counted {
    fn acquire(&self, key: &u64, options: AcquireOptions) -> LimiterFuture<Outcome> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        // Pending, as the result of a remote store.
        match self.limiter.acquire(key, options).try_ready() {
            Ok(result) => LimiterFuture::pending(ready(result)),
            Err(pending) => pending,
        }
    }

    fn peek(&self, key: &u64, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.limiter.peek(key, options)
    }

    fn administer(&self, key: &u64, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.limiter.administer(key, operation)
    }
}

type Cached = DeniedCache<Counted, ManualClock>;

fn cached(limiter: BoxLimiter<u64>, clock: &ManualClock) -> (Cached, Arc<AtomicU64>) {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Counted { limiter, calls: Arc::clone(&calls) };
    (DeniedCache::with_clock(counted, 64, clock.clone()), calls)
}

fn per_second(limit: u64, clock: &ManualClock) -> BoxLimiter<u64> {
    boxed(FixedWindow::new(Quota::per_second(limit)), clock)
}

async fn acquire(limiter: &impl Limiter<u64>, key: u64, options: AcquireOptions) -> Outcome {
    limiter.acquire(&key, options).await.expect("an answer")
}

async fn is_allowed(limiter: &impl Limiter<u64>, key: u64) -> bool {
    acquire(limiter, key, AcquireOptions::default()).await.decision.is_allowed()
}

#[tokio::test]
async fn cached_denial_expires_after_max_age() {
    let clock = ManualClock::new();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Counted { limiter: per_second(1, &clock), calls: Arc::clone(&calls) };
    // A clone does not prevent the setting: see `max_age`.
    let cache = DeniedCache::with_clock(counted, 64, clock.clone());
    let limiter = cache.clone().max_age(Duration::from_millis(100));
    drop(cache);
    assert!(is_allowed(&limiter, 1).await);
    assert!(!is_allowed(&limiter, 1).await);
    clock.advance(Duration::from_millis(99));
    assert!(!is_allowed(&limiter, 1).await);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    clock.advance(Duration::from_millis(1));
    let repeated = acquire(&limiter, 1, AcquireOptions::default()).await.decision;
    assert_eq!(repeated.retry_after(), Some(Duration::from_millis(900)));
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    // The denial of a cost above the limit, too.
    for calls_before in [3, 4] {
        assert_eq!(calls.load(Ordering::Relaxed), calls_before);
        for _ in 0..2 {
            assert!(acquire(&limiter, 2, AcquireOptions::cost(4)).await.decision.exceeds_limit());
        }
        clock.advance(Duration::from_millis(100));
    }
}

#[tokio::test]
async fn exceeded_limit_is_answered_from_the_cache() {
    let clock = ManualClock::new();
    let (limiter, calls) = cached(per_second(3, &clock), &clock);
    let first = acquire(&limiter, 1, AcquireOptions::cost(4)).await.decision;
    let cached_denial = acquire(&limiter, 1, AcquireOptions::cost(4)).await.decision;
    assert!(first.exceeds_limit() && cached_denial.exceeds_limit());
    assert_eq!((first.source(), cached_denial.source()), (DecisionSource::Store, DecisionSource::Cache));
    assert!(acquire(&limiter, 1, AcquireOptions::cost(5)).await.decision.exceeds_limit());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    // A lower cost may be allowed, so the inner limiter decides.
    assert!(acquire(&limiter, 1, AcquireOptions::cost(3)).await.decision.is_allowed());
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    // The limit may have been raised in the meantime.
    clock.advance(DeniedCache::<()>::EXCEEDS_LIMIT_TTL.saturating_sub(Duration::from_micros(1)));
    assert!(acquire(&limiter, 1, AcquireOptions::cost(4)).await.decision.exceeds_limit());
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    clock.advance(Duration::from_micros(1));
    assert!(acquire(&limiter, 1, AcquireOptions::cost(4)).await.decision.exceeds_limit());
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn peek_returns_and_inserts_cached_denials() {
    let clock = ManualClock::new();
    let (limiter, calls) = cached(per_second(1, &clock), &clock);
    assert!(is_allowed(&limiter, 1).await);
    let peeked = limiter.peek(&1, AcquireOptions::default()).await.expect("an answer");
    assert_eq!((calls.load(Ordering::Relaxed), peeked.source()), (2, DecisionSource::Store));
    assert!(!is_allowed(&limiter, 1).await);
    let again = limiter.peek(&1, AcquireOptions::default()).await.expect("an answer");
    assert_eq!((calls.load(Ordering::Relaxed), again.source()), (2, DecisionSource::Cache));
    assert_eq!(again.retry_after(), peeked.retry_after());
    // A peek of cost zero reads the figures and is not answered from the cache.
    let _ = limiter.peek(&1, AcquireOptions::cost(0)).await.expect("an answer");
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn invalidate_and_clear_remove_denials_of_a_lower_quota() {
    // No later denial can displace that of the last key.
    const LAST: u64 = 39;
    let limit = Arc::new(AtomicU64::new(1));
    let of_key = {
        let limit = Arc::clone(&limit);
        move |_: &u64| FixedWindow::new(Quota::per_hour(limit.load(Ordering::Relaxed)))
    };
    let clock = ManualClock::new();
    let (limiter, calls) = cached(boxed(per_key(of_key), &clock), &clock);
    for key in 0..=LAST {
        assert!(is_allowed(&limiter, key).await && !is_allowed(&limiter, key).await);
    }
    limit.store(2, Ordering::Relaxed);
    let before = calls.load(Ordering::Relaxed);
    assert!(!is_allowed(&limiter, LAST).await, "the cache does not observe the raised quota");
    assert_eq!(calls.load(Ordering::Relaxed), before);
    limiter.invalidate(&LAST);
    assert!(is_allowed(&limiter, LAST).await);
    limiter.clear();
    for key in 0..LAST {
        assert!(is_allowed(&limiter, key).await, "{key}");
    }
}

/// With one slot, the denial of one key is in the slots of all keys.
#[tokio::test]
async fn invalidation_of_another_key_keeps_a_cached_denial() {
    let clock = ManualClock::new();
    let limiter = DeniedCache::with_clock(per_second(1, &clock), 1, clock.clone());
    assert!(is_allowed(&limiter, 1).await && !is_allowed(&limiter, 1).await);
    limiter.invalidate(&2);
    limiter.reset(&2).await.expect("done");
    assert_eq!(acquire(&limiter, 1, AcquireOptions::default()).await.decision.source(), DecisionSource::Cache);
    limiter.invalidate(&1);
    assert_eq!(acquire(&limiter, 1, AcquireOptions::default()).await.decision.source(), DecisionSource::Store);
}

/// A store can have run an operation although it returned an error, or although its caller dropped the future.
#[tokio::test]
async fn operation_without_a_result_removes_the_cached_denial() {
    /// A limiter whose operations take effect and then fail.
    struct LosesResponses(BoxLimiter<u64>);

    impl Limiter<u64> for LosesResponses {
        fn acquire(&self, key: &u64, options: AcquireOptions) -> LimiterFuture<Outcome> {
            self.0.acquire(key, options)
        }

        fn administer(&self, key: &u64, operation: AdminOperation<'_>) -> LimiterFuture<()> {
            self.0.administer(key, operation).detach();
            LimiterFuture::ready(Err(Error::unavailable("the connection was lost")))
        }
    }

    let clock = ManualClock::new();
    let limiter = DeniedCache::with_clock(LosesResponses(per_second(1, &clock)), 64, clock.clone());
    assert!(is_allowed(&limiter, 1).await && !is_allowed(&limiter, 1).await);
    limiter.reset(&1).await.expect_err("the response was lost");
    assert!(is_allowed(&limiter, 1).await);
}

#[tokio::test]
async fn denial_in_flight_during_clear_invalidate_or_reset_is_not_cached() {
    let clock = ManualClock::new();
    let (limiter, _) = cached(per_second(1, &clock), &clock);
    let ends: [fn(&Cached); 3] =
        [|limiter| limiter.invalidate(&1), |limiter| limiter.clear(), |limiter| immediate::ready(limiter.reset(&1))];
    for end in ends {
        limiter.reset(&1).await.expect("done");
        assert!(is_allowed(&limiter, 1).await);
        let in_flight = limiter.acquire(&1, AcquireOptions::default());
        end(&limiter);
        assert!(!in_flight.await.expect("an answer").decision.is_allowed());
        let repeated = acquire(&limiter, 1, AcquireOptions::default()).await.decision;
        assert_eq!(repeated.source(), DecisionSource::Store);
    }
}

/// "The cache has a capacity of about `keys` keys."
///
/// A denial displaces another one if both of its slots are taken: in a half full cache, 8 of 100 do. With one slot for
/// each key 21 of 100 would.
#[tokio::test]
async fn denials_of_half_as_many_keys_as_the_capacity_rarely_displace_each_other() {
    const KEYS: u64 = 1024;
    let clock = ManualClock::new();
    let memory = Memory::builder(FixedWindow::new(Quota::per_hour(1))).max_keys(2_000).clock(clock.clone());
    let limiter = DeniedCache::with_clock(memory.build().expect("a limit"), 2 * 1024, clock.clone());
    for key in 0..KEYS {
        assert!(is_allowed(&limiter, key).await && !is_allowed(&limiter, key).await);
    }
    let mut cached = 0;
    for key in 0..KEYS {
        let decision = acquire(&limiter, key, AcquireOptions::default()).await.decision;
        // The denial that is not cached displaces another one now.
        cached += u32::from(decision.source() == DecisionSource::Cache);
    }
    assert!(cached > 840, "{cached} of {KEYS} denials are cached");
}

/// "A new denial replaces a denial that expires sooner."
///
/// Of 200 long denials among 1024 slots, a thousand short denials displace those that are in both slots of a short one:
/// about 30. If they displaced the denial in any of their slots, they would displace more than half of the 200.
#[tokio::test]
async fn new_denial_replaces_a_denial_that_expires_sooner() {
    let clock = ManualClock::new();
    let is_long = |key: u64| (1000..1200).contains(&key);
    let of_key =
        move |&key: &u64| FixedWindow::new(if is_long(key) { Quota::per_hour(1) } else { Quota::per_second(1) });
    let memory = Memory::builder(per_key(of_key)).max_keys(5_000).clock(clock.clone()).build().expect("a limit");
    let limiter = DeniedCache::with_clock(memory, 1024, clock.clone());
    for key in 0..2200 {
        assert!(is_allowed(&limiter, key).await && !is_allowed(&limiter, key).await);
    }
    let mut cached = 0;
    for key in 1000..1200 {
        let decision = acquire(&limiter, key, AcquireOptions::default()).await.decision;
        cached += u32::from(decision.source() == DecisionSource::Cache);
    }
    assert!(cached > 120, "{cached} long denials are cached");
}

type CountedPart = Arc<Counted>;
type CachedChain = DeniedCache<Chained<CountedPart, CountedPart>, ManualClock>;

/// A cache around two chained limiters, and the counts of calls that reach their stores.
fn cached_chain(limits: [u64; 2], clock: &ManualClock) -> (CachedChain, [Arc<AtomicU64>; 2]) {
    let reached: [Arc<AtomicU64>; 2] = Default::default();
    let counting = |index: usize, period: u64| {
        let limit = FixedWindow::new(Quota::new(limits[index], Duration::from_secs(period)));
        let limiter = boxed(limit, clock);
        Arc::new(Counted { limiter, calls: Arc::clone(&reached[index]) })
    };
    (DeniedCache::with_clock(Chained::new(counting(0, 10), counting(1, 20)), 64, clock.clone()), reached)
}

async fn check_cached_denial_reaches_no_store(limits: [u64; 2], cost: u64) {
    let clock = ManualClock::new();
    let (limiter, reached) = cached_chain(limits, &clock);
    let count = || reached.each_ref().map(|reached| reached.load(Ordering::Relaxed));
    while acquire(&limiter, 1, AcquireOptions::cost(cost)).await.decision.is_allowed() {}
    let first = acquire(&limiter, 1, AcquireOptions::cost(cost)).await.decision;
    let before = count();
    clock.advance(Duration::from_secs(3));
    for _ in 0..100 {
        let again = acquire(&limiter, 1, AcquireOptions::cost(cost)).await.decision;
        assert_eq!(again.source(), DecisionSource::Cache);
        let expected = first.retry_after().map(|wait| wait.saturating_sub(Duration::from_secs(3)));
        assert_eq!((again.retry_after(), again.exceeds_limit()), (expected, first.exceeds_limit()), "{limits:?}");
        assert_eq!(limiter.peek(&1, AcquireOptions::cost(cost)).await.expect("an answer").retry_after(), expected);
    }
    assert_eq!(count(), before, "{limits:?}");
}

/// Denials by the first limiter, by the second, and by both, with the longer wait; and of a cost above the limit of either.
#[tokio::test]
async fn denials_of_chained_limiters_are_cached() {
    for (limits, cost) in [([2, 9], 1), ([9, 2], 1), ([2, 2], 1), ([2, 9], 3), ([9, 2], 3)] {
        check_cached_denial_reaches_no_store(limits, cost).await;
    }
}

/// What the limiter inside would answer where the cache answers.
#[derive(Debug, Default, PartialEq)]
struct CachedDenials {
    denied: u64,
    /// A charge of another key has made a delayed start possible.
    scheduled: u64,
    allowed: u64,
}

/// Runs random requests of `keys` keys with a limit of their own and one for all, also with holds that are settled and with
/// operations, through the cache and beside it.
fn snapshots(decision: &Decision) -> impl Iterator<Item = LimitSnapshot> {
    decision.limits().iter().map(LimitStatus::snapshot)
}

fn answers_of_the_cache(seed: u64, keys: u64, accepts_delay: bool) -> CachedDenials {
    const QUOTA: Quota = Quota::new(2, Duration::from_secs(6));
    fn own(algorithm: impl Algorithm) -> DynLimit<u64> {
        DynLimit::new(Limit::new("key", algorithm))
    }
    let clock = ManualClock::new();
    let own = match seed % 6 {
        0 => own(Gcra::new(QUOTA).burst(1 + seed % 4)),
        1 => own(LeakyQueue::new(QUOTA).max_waiting(2)),
        2 => own(FixedWindow::new(QUOTA)),
        3 => own(SlidingWindow::new(QUOTA).blocks(4)),
        4 => own(SlidingWindow::new(QUOTA).blocks(4).weighted()),
        _ => own(SlidingLog::new(QUOTA)),
    };
    let all = Limit::new("all", Gcra::new(Quota::per_second(1)).burst(8)).keyed_by(|_: &u64| ());
    let inside = boxed_limits(vec![own, DynLimit::new(all)], &clock);
    let limiter = DeniedCache::with_clock(inside.clone(), 64, clock.clone());
    let (mut random, mut answers, mut guards) = (Random(seed), CachedDenials::default(), Vec::new());
    // A hold that is settled later can make a delayed start possible.
    let (has_holds, costs, settles_later) = (seed % 4 < 2, 1 + seed % 2, keys > 1 || !accepts_delay);
    for _ in 0..400 {
        let key = random.below(keys);
        let max_delay = if accepts_delay { Duration::from_secs(random.below(4)) } else { Duration::ZERO };
        let detail = random.choose(&[Detail::MostRestrictive, Detail::AllIfDenied, Detail::All]);
        let options = AcquireOptions::cost(1 + random.below(costs)).max_delay(max_delay).detail(detail);
        match random.below(40) {
            0..=9 => clock.advance(Duration::from_millis(random.below(900))),
            10..=14 if !guards.is_empty() => {
                let held: Held = guards.swap_remove(0);
                let actual = random.below(2);
                immediate::ready(held.settle(actual));
            }
            // The hold is that of another caller, which the cache does not see.
            15..=19 if has_holds && settles_later => {
                guards.extend(immediate::acquire(&inside, &key, options.hold()).held);
            }
            20 => immediate::ready(limiter.block("key", &key, Duration::from_secs(random.below(9)))),
            21 => immediate::ready(limiter.set_usage("key", &key, random.below(3))),
            // The limit for all is reset, too.
            22 if keys == 1 => immediate::ready(limiter.reset(&key)),
            kind => {
                let options = if has_holds && kind < 28 { options.hold() } else { options };
                let without_cache = immediate::peek(&inside, &key, options);
                let is_peek = kind == 28;
                let decision = if is_peek {
                    immediate::peek(&limiter, &key, options)
                } else {
                    let Outcome { decision, held, .. } = immediate::acquire(&limiter, &key, options);
                    guards.extend(held.filter(|_| settles_later));
                    decision
                };
                if decision.source() != DecisionSource::Cache {
                    assert_eq!(decision.is_allowed(), without_cache.is_allowed());
                    continue;
                }
                let context = format!("seed {seed}: {options:?}, {decision:?} and {without_cache:?}");
                assert!(decision.limits().len() >= without_cache.limits().len(), "{context}");
                assert_eq!(decision.decided_at(), clock.now(), "{context}");
                for LimitSnapshot { limit, remaining, next_token_after, reset, .. } in snapshots(&decision) {
                    assert!(next_token_after <= reset, "{context}");
                    assert_eq!(next_token_after.is_zero(), remaining == limit, "{context}");
                }
                // A larger cost than the denied one, or a smaller delay, may wait longer.
                assert!(costs > 1 || !decision.is_estimate(), "{context}");
                if keys == 1 && costs == 1 && !has_holds && !accepts_delay {
                    assert_eq!(decision.retry_after(), without_cache.retry_after(), "{context}");
                }
                match without_cache.verdict() {
                    Verdict::Denied { .. } | Verdict::ExceedsLimit => answers.denied += 1,
                    Verdict::AllowedAfter(_) => answers.scheduled += 1,
                    Verdict::Allowed => answers.allowed += 1,
                }
            }
        }
    }
    answers
}

/// While the cache answers, the limiter would deny. The exception is a request that accepts a delay under several
/// limits: a charge of another key or a settled hold can make a delayed start possible.
#[test]
fn cached_denial_of_several_limits_hides_delayed_starts_only() {
    let (mut alone, mut at_once, mut delayed) = <(CachedDenials, CachedDenials, CachedDenials)>::default();
    for seed in 0..60 {
        for (sum, keys, accepts_delay) in
            [(&mut alone, 1, seed % 5 > 1), (&mut at_once, 3, false), (&mut delayed, 3, true)]
        {
            let CachedDenials { denied, scheduled, allowed } = answers_of_the_cache(seed, keys, accepts_delay);
            sum.denied += denied;
            sum.scheduled += scheduled;
            sum.allowed += allowed;
        }
    }
    let counts = format!("alone {alone:?}, at once {at_once:?}, delayed {delayed:?}");
    println!("{counts}");
    for exact in [alone, at_once] {
        assert!(exact.denied > 1_000 && (exact.scheduled, exact.allowed) == (0, 0), "{counts}");
    }
    assert!(delayed.denied > 1_000 && delayed.scheduled > 0 && delayed.allowed == 0, "{counts}");
}
