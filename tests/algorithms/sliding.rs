//! The sliding window and the sliding log agree with the model, field by field, on every schedule, while quotas,
//! numbers of blocks and variants change.

use proptest::prelude::*;
use tower_ratelimit::{AcquireOptions, Quota};

use crate::cases;
use crate::harness::{Pair, Subject};
use crate::model::Spec;
use crate::schedule::{Op, Step, blocks, charging_schedule, log, start, tiers};
use crate::span::ticks;

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn sliding_window_agrees_with_the_model(spec in blocks(), start in start(), steps in charging_schedule(60)) {
        assert_agrees(vec![spec], start, steps)?;
    }

    #[test]
    fn sliding_window_agrees_when_its_tier_changes(
        tiers in tiers(blocks()),
        start in start(),
        steps in charging_schedule(60),
    ) {
        assert_agrees(tiers, start, steps)?;
    }

    #[test]
    fn sliding_log_agrees_with_the_model(spec in log(), start in start(), steps in charging_schedule(60)) {
        assert_agrees(vec![spec], start, steps)?;
    }

    #[test]
    fn sliding_log_agrees_when_its_tier_changes(
        tiers in tiers(log()),
        start in start(),
        steps in charging_schedule(60),
    ) {
        assert_agrees(tiers, start, steps)?;
    }
}

fn assert_agrees(tiers: Vec<Spec>, start: u64, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut pair = Pair::new(&[tiers], start);
    for step in steps {
        pair.step_and_compare(step)?;
    }
    Ok(())
}

/// A saturated surcharge expires before a cost that is still held.
#[test]
fn sliding_log_reset_includes_a_hold() {
    let mut subject = Subject::new(&[vec![Spec::SlidingLog { quota: Quota::new(3, ticks(10)) }]], 0);
    subject.acquire(AcquireOptions::cost(0).hold());
    subject.acquire(AcquireOptions::cost(1).hold());
    subject.apply(Op::Settle { which: 0, actual: u64::MAX });
    subject.set_clock(4);
    assert_eq!(subject.peek(AcquireOptions::default()).reset(), Some(ticks(10)));
}

/// The sum of a saturated surcharge and a held cost exceeds 64 bits: the wait lasts until the held cost would expire.
#[test]
fn sliding_log_waits_for_a_hold_beside_a_saturated_surcharge() {
    let mut subject = Subject::new(&[vec![Spec::SlidingLog { quota: Quota::new(2, ticks(3)) }]], 0);
    subject.acquire(AcquireOptions::cost(0).hold());
    subject.acquire(AcquireOptions::cost(2).hold());
    subject.apply(Op::Settle { which: 0, actual: u64::MAX });
    subject.set_clock(2);
    assert_eq!(subject.peek(AcquireOptions::default()).retry_after(), Some(ticks(3)));
}
