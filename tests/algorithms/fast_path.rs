//! The fast path of a decision equals peek and charge, in any state that changing tiers can produce.

use std::fmt::Debug;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, AtOnce};
use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, LeakyQueue, Quota, Timestamp, Verdict};

use crate::cases;
use crate::span::{micros, ticks};

/// A tier, a wait in 256ths of its period (negative: the clock steps back), a cost and the maximum delay.
type Step = (usize, i64, u64, Option<u64>);

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn fixed_window_fast_path_equals_peek_and_charge(tiers in vec((quota(), any::<bool>()), 1..=2), steps in steps()) {
        let windows = tiers.iter().map(|&(quota, aligned)| {
            let window = FixedWindow::new(quota);
            if aligned { window.aligned_to_clock() } else { window }
        });
        assert_fast_path_equals_slow_path(&windows.collect::<Vec<_>>(), tiers[0].0, [0; 4], &steps)?;
    }

    #[test]
    fn bucket_fast_path_equals_peek_and_charge(tiers in vec((quota(), 1u64..9), 1..=2), steps in steps()) {
        let buckets: Vec<_> = tiers.iter().map(|&(quota, burst)| Gcra::new(quota).burst(burst)).collect();
        assert_fast_path_equals_slow_path(&buckets, tiers[0].0, [0; 4], &steps)?;
    }

    #[test]
    fn leaky_queue_fast_path_equals_peek_and_charge(tiers in vec((quota(), 0u64..9), 1..=2), steps in steps()) {
        let queues: Vec<_> =
            tiers.iter().map(|&(quota, waiting)| LeakyQueue::new(quota).max_waiting(waiting)).collect();
        assert_fast_path_equals_slow_path(&queues, tiers[0].0, [0; 4], &steps)?;
    }
}

/// Generates short periods and small limits, so that steps reach the boundaries.
fn quota() -> impl Strategy<Value = Quota> {
    (1u64..6, 1u64..60).prop_map(|(limit, period)| Quota::new(limit, ticks(period)))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![3 => Just(0), 3 => 0i64..300, 1 => -300i64..0];
    let max_delay = prop_oneof![3 => Just(None), 1 => (0u64..40).prop_map(Some)];
    vec((0usize..2, wait, prop_oneof![1 => Just(0), 6 => Just(1), 3 => 2u64..8], max_delay), 1..40)
}

fn assert_fast_path_equals_slow_path<A: Algorithm>(
    tiers: &[A],
    quota: Quota,
    zero: A::State,
    steps: &[Step],
) -> Result<(), TestCaseError>
where
    A::State: PartialEq + Debug,
{
    // The fast path decides a key that was never seen.
    for tier in tiers {
        let new = tier.new_at_once().expect("a new state");
        let now = Timestamp::from_micros(1_000_000);
        prop_assert!(matches!(tier.try_at_once(&new, now, AcquireOptions::default()), AtOnce::Charged(_)));
        prop_assert_eq!(tier.snapshot(&new, now).compute(), tier.snapshot(&zero, now).compute());
    }
    let (mut state, mut now) = (zero, 1_000_000_u64);
    for &(tier, share, cost, max_delay) in steps {
        let tier = &tiers[tier % tiers.len()];
        now = now.saturating_add_signed(micros(quota.period()).cast_signed() * share / 256);
        let (time, mut options) = (Timestamp::from_micros(now), AcquireOptions::cost(cost));
        options.max_delay = max_delay.map(ticks);
        let verdict = tier.peek(&state, time, options);
        let delay = if let Verdict::AllowedAfter(delay) = verdict { delay } else { Duration::ZERO };
        let mut charged = state.clone();
        tier.charge(&mut charged, time, delay, cost);
        match tier.try_at_once(&state, time, options) {
            AtOnce::Charged(at_once) => {
                prop_assert_eq!(verdict, Verdict::Allowed);
                prop_assert_eq!(&at_once, &charged);
                let snapshot = tier.snapshot(&charged, time).compute();
                prop_assert_eq!(tier.reading_at_once(&at_once, time).compute(), snapshot);
                prop_assert_eq!(tier.remaining_at_once(&at_once, time), snapshot.remaining);
            }
            AtOnce::Denied(wait) => {
                prop_assert_eq!(verdict, Verdict::Denied { retry_after: ticks(wait) });
                let snapshot = tier.snapshot(&state, time).compute();
                prop_assert_eq!(tier.reading_at_once(&state, time).compute(), snapshot);
            }
            AtOnce::Unsaid => {}
        }
        if verdict.is_allowed() {
            state = charged;
        }
    }
    Ok(())
}
