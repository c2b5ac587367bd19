//! The limit of requests in flight: the sum of the held costs never exceeds the maximum.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Step};
use tower_ratelimit::{AcquireOptions, InFlight, LimitSnapshot, Timestamp, Verdict};

use crate::cases;
use crate::model::MAX_PERIOD;
use crate::span::ticks;

proptest! {
    #![proptest_config(cases(60))]

    /// Admit if `cost + H <= max`; `remaining = max - H`.
    #[test]
    fn in_flight_limit_admits_if_the_held_costs_and_the_cost_are_at_most_the_maximum(
        max in 1u64..6, cost in number(), held in number(), now in any::<u64>(),
    ) {
        let now = Timestamp::from_micros(now);
        let (verdict, snapshot) = InFlight::new(max).peek_with_held(&[0], now, AcquireOptions::cost(cost).into(), held);
        let expected = if cost > max {
            Verdict::ExceedsLimit
        } else if u128::from(cost) + u128::from(held) > u128::from(max) {
            Verdict::Denied { retry_after: Duration::from_secs(1) }
        } else {
            Verdict::Allowed
        };
        prop_assert_eq!(verdict, expected);
        prop_assert_eq!(snapshot.compute(), unused(max, max.saturating_sub(held)));
    }

    /// A store charges nothing: every state is that of a never-seen key.
    #[test]
    fn in_flight_limit_charges_nothing(max in 1u64..6, cost in number(), now in any::<u64>(), forced in any::<bool>()) {
        let (limit, now) = (InFlight::new(max), Timestamp::from_micros(now));
        let options =
            if forced { ChargeOptions::forced(cost, ticks(7)) } else { AcquireOptions::cost(cost).into() };
        match limit.decide(&[0], now, options) {
            Step::Allow { next, delay } => prop_assert!(next == [0] && delay == 0 && (forced || cost <= max)),
            Step::Exceeds => prop_assert!(!forced && cost > max),
            step @ Step::Deny { .. } => prop_assert!(false, "{step:?}"),
        }
        prop_assert_eq!(limit.snapshot(&[0], now).compute(), unused(max, max));
        prop_assert_eq!(limit.max_reset(), Duration::ZERO);
    }
}

fn unused(limit: u64, remaining: u64) -> LimitSnapshot {
    LimitSnapshot::new(limit, None).with_remaining(remaining)
}

/// Generates small numbers, and those at the end of 64 bits.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..8, 1 => select(vec![u64::MAX - 4, u64::MAX - 1, u64::MAX])]
}

#[test]
fn in_flight_limit_accepts_maximums_from_0_to_below_2_to_the_53rd() {
    for (max, is_valid) in [(0, true), (1, true), (2, true), ((1 << 53) - 1, true), (1 << 53, false), (u64::MAX, false)]
    {
        let built = InFlight::try_new(max);
        assert_eq!(built.is_ok(), is_valid, "{max}");
        if let Ok(limit) = built {
            assert_eq!((limit, limit.max(), limit.max_hold_duration()), (InFlight::new(max), max, None));
        }
    }
}

#[test]
fn hold_duration_is_from_a_microsecond_to_200_years() {
    let limit = InFlight::new(3);
    for span in [1, 2, MAX_PERIOD] {
        let limited = limit.try_max_duration(ticks(span)).expect("valid");
        assert_eq!((limited, limited.max()), (limit.max_duration(ticks(span)), 3));
        assert_eq!(limited.max_hold_duration(), Some(ticks(span)));
    }
    for span in [Duration::ZERO, Duration::from_nanos(999), ticks(MAX_PERIOD + 1), Duration::MAX] {
        assert!(limit.try_max_duration(span).is_err_and(|error| error.is_config()), "{span:?}");
    }
}
