//! The fixed window, from the first hit and aligned to the clock, answers as the model does, field by field, on every
//! schedule.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::{Ask, Quota};

use crate::cases;
use crate::model::Spec;
use crate::schedule::{Op, one_tier_schedule, plain_schedule, schedule, start, tiers, window};
use crate::subject::{Pair, Subject};

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
    fn agrees_when_its_quota_changes(tiers in tiers(window()), start in start(), steps in schedule(60)) {
        let mut pair = Pair::new(&[tiers], start);
        for step in steps {
            pair.agree_on(step)?;
        }
    }
}

/// A window that was shortened is over; what is given back of it is no credit to the next one, though that one covers
/// the moment of the charge.
#[test]
fn what_is_given_back_is_no_credit_to_another_window() {
    let long = Spec::Window { quota: Quota::new(5, Duration::from_secs(10)), aligned: false };
    let short = Spec::Window { quota: Quota::new(5, Duration::from_secs(3)), aligned: true };
    let mut subject = Subject::new(&[vec![long, short]], 0);
    subject.acquire(Ask::cost(1));
    subject.set_clock(7 * SECOND);
    subject.acquire(Ask::cost(4));
    subject.apply(Op::Tier(1));
    // From 6 s to 9 s.
    assert_eq!(subject.acquire(Ask::cost(5)).remaining(), Some(0));
    subject.apply(Op::Settle { which: 1, actual: 0 });
    assert_eq!(subject.peek(Ask::default()).remaining(), Some(0));
}

/// As for every algorithm: the moment to decide at is the newest that the state has seen.
#[test]
fn a_window_never_opens_before_the_newest_time_of_its_state() {
    let window = |seconds| Spec::Window { quota: Quota::new(5, Duration::from_secs(seconds)), aligned: false };
    let mut subject = Subject::new(&[vec![window(10), window(3)]], 0);
    subject.acquire(Ask::default());
    subject.set_clock(9 * SECOND);
    subject.acquire(Ask::default());
    subject.apply(Op::Tier(1));
    subject.set_clock(8 * SECOND);
    let decision = subject.acquire(Ask::default());
    assert_eq!((decision.remaining(), decision.reset()), (Some(4), Some(Duration::from_secs(4))));
}
