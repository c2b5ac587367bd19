//! Carrying over usage: the merged state has at least the usage of either state, and at most the sum of both.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, Counters, HitLog};
use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, LeakyQueue, Quota, SlidingLog, Timestamp, Verdict};

use crate::algorithm_ext::AlgorithmExt as _;
use crate::cases;
use crate::harness::{aligned, no_windows, sliding_window};
use crate::options::WithDefaults;
use crate::schedule::{blocks, calendar_quota, quota};
use crate::span::{micros, ticks};

/// A charge: to the first state or to the second, after a number of 256ths of the period, and its cost.
type Charge = (bool, u64, u64);

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn carry_over_of_a_bucket_is_exact(quota in small_quota(), burst in 1u64..20, charges in charges()) {
        let states = MergedStates::after(Gcra::new(quota).burst(burst), [0; 4], quota, &charges);
        states.assert_no_smaller()?;
        states.assert_exact()?;
    }

    #[test]
    fn carry_over_by_default_is_exact_when_the_reset_determines_the_usage(
        limit in 1u64..20,
        interval in 1u64..1_000,
        charges in charges(),
    ) {
        let quota = Quota::new(limit, ticks(limit * interval));
        let states = MergedStates::after(WithDefaults(Gcra::new(quota)), [0; 4], quota, &charges);
        states.assert_no_smaller()?;
        states.assert_exact()?;
        prop_assert_eq!(states.algorithm.counter_words(), Counters::MAX_WORDS);
    }

    #[test]
    fn carry_over_of_a_queue_is_exact(quota in small_quota(), max_waiting in 0u64..20, charges in charges()) {
        let states = MergedStates::after(LeakyQueue::new(quota).max_waiting(max_waiting), [0; 4], quota, &charges);
        states.assert_no_smaller()?;
        states.assert_exact()?;
    }

    #[test]
    fn carry_over_of_a_sliding_log_is_exact(quota in small_quota(), charges in charges()) {
        let states = MergedStates::after(SlidingLog::new(quota), HitLog::default(), quota, &charges);
        states.assert_no_smaller()?;
        if states.within_limit {
            states.assert_exact()?;
        }
    }

    #[test]
    fn carry_over_of_a_fixed_window_is_exact(quota in small_quota(), is_aligned in any::<bool>(), charges in charges()) {
        let window = if is_aligned { aligned(quota) } else { FixedWindow::new(quota) };
        let states = MergedStates::after(window, no_windows(), quota, &charges);
        states.assert_no_smaller()?;
        states.assert_exact_at(states.now)?;
    }

    #[test]
    fn carry_over_of_a_sliding_window_is_at_most_the_sum(spec in blocks(), charges in charges()) {
        let window = sliding_window(spec);
        let states = MergedStates::after(window, Counters::zero(Counters::MAX_WORDS), window.quota(), &charges);
        states.assert_no_smaller()?;
        for time in states.times() {
            let first_word = Timestamp::from_micros(states.merged[0]);
            prop_assert_eq!(first_word, Timestamp::from_micros(states.now).saturating_add(states.reset(&states.merged)));
            let used = |state| window.quota().limit() - states.remaining(state, time);
            prop_assert!(used(&states.merged) <= used(&states.own) + used(&states.other), "at {}", time);
        }
    }

    #[test]
    fn carry_over_from_an_earlier_tier_is_no_smaller(
        tiers in (blocks(), blocks()),
        logs in (small_quota(), small_quota()),
        charges in charges(),
    ) {
        let zero = Counters::zero(Counters::MAX_WORDS);
        let (own, previous) = (sliding_window(tiers.0), sliding_window(tiers.1));
        MergedStates::after_tiers(own, previous, zero, own.quota(), &charges).assert_no_smaller()?;
        let (own, previous) = (SlidingLog::new(logs.0), SlidingLog::new(logs.1));
        MergedStates::after_tiers(own, previous, HitLog::default(), logs.0, &charges).assert_no_smaller()?;
        let (own, previous) = (FixedWindow::new(logs.0), aligned(logs.1));
        MergedStates::after_tiers(own, previous, no_windows(), logs.0, &charges).assert_no_smaller()?;
    }

    #[test]
    fn carry_over_after_the_clock_stepped_back_is_at_the_newest_time(
        spec in blocks(),
        quota in small_quota(),
        burst in 1u64..20,
        is_aligned in any::<bool>(),
        charges in charges(),
        back in 0u64..=256,
    ) {
        let window = sliding_window(spec);
        assert_newest_time(window, Counters::zero(Counters::MAX_WORDS), window.quota(), &charges, back)?;
        // Not a calendar's window, which accepts a step back by a window only: its maximum reset is longer.
        let fixed = FixedWindow::new(quota);
        let fixed = if is_aligned { fixed.aligned_to_clock() } else { fixed };
        assert_newest_time(fixed, no_windows(), quota, &charges, back)?;
        assert_newest_time(SlidingLog::new(quota), HitLog::default(), quota, &charges, back)?;
        assert_newest_time(Gcra::new(quota).burst(burst), [0; 4], quota, &charges, back)?;
    }

    /// A log that was charged under another tier counts its hits for the shorter period until the next charge.
    #[test]
    fn carry_over_from_a_never_seen_key_keeps_the_period_of_a_log(
        quotas in (small_quota(), small_quota()),
        charges in charges(),
    ) {
        let (tier, previous) = (SlidingLog::new(quotas.0), SlidingLog::new(quotas.1));
        let charges: Vec<_> = charges.into_iter().map(|(_, share, cost)| (false, share, cost)).collect();
        let states = MergedStates::after_tiers(tier, previous, HitLog::default(), quotas.1, &charges);
        let mut other = states.other.clone();
        tier.carry_over_debt(&mut other, &HitLog::default(), Timestamp::from_micros(states.now));
        for time in states.times() {
            prop_assert_eq!(states.remaining(&other, time), states.remaining(&states.other, time), "at {}", time);
        }
    }

    /// One tier only: a bucket rounds up a debt that it converts from another rate.
    #[test]
    fn carry_over_from_a_never_seen_key_changes_nothing(spec in blocks(), quota in quota(), charges in charges()) {
        let window = sliding_window(spec);
        let zero = Counters::zero(Counters::MAX_WORDS);
        MergedStates::after(window, zero, window.quota(), &charges).assert_unseen_state_is_neutral()?;
        MergedStates::after(FixedWindow::new(quota), no_windows(), quota, &charges).assert_unseen_state_is_neutral()?;
        if let Ok(log) = SlidingLog::try_new(quota) {
            MergedStates::after(log, HitLog::default(), quota, &charges).assert_unseen_state_is_neutral()?;
        }
        if let Ok(bucket) = Gcra::try_new(quota) {
            MergedStates::after(bucket, [0; 4], quota, &charges).assert_unseen_state_is_neutral()?;
        }
    }
}

fn charges() -> impl Strategy<Value = Vec<Charge>> {
    vec((any::<bool>(), prop_oneof![2 => Just(0), 3 => 0u64..150], 1u64..6), 1..15)
}

fn small_quota() -> impl Strategy<Value = Quota> {
    let short = prop_oneof![5u64..100, 1_000u64..100_000];
    let short = (1u64..20, short).prop_map(|(limit, period)| Quota::new(limit, ticks(period)));
    prop_oneof![3 => short, 1 => calendar_quota()]
}

/// Carries over at a time before the last charge, by at most `back` 256ths of the maximum reset. Until the last charge
/// the merged state decides as at that time, and from then on it is no smaller than either state.
fn assert_newest_time<A: Algorithm + Copy>(
    algorithm: A,
    zero: A::State,
    quota: Quota,
    charges: &[Charge],
    back: u64,
) -> Result<(), TestCaseError> {
    let states = MergedStates::after(algorithm, zero, quota, &charges[..charges.len() - 1]);
    let &(_, _, cost) = charges.last().expect("a charge");
    let (last, max_reset) = (states.now, micros(algorithm.max_reset()));
    for is_own in [true, false] {
        let (mut own, mut other) = (states.own.clone(), states.other.clone());
        let newest = if is_own { &mut own } else { &mut other };
        algorithm.charge(newest, Timestamp::from_micros(last), Duration::ZERO, cost);
        let earliest = last.saturating_sub(max_reset);
        let mut merged = own.clone();
        algorithm.carry_over_debt(&mut merged, &other, Timestamp::from_micros(last - (last - earliest) * back / 256));
        let remaining = states.remaining(&merged, last);
        for time in [earliest, earliest + 1, last - (last - earliest) / 2, last - 1] {
            prop_assert_eq!(states.remaining(&merged, time), remaining, "at {} before {}", time, last);
        }
        // A step back by more than the maximum reset is a clock that was wrong.
        if let Some(long_before) = last.checked_sub(max_reset + 1) {
            let unused = states.remaining(&states.zero, long_before);
            prop_assert_eq!(states.remaining(&merged, long_before), unused, "{:?} at {}", algorithm, long_before);
        }
        for time in states.times() {
            let min = states.remaining(&own, time).min(states.remaining(&other, time));
            prop_assert!(states.remaining(&merged, time) <= min, "at {}", time);
        }
    }
    Ok(())
}

/// Two states, and the result of carrying over the usage of the second to the first.
struct MergedStates<A: Algorithm> {
    algorithm: A,
    zero: A::State,
    own: A::State,
    other: A::State,
    merged: A::State,
    now: u64,
    period: u64,
    /// Whether every charge was allowed.
    within_limit: bool,
}

impl<A: Algorithm + Copy> MergedStates<A> {
    fn after(algorithm: A, zero: A::State, quota: Quota, charges: &[Charge]) -> Self {
        Self::after_tiers(algorithm, algorithm, zero, quota, charges)
    }

    /// The second state is charged under another tier.
    fn after_tiers(algorithm: A, previous: A, zero: A::State, quota: Quota, charges: &[Charge]) -> Self {
        let (mut own, mut other) = (zero.clone(), zero.clone());
        let (mut now, period) = (1_000_000, micros(quota.period()));
        let mut within_limit = true;
        for &(is_own, share, cost) in charges {
            now += period / 256 * share + share % 5;
            let (tier, state) = if is_own { (algorithm, &mut own) } else { (previous, &mut other) };
            let verdict = tier.peek(state, Timestamp::from_micros(now), AcquireOptions::cost(cost));
            within_limit &= verdict == Verdict::Allowed;
            tier.charge(state, Timestamp::from_micros(now), Duration::ZERO, cost);
        }
        // Some time after the last charge, so that the newest block may be empty.
        now += period / 256 * charges.first().map_or(0, |&(_, share, _)| share);
        let mut merged = own.clone();
        algorithm.carry_over_debt(&mut merged, &other, Timestamp::from_micros(now));
        Self { algorithm, zero, own, other, merged, now, period, within_limit }
    }

    fn times(&self) -> impl Iterator<Item = u64> {
        let (now, period) = (self.now, self.period);
        (0..40).map(move |step| now + period / 16 * step + step)
    }

    fn remaining(&self, state: &A::State, time: u64) -> u64 {
        self.algorithm.snapshot(state, Timestamp::from_micros(time)).compute().remaining
    }

    fn reset(&self, state: &A::State) -> Duration {
        self.algorithm.snapshot(state, Timestamp::from_micros(self.now)).compute().reset
    }

    fn assert_no_smaller(&self) -> Result<(), TestCaseError> {
        prop_assert!(self.reset(&self.merged) >= self.reset(&self.own).max(self.reset(&self.other)));
        for time in self.times() {
            let min = self.remaining(&self.own, time).min(self.remaining(&self.other, time));
            prop_assert!(self.remaining(&self.merged, time) <= min, "at {}", time);
        }
        Ok(())
    }

    fn assert_exact_at(&self, time: u64) -> Result<(), TestCaseError> {
        let min = self.remaining(&self.own, time).min(self.remaining(&self.other, time));
        prop_assert_eq!(self.remaining(&self.merged, time), min, "at {}", time);
        prop_assert_eq!(self.reset(&self.merged), self.reset(&self.own).max(self.reset(&self.other)));
        Ok(())
    }

    fn assert_exact(&self) -> Result<(), TestCaseError> {
        self.times().try_for_each(|time| self.assert_exact_at(time))
    }

    /// Carrying over from or to an unseen state changes no usage.
    fn assert_unseen_state_is_neutral(&self) -> Result<(), TestCaseError> {
        let now = Timestamp::from_micros(self.now);
        let (mut own, mut zero) = (self.own.clone(), self.zero.clone());
        self.algorithm.carry_over_debt(&mut own, &self.zero, now);
        self.algorithm.carry_over_debt(&mut zero, &self.own, now);
        for time in self.times() {
            let snapshot = |state| self.algorithm.snapshot(state, Timestamp::from_micros(time)).compute();
            prop_assert_eq!(snapshot(&own), snapshot(&self.own), "at {}", time);
            prop_assert_eq!(snapshot(&zero), snapshot(&self.own), "at {}", time);
        }
        Ok(())
    }
}

/// Beyond the limit's number of hits only penalties go: they count with the hit after them, for longer.
#[test]
fn carry_over_of_a_full_log_adds_older_penalties_to_the_oldest_hit() {
    let log = SlidingLog::new(Quota::new(2, ticks(1_000)));
    let charged = |hits: &[(u64, u64)]| {
        let mut state = HitLog::default();
        for &(time, cost) in hits {
            log.charge(&mut state, Timestamp::from_micros(1_000_000 + time), Duration::ZERO, cost);
        }
        state
    };
    let (mut own, other) = (charged(&[(10, 1), (40, 1)]), charged(&[(0, 3), (30, 2)]));
    log.carry_over_debt(&mut own, &other, Timestamp::from_micros(1_000_050));
    let used_at =
        |time: u64| own.hits().iter().filter(|hit| hit.0 + 1_000 > 1_000_000 + time).map(|hit| hit.1).sum::<u64>();
    assert_eq!([1_000, 1_029, 1_030, 1_039, 1_040].map(used_at), [5, 5, 1, 1, 0]);
    assert!(own.hits().capacity() <= 2, "a log reserves at most its limit");
    // The same number of bytes if one of both has no hits.
    let log = SlidingLog::new(Quota::new(5, ticks(1_000)));
    let (mut own, other) = (HitLog::default(), charged(&[(0, 1), (30, 1)]));
    log.carry_over_debt(&mut own, &other, Timestamp::from_micros(1_000_050));
    assert_eq!((own.hits().len(), own.hits().capacity()), (2, 2));
}
