//! The common case of a decision equals the complete case, in any state that changing tiers can produce.
//!
//! The common case is in line. A forced charge, and a decision that accepts a delay, always take the complete case.

use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, State, Step};
use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, LeakyQueue, Quota, Timestamp, Verdict};

use crate::algorithm_ext::AlgorithmExt as _;
use crate::cases;
use crate::span::{micros, ticks};

/// A tier, a wait in 256ths of its period (negative: the clock steps back), a cost and the maximum delay.
type Request = (usize, i64, u64, Option<u64>);

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn fixed_window_common_case_equals_the_complete_case(tiers in vec((quota(), any::<bool>()), 1..=2), steps in steps()) {
        let windows = tiers.iter().map(|&(quota, aligned)| {
            let window = FixedWindow::new(quota);
            if aligned { window.aligned_to_clock() } else { window }
        });
        assert_common_case_equals_complete_case(&windows.collect::<Vec<_>>(), tiers[0].0, &steps, |_| Ok(()))?;
    }

    #[test]
    fn bucket_common_case_equals_the_complete_case(tiers in vec((quota(), 1u64..9), 1..=2), steps in steps()) {
        let buckets: Vec<_> = tiers.iter().map(|&(quota, burst)| Gcra::new(quota).burst(burst)).collect();
        assert_common_case_equals_complete_case(&buckets, tiers[0].0, &steps, assert_delay_equals_wait)?;
    }

    #[test]
    fn leaky_queue_common_case_equals_the_complete_case(tiers in vec((quota(), 0u64..9), 1..=2), steps in steps()) {
        let queues: Vec<_> =
            tiers.iter().map(|&(quota, waiting)| LeakyQueue::new(quota).max_waiting(waiting)).collect();
        assert_common_case_equals_complete_case(&queues, tiers[0].0, &steps, |_| Ok(()))?;
    }
}

/// Generates short periods and small limits, so that steps reach the boundaries.
fn quota() -> impl Strategy<Value = Quota> {
    (1u64..6, 1u64..60).prop_map(|(limit, period)| Quota::new(limit, ticks(period)))
}

fn steps() -> impl Strategy<Value = Vec<Request>> {
    let wait = prop_oneof![3 => Just(0), 3 => 0i64..300, 1 => -300i64..0];
    let max_delay = prop_oneof![3 => Just(None), 1 => (0u64..40).prop_map(Some)];
    vec((0usize..2, wait, prop_oneof![1 => Just(0), 6 => Just(1), 3 => 2u64..8], max_delay), 1..40)
}

/// A denied request.
struct Denied<'a, A: Algorithm> {
    algorithm: &'a A,
    state: &'a A::State,
    now: u64,
    options: AcquireOptions,
    wait: u64,
}

impl<A: Algorithm> Denied<'_, A> {
    /// Returns the verdict on the same request so much later.
    fn verdict_after(&self, wait: u64) -> Verdict {
        self.algorithm.peek(self.state, Timestamp::from_micros(self.now + wait), self.options)
    }

    /// Returns the verdict now for a caller that accepts so much more delay.
    fn verdict_with_delay(&self, delay: u64) -> Verdict {
        let max_delay = self.options.max_delay.unwrap_or_default() + ticks(delay);
        self.algorithm.peek(self.state, Timestamp::from_micros(self.now), self.options.max_delay(max_delay))
    }
}

/// The bucket denies in line. The complete case allows the same request after the wait, and not one microsecond earlier.
fn assert_delay_equals_wait(denied: &Denied<'_, Gcra>) -> Result<(), TestCaseError> {
    let delay = denied.options.max_delay.unwrap_or_default() + ticks(denied.wait);
    prop_assert_eq!(denied.verdict_with_delay(denied.wait), Verdict::AllowedAfter(delay));
    prop_assert_eq!(denied.verdict_with_delay(denied.wait - 1), Verdict::Denied { retry_after: ticks(1) });
    Ok(())
}

fn assert_common_case_equals_complete_case<S: State<Next = S> + Debug + PartialEq, A: Algorithm<State = S>>(
    tiers: &[A],
    quota: Quota,
    steps: &[Request],
    check_denied: impl Fn(&Denied<'_, A>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let zero = S::from_numbers(&[]);
    let (mut state, mut now) = (zero.clone(), 1_000_000_u64);
    for &(tier, share, cost, max_delay) in steps {
        let tier = &tiers[tier % tiers.len()];
        now = now.saturating_add_signed(micros(quota.period()).cast_signed() * share / 256);
        let time = Timestamp::from_micros(now);
        let options = AcquireOptions::cost(cost).max_delay(max_delay.map(ticks));
        match tier.decide(&state, time, options.into()) {
            Step::Allow { next, delay } => {
                let mut charged = state.clone();
                tier.charge(&mut charged, time, ticks(delay), cost);
                prop_assert!(cost == 0 || next == charged, "{next:?} is not {charged:?}");
                state = charged;
            }
            Step::Deny { wait } => {
                let denied = Denied { algorithm: tier, state: &state, now, options, wait };
                prop_assert!(denied.verdict_after(wait).is_allowed(), "denied for {wait}, and still denied then");
                prop_assert!(!denied.verdict_after(wait - 1).is_allowed(), "denied for {wait}, and allowed before");
                check_denied(&denied)?;
            }
            Step::Exceeds => prop_assert!(!tier.peek(&zero, time, options).is_allowed()),
        }
    }
    Ok(())
}
