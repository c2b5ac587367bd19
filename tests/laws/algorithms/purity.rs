//! Denials and peeks change no state.

use proptest::prelude::*;
use tower_ratelimit::{AcquireOptions, Detail};

use crate::cases;
use crate::harness::{Pair, Subject};
use crate::schedule::{limits, schedule, start};

proptest! {
    #![proptest_config(cases(30))]

    /// The reference limiter receives only the allowed requests, and no peeks between them.
    #[test]
    fn denials_and_peeks_change_nothing(
        limits in limits(1..=2),
        start in start(),
        steps in schedule(50),
    ) {
        let mut pair = Pair::new(&limits, start);
        let mut reference = Subject::new(&limits, start);
        for step in steps {
            let op = pair.resolve(step);
            let decision = pair.step(step);
            match decision {
                Some(decision) if decision.is_allowed() => prop_assert_eq!(Some(decision), reference.apply(op)),
                Some(_) => {}
                None => prop_assert_eq!(reference.apply(op), None),
            }
            let options = AcquireOptions::default().detail(Detail::All);
            prop_assert_eq!(pair.subject.peek(options), pair.subject.peek(options));
        }
        let options = AcquireOptions::default().detail(Detail::All);
        prop_assert_eq!(pair.subject.peek(options), reference.peek(options));
    }
}
