//! Asking is free: a refusal and a peek leave no trace, and a peek says what the acquire will.

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::{AcquireOptions, Detail};

use crate::cases;
use crate::schedule::{Op, bucket, schedule, start, tiers, window};
use crate::subject::{Pair, Subject};

proptest! {
    #![proptest_config(cases(150))]

    /// The twin is asked only what was allowed.
    #[test]
    fn refusals_and_peeks_change_nothing(
        limits in vec(prop_oneof![tiers(bucket()), tiers(window())], 1..=2),
        start in start(),
        steps in schedule(50),
    ) {
        let mut pair = Pair::new(&limits, start);
        let mut twin = Subject::new(&limits, start);
        for step in steps {
            let op = pair.resolve(step);
            let decision = pair.step(step);
            match decision {
                Some(decision) if decision.is_allowed() => prop_assert_eq!(Some(decision), twin.apply(op)),
                Some(_) => {}
                None => prop_assert_eq!(twin.apply(op), None),
            }
            let ask = AcquireOptions::default().detail(Detail::All);
            prop_assert_eq!(pair.subject.peek(ask), pair.subject.peek(ask));
        }
        let ask = AcquireOptions::default().detail(Detail::All);
        prop_assert_eq!(pair.subject.peek(ask), twin.peek(ask));
    }

    #[test]
    fn a_peek_says_what_the_acquire_will(
        limits in vec(prop_oneof![tiers(bucket()), tiers(window())], 1..=2),
        start in start(),
        steps in schedule(50),
    ) {
        let mut pair = Pair::new(&limits, start);
        for step in steps {
            let Op::Acquisition(ask) = pair.resolve(step) else {
                pair.step(step);
                continue;
            };
            let peeked = pair.subject.peek(ask);
            let acquired = pair.step(step).expect("an acquire decides");
            prop_assert_eq!(peeked.verdict(), acquired.verdict());
            if !acquired.is_allowed() {
                prop_assert_eq!(peeked, acquired);
            }
        }
    }
}
