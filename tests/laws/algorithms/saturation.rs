//! Sums that exceed 64 bits or the longest period: the last microseconds of the clock, the largest surcharges, the horizon
//! of delayed starts.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, Counters, HitLog, State};
use tower_ratelimit::{AcquireOptions, FixedWindow, Quota, SlidingLog, SlidingWindow, Timestamp, TokenBucket, Verdict};

use crate::algorithm_ext::AlgorithmExt as _;
use crate::cases;
use crate::extremes::{delay, word};
use crate::harness::{Subject, no_windows};
use crate::model::{MAX_PERIOD, Spec};
use crate::schedule::quota;
use crate::span::{micros, ticks};

proptest! {
    #![proptest_config(cases(400))]

    /// Also in the last microseconds of the clock, where sums of times exceed 64 bits.
    #[test]
    fn charge_never_makes_a_key_idle_earlier(
        quota in quota(),
        burst in 1u64..20,
        start in word(),
        charges in vec((prop_oneof![0u64..3, word()], delay(), word()), 1..12),
    ) {
        if let Ok(bucket) = TokenBucket::try_new(quota).and_then(|bucket| bucket.try_burst(burst)) {
            assert_idle_later(&bucket, [0; 4], start, &charges)?;
        }
        assert_idle_later(&FixedWindow::new(quota), no_windows(), start, &charges)?;
        assert_idle_later(&FixedWindow::new(quota).aligned_to_clock(), no_windows(), start, &charges)?;
        let window = SlidingWindow::new(quota).blocks(1);
        assert_idle_later(&window, Counters::zero(window.counter_words()), start, &charges)?;
        if let Ok(log) = SlidingLog::try_new(quota) {
            assert_idle_later(&log, HitLog::default(), start, &charges)?;
        }
    }
}

/// Charges at times that never step back.
fn assert_idle_later<A: Algorithm>(
    algorithm: &A,
    mut state: A::State,
    start: u64,
    charges: &[(u64, Duration, u64)],
) -> Result<(), TestCaseError> {
    let (mut now, mut idle_at) = (start, 0);
    for &(wait, delay, cost) in charges {
        now = now.saturating_add(wait);
        algorithm.charge(&mut state, Timestamp::from_micros(now), delay, cost);
        let next = state.idle_at();
        prop_assert!(next >= idle_at, "{algorithm:?} at {now}: idle at {next} instead of {idle_at}");
        prop_assert!(cost == 0 || next > now || now == u64::MAX, "{algorithm:?} at {now}: idle at {next}");
        idle_at = next;
    }
    Ok(())
}

/// The window that a charge opens in the last microseconds of the clock does not end.
#[test]
fn windows_limit_in_the_last_microseconds_of_the_clock() {
    fn check<A: Algorithm>(tiers: &[A], zero: &A::State) {
        for (algorithm, times) in tiers.iter().flat_map(|tier| [(tier, [40, 40, 3]), (tier, [3, 3, 3])]) {
            let mut state = zero.clone();
            for before_end in times {
                let now = Timestamp::from_micros(u64::MAX - before_end);
                assert_eq!(algorithm.peek(&state, now, AcquireOptions::default()), Verdict::Allowed, "{algorithm:?}");
                algorithm.charge(&mut state, now, Duration::ZERO, 1);
            }
            for now in [u64::MAX - 3, u64::MAX - 2].map(Timestamp::from_micros) {
                let mut carried = zero.clone();
                algorithm.carry_over_debt(&mut carried, &state, now);
                assert!(carried.idle_at() > now.as_micros(), "{algorithm:?}");
                for (tier, state) in tiers.iter().flat_map(|tier| [(tier, &state), (tier, &carried)]) {
                    assert_full(tier, state, now);
                }
            }
        }
    }
    let quota = Quota::new(3, ticks(60));
    check(&[FixedWindow::new(quota)], &no_windows());
    check(&[SlidingLog::new(quota)], &HitLog::default());
    let window = SlidingWindow::new(quota);
    for blocks in [1, 6, 60] {
        check(&[window.blocks(blocks)], &Counters::zero(Counters::MAX_WORDS));
    }
}

/// Surcharges whose sum exceeds 64 bits: the key remains without quota, whatever quota reads the state.
#[test]
fn sum_of_surcharges_saturates() {
    fn check<A: Algorithm>(tiers: &[A], zero: &A::State, period: u64) {
        for (writer, gap) in tiers.iter().flat_map(|tier| [(tier, 0), (tier, period / 10)]) {
            let mut state = zero.clone();
            for step in 0..6 {
                let now = Timestamp::from_micros(1_000_000 * period + step * gap);
                let cost = if step % 2 == 0 { u64::MAX } else { 2 };
                writer.charge(&mut state, now, Duration::ZERO, cost);
                for tier in tiers {
                    assert_full(tier, &state, now);
                    let mut charged = state.clone();
                    tier.charge(&mut charged, now, Duration::ZERO, 2);
                    assert_full(tier, &charged, now);
                    let [mut own, mut other] = [(); 2].map(|()| zero.clone());
                    tier.charge(&mut own, now, Duration::ZERO, 1);
                    tier.charge(&mut other, now, Duration::ZERO, 1);
                    tier.carry_over_debt(&mut own, &state, now);
                    assert_full(tier, &own, now);
                    let mut carried = state.clone();
                    tier.carry_over_debt(&mut carried, &other, now);
                    assert_full(tier, &carried, now);
                }
            }
        }
    }
    let quota = |period| Quota::new(3, ticks(period));
    check(&[FixedWindow::new(quota(600)), FixedWindow::new(quota(600)).aligned_to_clock()], &no_windows(), 600);
    check(&[SlidingLog::new(quota(600)), SlidingLog::new(quota(700))], &HitLog::default(), 600);
    let window = |blocks| SlidingWindow::new(quota(600)).blocks(blocks);
    let windows = [window(10), window(1).weighted(), window(2), window(60).weighted()];
    check(&windows, &Counters::zero(Counters::MAX_WORDS), 600);
    check(&[TokenBucket::new(quota(600)), TokenBucket::new(quota(900))], &[0; 4], 600);
}

/// A surcharge of 2^64 - 1 and the fraction of the oldest block together exceed 64 bits.
#[test]
fn sum_of_a_weighted_window_saturates() {
    let window = SlidingWindow::new(Quota::new(9, ticks(10))).blocks(1).weighted();
    let mut state = Counters::zero(window.counter_words());
    for (time, cost) in [(1_000_005, 3), (1_000_015, u64::MAX)] {
        window.charge(&mut state, Timestamp::from_micros(time), Duration::ZERO, cost);
    }
    for time in 1_000_015..1_000_020 {
        assert_full(&window, &state, Timestamp::from_micros(time));
    }
}

/// Nothing is allowed now, with or without held costs.
fn assert_full<A: Algorithm>(algorithm: &A, state: &A::State, now: Timestamp) {
    for (cost, held) in [(1, 0), (3, 0), (1, 3), (3, 3)] {
        let (verdict, snapshot) = algorithm.peek_with_held(state, now, AcquireOptions::cost(cost).into(), held);
        let snapshot = snapshot.compute();
        let context = || format!("{algorithm:?} at {now:?}: {verdict:?}, {snapshot:?}");
        assert!(matches!(verdict, Verdict::Denied { retry_after } if retry_after > Duration::ZERO), "{}", context());
        assert!(snapshot.next_token_after > Duration::ZERO && snapshot.reset > Duration::ZERO, "{}", context());
        assert_eq!(snapshot.remaining, 0, "{}", context());
    }
}

/// At the time after which a denial allows a retry, a request starts without a delay, whatever the horizon for delayed
/// starts is. Here a full burst takes 200 years, and both costs are half a microsecond more than whole ones.
#[test]
fn retry_after_is_minimal_when_the_burst_takes_200_years() {
    let quota = Quota::new(2, ticks(385_224_609_375));
    let burst = 1 << 15;
    assert_eq!(burst * 385_224_609_375, 2 * MAX_PERIOD);
    for max_delay in [None, Some(Duration::ZERO), Some(ticks(1))] {
        let mut subject = Subject::new(&[vec![Spec::Bucket { quota, burst }]], 1_000);
        assert!(subject.acquire(AcquireOptions::cost(burst - 1)).is_allowed());
        let options = AcquireOptions::cost(3).max_delay(max_delay);
        let wait = micros(subject.peek(options).retry_after().expect("a denial"));
        assert!(subject.peek_at(1_000 + wait, options).is_allowed());
        assert!(!subject.peek_at(1_000 + wait - 1, options).is_allowed());
    }
}

/// The horizon for delayed starts is 200 years from now, at any time up to the end of the clock.
#[test]
fn delayed_start_is_scheduled_up_to_200_years_ahead() {
    let quota = Quota::new(1, ticks(MAX_PERIOD / 4));
    for start in [0, LATE_TIME, Timestamp::MAX.as_micros()] {
        let mut subject = Subject::new(&[vec![Spec::Bucket { quota, burst: 1 }]], start);
        let options = AcquireOptions::default().max_delay(Duration::MAX);
        let verdicts: Vec<_> = (0..5).map(|_| subject.acquire(options).verdict()).collect();
        let quarter = quota.period();
        let delayed = Verdict::AllowedAfter;
        let denied = Verdict::Denied { retry_after: quarter };
        assert_eq!(
            verdicts,
            [Verdict::Allowed, delayed(quarter), delayed(2 * quarter), delayed(3 * quarter), denied],
            "at {start}"
        );
    }
}

/// A century before the end of the clock.
const LATE_TIME: u64 = Timestamp::MAX.as_micros() - MAX_PERIOD / 2;
