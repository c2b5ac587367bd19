//! The fixed window, from the first hit and aligned to the clock, answers as the model does, field by field, on every
//! schedule.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::{AcquireOptions, Quota};

use crate::cases;
use crate::harness::{Pair, Subject};
use crate::model::Spec;
use crate::schedule::{
    Op, charging_schedule, one_tier_schedule, overlapping_windows, plain_schedule, schedule, start, tiers, window,
};

const SECOND: u64 = 1_000_000;

proptest! {
    #![proptest_config(cases(250))]

    #[test]
    fn agrees_with_the_model(spec in window(), start in start(), steps in plain_schedule(60)) {
        let mut pair = Pair::new(&[vec![spec]], start);
        for step in steps {
            pair.agree_on(step)?;
        }
    }

    #[test]
    fn agrees_when_the_clock_steps_back(spec in window(), start in start(), steps in one_tier_schedule(60)) {
        let mut pair = Pair::new(&[vec![spec]], start);
        for step in steps {
            pair.agree_on(step)?;
        }
    }

    #[test]
    fn agrees_when_overlapping_windows_change(
        tiers in overlapping_windows(),
        start in start(),
        steps in charging_schedule(80),
    ) {
        let mut pair = Pair::new(&[tiers], start);
        for step in steps {
            pair.agree_on(step)?;
        }
    }

    #[test]
    fn agrees_when_its_quota_changes(tiers in tiers(window()), start in start(), steps in schedule(60)) {
        let mut pair = Pair::new(&[tiers], start);
        for step in steps {
            pair.agree_on(step)?;
        }
    }
}

/// What is held is charged to the window in which it is settled, and to no earlier one.
#[test]
fn a_hold_is_charged_in_the_window_in_which_it_is_settled() {
    for aligned in [false, true] {
        let spec = Spec::Window { quota: Quota::new(5, Duration::from_secs(10)), aligned };
        let mut subject = Subject::new(&[vec![spec]], 0);
        subject.acquire(AcquireOptions::cost(2));
        subject.apply(Op::Hold(AcquireOptions::cost(3)));
        assert_eq!(subject.peek(AcquireOptions::default()).remaining(), Some(0));
        subject.set_clock(12 * SECOND);
        assert_eq!(subject.peek(AcquireOptions::default()).remaining(), Some(2), "what is held stays held");
        subject.apply(Op::Settle { which: 0, actual: 1 });
        assert_eq!(subject.peek(AcquireOptions::default()).remaining(), Some(4));
    }
}

/// Without this the calendar window would admit its limit once more after the former window's end.
#[test]
fn aligned_window_prolongs_a_former_window_that_it_charges() {
    let former = Spec::Window { quota: Quota::new(5, Duration::from_secs(7)), aligned: false };
    let aligned = Spec::Window { quota: Quota::new(2, Duration::from_secs(10)), aligned: true };
    let mut subject = Subject::new(&[vec![former, aligned]], SECOND);
    subject.acquire(AcquireOptions::cost(1));
    subject.apply(Op::Tier(1));
    assert_eq!(subject.peek(AcquireOptions::cost(2)).retry_after(), Some(Duration::from_secs(7)));
    assert_eq!(subject.acquire(AcquireOptions::cost(1)).reset(), Some(Duration::from_secs(9)));
    assert_eq!(subject.acquire(AcquireOptions::cost(1)).retry_after(), Some(Duration::from_secs(9)));
}

/// As for every algorithm: the moment to decide at is the newest that the state has seen.
#[test]
fn a_window_never_opens_before_the_newest_time_of_its_state() {
    let window = |seconds| Spec::Window { quota: Quota::new(5, Duration::from_secs(seconds)), aligned: false };
    let mut subject = Subject::new(&[vec![window(10), window(3)]], 0);
    subject.acquire(AcquireOptions::default());
    subject.set_clock(9 * SECOND);
    subject.acquire(AcquireOptions::default());
    subject.apply(Op::Tier(1));
    subject.set_clock(8 * SECOND);
    let decision = subject.acquire(AcquireOptions::default());
    assert_eq!((decision.remaining(), decision.reset()), (Some(4), Some(Duration::from_secs(4))));
}
