//! The next state of an allowing decision is the one of a forced charge after the same delay, in any state that changes of
//! quota can make. The first is mostly decided in line, the second always out of line.

use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, State, Step};
use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, LeakyQueue, Quota, Timestamp};

use crate::cases;
use crate::span::{micros, ticks};

/// A tier, a wait in 256ths of its period (or that long back), a cost, the longest delay.
type Request = (usize, i64, u64, Option<u64>);

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn fixed_window_decides_as_it_charges(tiers in vec((quota(), any::<bool>()), 1..=2), steps in steps()) {
        let windows = tiers.iter().map(|&(quota, aligned)| {
            let window = FixedWindow::new(quota);
            if aligned { window.aligned_to_clock() } else { window }
        });
        charges_alike(&windows.collect::<Vec<_>>(), tiers[0].0, [0; 4], &steps)?;
    }

    #[test]
    fn bucket_decides_as_it_charges(tiers in vec((quota(), 1u64..9), 1..=2), steps in steps()) {
        let buckets: Vec<_> = tiers.iter().map(|&(quota, burst)| Gcra::new(quota).burst(burst)).collect();
        charges_alike(&buckets, tiers[0].0, [0; 4], &steps)?;
    }

    #[test]
    fn queue_decides_as_it_charges(tiers in vec((quota(), 0u64..9), 1..=2), steps in steps()) {
        let queues: Vec<_> = tiers.iter().map(|&(quota, most)| LeakyQueue::new(quota).max_waiting(most)).collect();
        charges_alike(&queues, tiers[0].0, [0; 4], &steps)?;
    }
}

/// Short periods and small limits, so that steps reach the boundaries.
fn quota() -> impl Strategy<Value = Quota> {
    (1u64..6, 1u64..60).prop_map(|(limit, period)| Quota::new(limit, ticks(period)))
}

fn steps() -> impl Strategy<Value = Vec<Request>> {
    let wait = prop_oneof![3 => Just(0), 3 => 0i64..300, 1 => -300i64..0];
    let patience = prop_oneof![3 => Just(None), 1 => (0u64..40).prop_map(Some)];
    vec((0usize..2, wait, prop_oneof![1 => Just(0), 6 => Just(1), 3 => 2u64..8], patience), 1..40)
}

fn charges_alike<A: Algorithm>(
    tiers: &[A],
    quota: Quota,
    zero: A::State,
    steps: &[Request],
) -> Result<(), TestCaseError>
where
    A::State: State<Next = A::State> + PartialEq + Debug,
{
    let (mut state, mut now) = (zero, 1_000_000_u64);
    for &(tier, share, cost, max_delay) in steps {
        let tier = &tiers[tier % tiers.len()];
        now = now.saturating_add_signed(micros(quota.period()).cast_signed() * share / 256);
        let (time, mut options) = (Timestamp::from_micros(now), AcquireOptions::cost(cost));
        options.max_delay = max_delay.map(ticks);
        let step = tier.decide(&state, time, options.into());
        prop_assert_eq!(tier.peek(&state, time, options), step.verdict());
        if let Step::Allow { next, delay } = step {
            let mut charged = state.clone();
            tier.charge(&mut charged, time, ticks(delay), cost);
            if cost > 0 {
                prop_assert_eq!(&next, &charged);
            }
            state = charged;
        }
    }
    Ok(())
}
