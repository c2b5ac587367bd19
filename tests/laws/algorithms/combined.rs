//! Several limits decide as one transaction: each limit and the combined decision agree with the model.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tower_ratelimit::limiter::Held;
use tower_ratelimit::store::MemoryLimits;
use tower_ratelimit::{AcquireOptions, Clock, Detail, Limit, Limiter, ManualClock, Memory, Timestamp};

use crate::cases;
use crate::harness::{Pair, fixed_window, gcra, name, ready};
use crate::model::Spec;
use crate::schedule::{Op, Step, bucket, limits, plain_schedule, schedule, start, window};

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn limits_agree_with_the_model(
        limits in limits(2..=3),
        fixed in vec(option::weighted(0.3, 0_u64..4), 3),
        start in start(),
        steps in schedule(50),
    ) {
        Pair::with_fixed_costs(&limits, &fixed[..limits.len()], start).compare_all(steps)?;
    }

    #[test]
    fn limit_and_tuple_of_limits_decide_as_a_list(
        bucket in bucket(),
        window in window(),
        fixed in option::of(0_u64..4),
        start in start(),
        steps in plain_schedule(50),
    ) {
        let limit = || {
            let limit = Limit::new(name(0), gcra(bucket));
            if let Some(cost) = fixed { limit.fixed_cost(cost) } else { limit }
        };
        assert_decides_as_a_list(&[bucket], &[fixed], limit(), start, steps.clone())?;
        let of_window = |index| Limit::new(name(index), fixed_window(window));
        assert_decides_as_a_list(&[window], &[None], of_window(0), start, steps.clone())?;
        assert_decides_as_a_list(&[bucket, window], &[fixed, None], (limit(), of_window(1)), start, steps)?;
    }
}

/// Applies the steps to a dynamic list of the limits and to the static limits, and compares the decisions.
fn assert_decides_as_a_list<L: MemoryLimits<str> + 'static>(
    specs: &[Spec],
    fixed: &[Option<u64>],
    limits: L,
    start: u64,
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let mut pair = Pair::with_fixed_costs(&specs.iter().map(|&spec| vec![spec]).collect::<Vec<_>>(), fixed, start);
    let clock = ManualClock::at(Timestamp::from_micros(start));
    let limiter = Memory::builder(limits).max_keys(1).clock(clock.clone()).build().expect("valid settings");
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
            Op::Acquire(options) => prop_assert_eq!(decision, Some(limiter.check("key", options))),
            Op::Hold(options) => {
                let outcome = ready(limiter.hold("key", options));
                prop_assert_eq!(decision, Some(outcome.decision));
                guards.extend(outcome.held);
            }
            Op::Settle { which, actual } => end(which, &|_| actual),
            Op::Surcharge { which, cost } => end(which, &|held| held.saturating_add(cost)),
            Op::Drop { which } => end(which, &|held| held),
            Op::Reset => ready(limiter.reset("key")),
            Op::Tier(_) | Op::Clock { .. } => clock.set(pair.subject.clock.now()),
        }
        let options = AcquireOptions::default().detail(Detail::All);
        prop_assert_eq!(pair.subject.peek(options), ready(limiter.peek("key", options)));
    }
    Ok(())
}
