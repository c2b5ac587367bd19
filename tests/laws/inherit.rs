//! A state that inherits from another one owes what either of them owes, and not more than both together.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Counters, HitLog, Step};
use tower_ratelimit::{FixedWindow, Gcra, LazySnapshot, LeakyQueue, Quota, SlidingLog, Timestamp};

use crate::cases;
use crate::schedule::{blocks, quota};
use crate::span::{micros, ticks};
use crate::subject::sliding_window;

/// A charge to the first or the second state: so many 256ths of the period later, a cost.
type Charge = (bool, u64, u64);

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn inherit_of_a_bucket_is_exact(quota in small_quota(), burst in 1u64..20, charges in charges()) {
        let both = Both::after(Gcra::new(quota).burst(burst), [0; 4], quota, &charges);
        both.owe_no_less()?;
        both.owe_exactly_for_good()?;
    }

    #[test]
    fn inherit_by_default_is_exact_where_the_reset_says_all(
        limit in 1u64..20,
        interval in 1u64..1_000,
        charges in charges(),
    ) {
        let quota = Quota::new(limit, ticks(limit * interval));
        let both = Both::after(WithDefaults(Gcra::new(quota)), [0; 4], quota, &charges);
        both.owe_no_less()?;
        both.owe_exactly_for_good()?;
        prop_assert_eq!(both.algorithm.counter_words(), Counters::MAX_WORDS);
    }

    #[test]
    fn inherit_of_a_queue_is_exact(quota in small_quota(), most in 0u64..20, charges in charges()) {
        let both = Both::after(LeakyQueue::new(quota).max_waiting(most), [0; 4], quota, &charges);
        both.owe_no_less()?;
        both.owe_exactly_for_good()?;
    }

    #[test]
    fn inherit_of_a_sliding_log_is_exact(quota in small_quota(), charges in charges()) {
        let both = Both::after(SlidingLog::new(quota), HitLog::default(), quota, &charges);
        both.owe_no_less()?;
        if both.kept_to_the_limit {
            both.owe_exactly_for_good()?;
        }
    }

    #[test]
    fn inherit_of_a_fixed_window_is_exact(quota in small_quota(), aligned in any::<bool>(), charges in charges()) {
        let window = FixedWindow::new(quota);
        let window = if aligned { window.aligned_to_clock() } else { window };
        let both = Both::after(window, [0; 4], quota, &charges);
        both.owe_no_less()?;
        both.owe_exactly(both.now)?;
    }

    #[test]
    fn inherit_of_a_sliding_window_owes_no_more_than_both(spec in blocks(), charges in charges()) {
        let window = sliding_window(spec);
        let both = Both::after(window, Counters::zero(Counters::MAX_WORDS), window.quota(), &charges);
        both.owe_no_less()?;
        for time in both.times() {
            let first_word = Timestamp::from_micros(both.merged[0]);
            prop_assert_eq!(first_word, Timestamp::from_micros(both.now).after(both.reset(&both.merged)));
            let used = |state| window.quota().limit() - both.remaining(state, time);
            prop_assert!(used(&both.merged) <= used(&both.own) + used(&both.other), "at {}", time);
        }
    }

    #[test]
    fn inherit_from_a_former_tier_owes_no_less(
        tiers in (blocks(), blocks()),
        logs in (small_quota(), small_quota()),
        charges in charges(),
    ) {
        let zero = Counters::zero(Counters::MAX_WORDS);
        let (own, former) = (sliding_window(tiers.0), sliding_window(tiers.1));
        Both::after_tiers(own, former, zero, own.quota(), &charges).owe_no_less()?;
        let (own, former) = (SlidingLog::new(logs.0), SlidingLog::new(logs.1));
        Both::after_tiers(own, former, HitLog::default(), logs.0, &charges).owe_no_less()?;
        let (own, former) = (FixedWindow::new(logs.0), FixedWindow::new(logs.1).aligned_to_clock());
        Both::after_tiers(own, former, [0; 4], logs.0, &charges).owe_no_less()?;
    }

    /// A bucket rounds a debt of another rate up to its own parts of a tick.
    #[test]
    fn inherit_from_a_never_seen_key_changes_nothing(spec in blocks(), quota in quota(), charges in charges()) {
        let window = sliding_window(spec);
        Both::after(window, Counters::zero(Counters::MAX_WORDS), window.quota(), &charges).ignore_the_unseen()?;
        Both::after(FixedWindow::new(quota), [0; 4], quota, &charges).ignore_the_unseen()?;
        if let Ok(log) = SlidingLog::try_new(quota) {
            Both::after(log, HitLog::default(), quota, &charges).ignore_the_unseen()?;
        }
        if let Ok(bucket) = Gcra::try_new(quota) {
            Both::after(bucket, [0; 4], quota, &charges).ignore_the_unseen()?;
        }
    }
}

/// A bucket whose time to full says all that it owes, with what an algorithm is given that says nothing of inheriting.
#[derive(Clone, Copy, Debug)]
struct WithDefaults(Gcra);

impl Algorithm for WithDefaults {
    type State = [u64; 4];

    fn decide(&self, state: &[u64; 4], now: Timestamp, options: ChargeOptions) -> Step<[u64; 4]> {
        self.0.decide(state, now, options)
    }

    fn snapshot(&self, state: &[u64; 4], now: Timestamp) -> LazySnapshot {
        self.0.snapshot(state, now)
    }

    fn max_reset(&self) -> Duration {
        self.0.max_reset()
    }
}

fn charges() -> impl Strategy<Value = Vec<Charge>> {
    vec((any::<bool>(), prop_oneof![2 => Just(0), 3 => 0u64..150], 1u64..6), 1..15)
}

fn small_quota() -> impl Strategy<Value = Quota> {
    (1u64..20, prop_oneof![5u64..100, 1_000u64..100_000]).prop_map(|(limit, period)| Quota::new(limit, ticks(period)))
}

/// Two states, and what the first one is after it has inherited from the second.
struct Both<A: Algorithm> {
    algorithm: A,
    zero: A::State,
    own: A::State,
    other: A::State,
    merged: A::State,
    now: u64,
    period: u64,
    /// Whether nothing was charged that would have been denied.
    kept_to_the_limit: bool,
}

impl<A: Algorithm + Copy> Both<A> {
    fn after(algorithm: A, zero: A::State, quota: Quota, charges: &[Charge]) -> Self {
        Self::after_tiers(algorithm, algorithm, zero, quota, charges)
    }

    /// The second state is charged under another tier.
    fn after_tiers(algorithm: A, former: A, zero: A::State, quota: Quota, charges: &[Charge]) -> Self {
        let (mut own, mut other) = (zero.clone(), zero.clone());
        let (mut now, period) = (1_000_000, micros(quota.period()));
        let mut kept_to_the_limit = true;
        for &(is_own, share, cost) in charges {
            now += period / 256 * share + share % 5;
            let (tier, state) = if is_own { (algorithm, &mut own) } else { (former, &mut other) };
            let verdict = tier.peek(state, Timestamp::from_micros(now), AcquireOptions::cost(cost));
            kept_to_the_limit &= verdict == Verdict::Allowed;
            tier.charge(state, Timestamp::from_micros(now), Duration::ZERO, cost);
        }
        // Some time after the last charge, so that the newest block may be empty.
        now += period / 256 * charges.first().map_or(0, |&(_, share, _)| share);
        let mut merged = own.clone();
        algorithm.carry_over_debt(&mut merged, &other, Timestamp::from_micros(now));
        Self { algorithm, zero, own, other, merged, now, period, kept_to_the_limit }
    }

    fn times(&self) -> impl Iterator<Item = u64> {
        let (now, period) = (self.now, self.period);
        (0..40).map(move |step| now + period / 16 * step + step)
    }

    fn remaining(&self, state: &A::State, time: u64) -> u64 {
        self.algorithm.snapshot(state, Timestamp::from_micros(time)).figures().remaining
    }

    fn reset(&self, state: &A::State) -> Duration {
        self.algorithm.snapshot(state, Timestamp::from_micros(self.now)).figures().reset
    }

    fn owe_no_less(&self) -> Result<(), TestCaseError> {
        prop_assert!(self.reset(&self.merged) >= self.reset(&self.own).max(self.reset(&self.other)));
        for time in self.times() {
            let least = self.remaining(&self.own, time).min(self.remaining(&self.other, time));
            prop_assert!(self.remaining(&self.merged, time) <= least, "at {}", time);
        }
        Ok(())
    }

    fn owe_exactly(&self, time: u64) -> Result<(), TestCaseError> {
        let least = self.remaining(&self.own, time).min(self.remaining(&self.other, time));
        prop_assert_eq!(self.remaining(&self.merged, time), least, "at {}", time);
        prop_assert_eq!(self.reset(&self.merged), self.reset(&self.own).max(self.reset(&self.other)));
        Ok(())
    }

    fn owe_exactly_for_good(&self) -> Result<(), TestCaseError> {
        self.times().try_for_each(|time| self.owe_exactly(time))
    }

    /// Neither way around.
    fn ignore_the_unseen(&self) -> Result<(), TestCaseError> {
        let now = Timestamp::from_micros(self.now);
        let (mut own, mut zero) = (self.own.clone(), self.zero.clone());
        self.algorithm.carry_over_debt(&mut own, &self.zero, now);
        self.algorithm.carry_over_debt(&mut zero, &self.own, now);
        for time in self.times() {
            let figures = |state| self.algorithm.snapshot(state, Timestamp::from_micros(time)).figures();
            prop_assert_eq!(figures(&own), figures(&self.own), "at {}", time);
            prop_assert_eq!(figures(&zero), figures(&self.own), "at {}", time);
        }
        Ok(())
    }
}
