//! A decision at once is what a peek and a commit come to, in any state that tiers which change can make.

use std::fmt::Debug;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, AtOnce};
use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, LeakyQueue, Quota, Timestamp, Verdict};

use crate::cases;
use crate::span::{micros, ticks};

/// A tier, a wait in 256ths of its period (or that long back), a cost, the longest delay.
type Step = (usize, i64, u64, Option<u64>);

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn fixed_window_decides_at_once_as_at_length(tiers in vec((quota(), any::<bool>()), 1..=2), steps in steps()) {
        let windows = tiers.iter().map(|&(quota, aligned)| {
            let window = FixedWindow::new(quota);
            if aligned { window.aligned_to_clock() } else { window }
        });
        decides_alike(&windows.collect::<Vec<_>>(), tiers[0].0, [0; 4], &steps)?;
    }

    #[test]
    fn bucket_decides_at_once_as_at_length(tiers in vec((quota(), 1u64..9), 1..=2), steps in steps()) {
        let buckets: Vec<_> = tiers.iter().map(|&(quota, burst)| Gcra::new(quota).burst(burst)).collect();
        decides_alike(&buckets, tiers[0].0, [0; 4], &steps)?;
    }

    #[test]
    fn queue_decides_at_once_as_at_length(tiers in vec((quota(), 0u64..9), 1..=2), steps in steps()) {
        let queues: Vec<_> = tiers.iter().map(|&(quota, most)| LeakyQueue::new(quota).max_waiting(most)).collect();
        decides_alike(&queues, tiers[0].0, [0; 4], &steps)?;
    }
}

/// Short periods and small limits, so that steps reach the boundaries.
fn quota() -> impl Strategy<Value = Quota> {
    (1u64..6, 1u64..60).prop_map(|(limit, period)| Quota::new(limit, ticks(period)))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![3 => Just(0), 3 => 0i64..300, 1 => -300i64..0];
    let patience = prop_oneof![3 => Just(None), 1 => (0u64..40).prop_map(Some)];
    vec((0usize..2, wait, prop_oneof![1 => Just(0), 6 => Just(1), 3 => 2u64..8], patience), 1..40)
}

fn decides_alike<A: Algorithm>(tiers: &[A], quota: Quota, zero: A::State, steps: &[Step]) -> Result<(), TestCaseError>
where
    A::State: PartialEq + Debug,
{
    // A key never seen is decided at once.
    for tier in tiers {
        let new = tier.new_at_once().expect("a new state");
        let now = Timestamp::from_micros(1_000_000);
        prop_assert!(matches!(tier.try_at_once(&new, now, AcquireOptions::default()), AtOnce::Charged(_)));
        prop_assert_eq!(tier.reading(&new, now).compute(), tier.reading(&zero, now).compute());
    }
    let (mut state, mut now) = (zero, 1_000_000_u64);
    for &(tier, share, cost, patience) in steps {
        let tier = &tiers[tier % tiers.len()];
        now = now.saturating_add_signed(micros(quota.period()).cast_signed() * share / 256);
        let (time, mut ask) = (Timestamp::from_micros(now), AcquireOptions::cost(cost));
        ask.max_delay = patience.map(ticks);
        let verdict = tier.peek(&state, time, ask);
        let delay = if let Verdict::AllowedAfter(delay) = verdict { delay } else { Duration::ZERO };
        let mut charged = state.clone();
        tier.commit(&mut charged, time, delay, cost);
        match tier.try_at_once(&state, time, ask) {
            AtOnce::Charged(at_once) => {
                prop_assert_eq!(verdict, Verdict::Allowed);
                prop_assert_eq!(&at_once, &charged);
                let figures = tier.reading(&charged, time).compute();
                prop_assert_eq!(tier.reading_at_once(&at_once, time).compute(), figures);
                prop_assert_eq!(tier.remaining_at_once(&at_once, time), figures.remaining);
            }
            AtOnce::Denied(wait) => {
                prop_assert_eq!(verdict, Verdict::Denied { retry_after: ticks(wait) });
                let figures = tier.reading(&state, time).compute();
                prop_assert_eq!(tier.reading_at_once(&state, time).compute(), figures);
            }
            AtOnce::Unsaid => {}
        }
        if verdict.is_allowed() {
            state = charged;
        }
    }
    Ok(())
}
