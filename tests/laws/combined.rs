//! Several limits decide together, all or nothing: each of them agrees with its model, and so does the sum.

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::limiter::{Acquisition, Held};
use tower_ratelimit::store::{DefaultHashBuilder, LimitsFor};
use tower_ratelimit::{AcquireOptions, Clock, Detail, Limit, Limiter, ManualClock, Memory, Timestamp};

use crate::cases;
use crate::model::Spec;
use crate::schedule::{Op, Step, bucket, one_tier_schedule, plain_schedule, schedule, start, tiers, window};
use crate::subject::{Pair, fixed_window, gcra, name, ready};

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
        steps in plain_schedule(50),
    ) {
        let limits = (Limit::new(name(0), gcra(bucket)), Limit::new(name(1), fixed_window(window)));
        decides_as_a_list(&[bucket, window], limits, start, steps)?;
    }

    #[test]
    fn a_limit_by_itself_decides_as_a_list_does(
        bucket in bucket(),
        window in window(),
        start in start(),
        steps in plain_schedule(50),
    ) {
        decides_as_a_list(&[bucket], Limit::new(name(0), gcra(bucket)), start, steps.clone())?;
        decides_as_a_list(&[window], Limit::new(name(0), fixed_window(window)), start, steps)?;
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

/// Plays the steps on a list of these limits and on the limits as they are, which share no code for the common cases.
fn decides_as_a_list<L: LimitsFor<str, DefaultHashBuilder>>(
    specs: &[Spec],
    limits: L,
    start: u64,
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let mut pair = Pair::new(&specs.iter().map(|&spec| vec![spec]).collect::<Vec<_>>(), start);
    let clock = ManualClock::at(Timestamp::from_micros(start));
    let limiter = Memory::builder(limits).max_keys(1).clock(clock.clone()).build().expect("legal settings");
    let mut guards: Vec<Held> = Vec::new();
    for step in steps {
        let op = pair.resolve(step);
        let decision = pair.step(step);
        let mut end = |which: usize, actual: &dyn Fn(u64) -> u64| {
            if let Some(which) = which.checked_rem(guards.len()) {
                let held = guards.swap_remove(which);
                let actual = actual(held.cost());
                ready(held.settle(actual));
            }
        };
        match op {
            Op::Acquisition(ask) => prop_assert_eq!(decision, Some(limiter.check("key", ask))),
            Op::Hold(ask) => {
                let Acquisition::Ready(outcome) = limiter.hold("key", ask) else { panic!("memory decides at once") };
                let outcome = outcome.expect("memory never fails");
                prop_assert_eq!(decision, Some(outcome.decision));
                guards.extend(outcome.held);
            }
            Op::Settle { which, actual } => end(which, &|_| actual),
            Op::Surcharge { which, cost } => end(which, &|held| held + cost),
            Op::Drop { which } => end(which, &|held| held),
            Op::Reset => ready(limiter.reset("key")),
            Op::Tier(_) | Op::Clock { .. } => clock.set(pair.subject.clock.now()),
        }
        let ask = AcquireOptions::default().detail(Detail::All);
        prop_assert_eq!(pair.subject.peek(ask), ready(limiter.peek("key", ask)));
    }
    Ok(())
}
