//! The sliding window and the sliding log agree with the model, field by field, on every schedule, while quotas,
//! numbers of blocks and variants change.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, Counters, HitLog};
use tower_ratelimit::{AcquireOptions, Quota, SlidingLog, SlidingWindow, Timestamp, Verdict};

use crate::algorithm_ext::AlgorithmExt as _;
use crate::cases;
use crate::harness::{Pair, Subject};
use crate::model::Spec;
use crate::schedule::{Op, blocks, charging_schedule, log, start, tiers};
use crate::span::ticks;

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn sliding_window_agrees_with_the_model(tiers in tiers(blocks()), start in start(), steps in charging_schedule(60)) {
        Pair::new(&[tiers], start).compare_all(steps)?;
    }

    #[test]
    fn sliding_log_agrees_with_the_model(tiers in tiers(log()), start in start(), steps in charging_schedule(60)) {
        Pair::new(&[tiers], start).compare_all(steps)?;
    }

    /// A log that a custom algorithm wrote may contain hits of weight zero, which do not count.
    #[test]
    fn hits_of_weight_zero_do_not_count(
        limit in 1u64..9,
        hits in vec((0u64..30, prop_oneof![Just(0u64), 1u64..4]), 1..9),
        later in 0u64..25,
        start in prop_oneof![Just(1_000_000u64), Just(u64::MAX - 40)],
        cost in 1u64..9,
    ) {
        let log = SlidingLog::new(Quota::new(limit, ticks(20)));
        let mut hits = hits;
        hits.sort_unstable();
        let hits: Vec<_> = hits.into_iter().map(|(time, weight)| (start + time, weight)).collect();
        let newest = hits.last().expect("a hit").0;
        let counting = hits.iter().copied().filter(|&(_, weight)| weight > 0).collect();
        let with_zeros = HitLog::new(newest.saturating_add(20), 20, hits.into());
        let without = HitLog::new(newest.saturating_add(20), 20, counting);
        let now = Timestamp::from_micros(newest.saturating_add(later));
        for held in [0, 1] {
            let [with_zeros, without] = [&with_zeros, &without]
                .map(|state| log.peek_with_held(state, now, AcquireOptions::cost(cost).into(), held))
                .map(|(verdict, snapshot)| (verdict, snapshot.compute()));
            prop_assert_eq!(with_zeros, without, "held {}", held);
        }
    }
}

/// A saturated surcharge expires before a cost that is still held.
#[test]
fn sliding_log_reset_includes_a_hold() {
    let mut subject = Subject::new(&[vec![Spec::SlidingLog { quota: Quota::new(3, ticks(10)) }]], 0);
    let _ = subject.acquire(AcquireOptions::cost(0).hold());
    let _ = subject.acquire(AcquireOptions::cost(1).hold());
    subject.apply(Op::Settle { which: 0, actual: u64::MAX });
    subject.set_clock(4);
    assert_eq!(subject.peek(AcquireOptions::default()).reset(), Some(ticks(10)));
}

/// The sum of a saturated surcharge and a held cost exceeds 64 bits: the wait lasts until the held cost would expire.
#[test]
fn sliding_log_waits_for_a_hold_beside_a_saturated_surcharge() {
    let mut subject = Subject::new(&[vec![Spec::SlidingLog { quota: Quota::new(2, ticks(3)) }]], 0);
    let _ = subject.acquire(AcquireOptions::cost(0).hold());
    let _ = subject.acquire(AcquireOptions::cost(2).hold());
    subject.apply(Op::Settle { which: 0, actual: u64::MAX });
    subject.set_clock(2);
    assert_eq!(subject.peek(AcquireOptions::default()).retry_after(), Some(ticks(3)));
}

/// Several blocks of an earlier quota count in the same block of a weighted window, by the same fraction, until each
/// expires. The retry is the first time at which the cost fits.
#[test]
fn retry_of_a_weighted_window_is_the_first_possible_time_after_the_blocks_changed() {
    let window = |blocks| SlidingWindow::new(Quota::new(6, ticks(60))).blocks(blocks);
    let (before, after) = (window(6), window(1).weighted());
    for costs in [[2, 1, 2, 1], [1, 1, 1, 3], [3, 0, 3, 0], [1, 5, 0, 0], [4, 4, 4, 4]] {
        let mut state = Counters::zero(Counters::MAX_WORDS);
        for (time, cost) in (6_000..).step_by(10).zip(costs) {
            before.charge(&mut state, Timestamp::from_micros(time), Duration::ZERO, cost);
        }
        let verdict = |time, cost| after.peek(&state, Timestamp::from_micros(time), AcquireOptions::cost(cost));
        for (now, cost) in (6_030..6_130).flat_map(|now| (1..=6).map(move |cost| (now, cost))) {
            let first = (now..7_000).find(|&time| verdict(time, cost).is_allowed()).expect("every hit expires");
            let expected = match first - now {
                0 => Verdict::Allowed,
                wait => Verdict::Denied { retry_after: ticks(wait) },
            };
            assert_eq!(verdict(now, cost), expected, "cost {cost} at {now}, after {costs:?}");
        }
    }
}

/// "A block counts from its start on, or from its first hit if it is the newest block."
#[test]
fn block_of_another_period_counts_from_its_start_or_first_hit() {
    let window = |period| SlidingWindow::new(Quota::new(9, ticks(period))).blocks(1);
    let mut state = Counters::zero(window(60).counter_words());
    for (time, cost) in [(6_010, 2), (6_062, 1)] {
        window(60).charge(&mut state, Timestamp::from_micros(time), Duration::ZERO, cost);
    }
    let remaining = |period, time| window(period).snapshot(&state, Timestamp::from_micros(time)).compute().remaining;
    assert_eq!([6_062, 6_065, 6_071, 6_072].map(|time| remaining(6, time)), [8, 8, 8, 9]);
    assert_eq!([6_062, 6_063, 6_064].map(|time| remaining(1, time)), [8, 8, 9]);
    assert_eq!([6_062, 6_119, 6_120, 6_179, 6_180].map(|time| remaining(600, time)), [6, 6, 8, 8, 9]);
}
