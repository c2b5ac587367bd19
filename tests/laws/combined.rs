//! Several limits decide together, all or nothing: each of them agrees with its model, and so does the sum.

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::{Clock, Limit, ManualClock, Memory, Timestamp};

use crate::cases;
use crate::schedule::{Op, attack, bucket, one_tier_schedule, plain_schedule, schedule, start, tiers, window};
use crate::subject::{Pair, fixed_window, gcra, name};

proptest! {
    #![proptest_config(cases(120))]

    #[test]
    fn buckets_agree_with_the_model(
        specs in vec(bucket(), 2..=3),
        start in start(),
        steps in plain_schedule(50),
    ) {
        let limits: Vec<_> = specs.into_iter().map(|spec| vec![spec]).collect();
        let mut pair = Pair::new(&limits, start);
        for step in steps {
            pair.agree_on(step)?;
        }
    }

    #[test]
    fn limits_of_both_kinds_agree_with_the_model(
        specs in vec(prop_oneof![bucket(), window()], 2..=3),
        start in start(),
        steps in one_tier_schedule(50),
    ) {
        let limits: Vec<_> = specs.into_iter().map(|spec| vec![spec]).collect();
        let mut pair = Pair::new(&limits, start);
        for step in steps {
            pair.agree_on(step)?;
        }
    }

    #[test]
    fn a_tuple_decides_as_a_list_does(
        bucket in bucket(),
        window in window(),
        start in start(),
        steps in attack(50),
    ) {
        let mut pair = Pair::new(&[vec![bucket], vec![window]], start);
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let limits = (Limit::new(name(0), gcra(bucket)), Limit::new(name(1), fixed_window(window)));
        let tuple = Memory::builder(limits).max_keys(1).clock(clock.clone()).build().expect("legal settings");
        for step in steps {
            let op = pair.resolve(step);
            let decision = pair.step(step);
            match op {
                Op::Acquire(ask) => prop_assert_eq!(decision, Some(tuple.decide("key", ask))),
                _ => clock.set(pair.subject.clock.now()),
            }
        }
    }

    #[test]
    fn limits_agree_with_the_model_when_their_quotas_change(
        buckets in tiers(bucket()),
        windows in tiers(window()),
        start in start(),
        steps in schedule(50),
    ) {
        let mut pair = Pair::new(&[buckets, windows], start);
        for step in steps {
            pair.agree_on(step)?;
        }
    }
}
