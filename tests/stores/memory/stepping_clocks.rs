//! A limiter's own clock that steps back: one rule for all that is stored.

use std::time::Duration;

use tower_ratelimit::limiter::{DeniedCache, LimiterFuture, Outcome};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock, Decision, FixedWindow, Gcra, InFlight, LeakyBucket, LeakyQueue, LimitSnapshot,
    LimitStatus, Limiter, ManualClock, Memory, Quota, SlidingLog, SlidingWindow, Timestamp, TokenBucket, Verdict,
};

use crate::immediate::{self, boxed};

/// The time for which each kind is stored.
const SPAN: Duration = Duration::from_secs(60);
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const TEN: Quota = Quota::per_minute(10);

fn acquire(limiter: &BoxLimiter<u64>, cost: u64) -> Outcome {
    immediate::acquire(limiter, &1, AcquireOptions::cost(cost).max_delay(Duration::ZERO).keep_guard())
}

fn is_allowed(limiter: &BoxLimiter<u64>) -> bool {
    let options = AcquireOptions::default().max_delay(Duration::ZERO);
    limiter.peek(&1, options).try_ready().expect("ready").expect("a decision").is_allowed()
}

/// A limiter that denies its first request for [`SPAN`], and then nothing.
struct DeniesOnce {
    clock: ManualClock,
    denied: std::sync::atomic::AtomicBool,
}

impl Limiter<u64> for DeniesOnce {
    fn acquire(&self, _: &u64, _: AcquireOptions) -> LimiterFuture<Outcome> {
        let is_first = !self.denied.swap(true, std::sync::atomic::Ordering::Relaxed);
        let verdict = if is_first { Verdict::Denied { retry_after: SPAN } } else { Verdict::Allowed };
        let snapshot = LimitSnapshot::new(1, SPAN).with_remaining(0).with_reset(SPAN).with_next_token_after(SPAN);
        let status = LimitStatus::new("once", verdict, snapshot);
        LimiterFuture::ready(Ok(Decision::from_limit(self.clock.now(), status).into()))
    }

    fn peek(&self, key: &u64, options: AcquireOptions) -> tower_ratelimit::limiter::LimiterFuture<Decision> {
        let Ok(outcome) = self.acquire(key, options).try_ready() else { unreachable!("ready") };
        tower_ratelimit::limiter::LimiterFuture::ready(outcome.map(|outcome| outcome.decision))
    }
}

/// Limiters that deny the key now, for [`SPAN`] at most, each by another kind of entry.
fn locked(clock: &ManualClock) -> Vec<(&'static str, BoxLimiter<u64>, Vec<Outcome>)> {
    macro_rules! full {
        ($($name:literal: $algorithm:expr),+ $(,)?) => {
            vec![$({
                let limiter = boxed($algorithm, clock);
                let used = acquire(&limiter, 10);
                assert!(used.decision.is_allowed(), $name);
                ($name, limiter, vec![used])
            }),+]
        };
    }
    let mut kinds = full![
        "gcra": Gcra::new(TEN),
        "token bucket": TokenBucket::new(TEN),
        "leaky bucket": LeakyBucket::new(TEN),
        "leaky queue": LeakyQueue::new(TEN).max_waiting(9),
        "fixed window": FixedWindow::new(TEN),
        "sliding window": SlidingWindow::new(TEN),
        "weighted window": SlidingWindow::new(TEN).weighted(),
        "sliding log": SlidingLog::new(TEN),
        "requests in flight": InFlight::new(10).max_duration(SPAN),
    ];
    let blocked = boxed(Gcra::new(TEN), clock);
    immediate::ready(blocked.block("default", &1, SPAN));
    kinds.push(("block", blocked, Vec::new()));
    macro_rules! held {
        ($($name:literal: $algorithm:expr),+ $(,)?) => {
            $({
                let limiter = boxed($algorithm, clock);
                let hold = AcquireOptions::cost(10).id("a").expires_in(SPAN).hold();
                assert!(immediate::acquire(&limiter, &1, hold).decision.is_allowed(), $name);
                kinds.push(($name, limiter, Vec::new()));
            })+
        };
    }
    held![
        "id of requests in flight": InFlight::new(10),
        "id of a bucket": Gcra::new(TEN),
        "id of a window": FixedWindow::new(TEN),
        "id of a log": SlidingLog::new(TEN),
    ];
    let denies_once = DeniesOnce { clock: clock.clone(), denied: false.into() };
    let cache = BoxLimiter::new(DeniedCache::with_clock(denies_once, 100, clock.clone()));
    assert!(!acquire(&cache, 1).decision.is_allowed());
    kinds.push(("cached denial", cache, Vec::new()));
    kinds
}

/// The law: after a step back by more than the time for which an entry is stored, the entry does not count. After a
/// shorter step, the entry locks the key for at most that time longer.
#[test]
fn entry_of_a_clock_that_stepped_back_locks_no_key_for_long() {
    let start = Timestamp::from_micros(3_000_000_000_000_000);
    let steps = [Duration::ZERO, SPAN / 4, SPAN, SPAN * 2 + Duration::from_micros(1), SPAN * 3, YEAR, 40 * YEAR];
    let mut checked = 0;
    for step in steps {
        let kinds = locked(&ManualClock::at(start)).len();
        for kind in 0..kinds {
            let clock = ManualClock::at(start);
            let (name, limiter, _guards) = locked(&clock).swap_remove(kind);
            assert!(!is_allowed(&limiter), "{name} denies");
            let now = Timestamp::from_micros(start.as_micros() - u64::try_from(step.as_micros()).expect("small"));
            clock.set(now);
            if step > 2 * SPAN {
                assert!(is_allowed(&limiter), "{name} recovers at once after {step:?}");
            } else {
                clock.advance(step + 2 * SPAN);
                assert!(is_allowed(&limiter), "{name} recovers after {step:?}");
            }
            checked += 1;
        }
    }
    assert_eq!(checked, 7 * 15);
}

/// The same for the ids themselves: after such a step, a hold or a request with the id is a new one.
#[test]
fn id_of_a_clock_that_stepped_back_is_forgotten() {
    let start = Timestamp::from_micros(3_000_000_000_000_000);
    let hold = AcquireOptions::cost(4).id("a").expires_in(SPAN).hold();
    let request = AcquireOptions::cost(4).once("a", 9, SPAN);
    for (step, is_forgotten) in [(SPAN / 2, false), (SPAN * 3, true), (YEAR, true)] {
        let clock = ManualClock::at(start);
        let memory = Memory::<u64, _>::builder(FixedWindow::new(TEN)).max_keys(100).clock(clock.clone());
        let memory = memory.build().expect("a limit");
        let call = |key: u64, options| immediate::acquire(&memory, &key, options).decision;
        assert!(call(1, hold).is_allowed());
        assert!(call(2, request).is_allowed());
        clock.set(Timestamp::from_micros(start.as_micros() - u64::try_from(step.as_micros()).expect("small")));
        let repeat = call(1, hold);
        assert_eq!((repeat.is_allowed(), repeat.is_repeat()), (is_forgotten, !is_forgotten), "{step:?}");
        let left = call(2, request).remaining();
        assert_eq!(left, Some(6), "{step:?}");
        let left = call(2, request).remaining();
        assert_eq!(left, Some(6), "{step:?}: remembered from then on");
        // After the longest time, nothing is left of the time before.
        clock.advance(step.min(SPAN) + SPAN * 2);
        assert!(call(1, AcquireOptions::cost(10)).is_allowed(), "{step:?}");
        let denied = call(1, hold);
        assert!(!denied.is_allowed() && !denied.is_repeat());
    }
}

/// An entry within its time counts although the clock has stepped back a little.
#[test]
fn entry_counts_after_a_short_step_back() {
    let start = Timestamp::from_micros(3_000_000_000_000_000);
    for kind in 0..15 {
        let clock = ManualClock::at(start);
        let (name, limiter, _guards) = locked(&clock).swap_remove(kind);
        clock.set(Timestamp::from_micros(start.as_micros() - 1_000_000));
        assert!(!is_allowed(&limiter), "{name}");
    }
}

/// Other entries of that time are replaced first: a new block is not evicted for a block that does not count.
#[test]
fn blocks_of_a_clock_that_stepped_back_make_room() {
    let clock = ManualClock::at(Timestamp::from_micros(3_000_000_000_000_000));
    let limiter = Memory::<u64, _>::builder(Gcra::new(TEN)).max_keys(1).clock(clock.clone()).build().expect("a limit");
    let block = |key: u64| limiter.block("default", &key, SPAN).try_ready().expect("ready").expect("blocked");
    (0..1000).for_each(block);
    clock.set(Timestamp::from_micros(3_000_000_000_000_000 - 31_536_000_000_000));
    let blocked = (1000..1020).filter(|&key| {
        block(key);
        !limiter.check(&key, 1).is_allowed()
    });
    assert_eq!(blocked.count(), 20);
}
