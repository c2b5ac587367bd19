//! The text form of a quota parses to an equal quota; parts of a quota.

use std::time::Duration;

use num_bigint::BigUint;
use proptest::prelude::*;
use tower_ratelimit::Quota;

use crate::cases;
use crate::model::MAX_PERIOD;
use crate::schedule::log_uniform;
use crate::span::ticks;

const UNITS: &[(&str, u64)] = &[
    ("us", 1),
    ("microseconds", 1),
    ("ms", 1_000),
    ("milliseconds", 1_000),
    ("s", 1_000_000),
    ("sec", 1_000_000),
    ("seconds", 1_000_000),
    ("m", 60_000_000),
    ("min", 60_000_000),
    ("minutes", 60_000_000),
    ("h", 3_600_000_000),
    ("hours", 3_600_000_000),
    ("d", 86_400_000_000),
    ("days", 86_400_000_000),
    ("w", 604_800_000_000),
    ("weeks", 604_800_000_000),
];

fn any_quota() -> impl Strategy<Value = Quota> {
    let unit =
        prop::sample::select(vec![1, 1_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000, 604_800_000_000]);
    let period = prop_oneof![log_uniform(MAX_PERIOD), (unit, 1u64..1_000).prop_map(|(unit, count)| unit * count)];
    (log_uniform(1 << 53), period).prop_map(|(limit, period)| Quota::new(limit, ticks(period)))
}

proptest! {
    #![proptest_config(cases(800))]

    #[test]
    fn quota_text_parses_to_an_equal_quota(quota in any_quota()) {
        let text = quota.to_string();
        prop_assert_eq!(text.parse(), Ok(quota), "{}", text);
    }

    #[test]
    fn parsing_any_text_does_not_panic(text in "\\PC*") {
        let _ = text.parse::<Quota>();
    }

    #[test]
    fn quota_is_parsed_in_every_form_and_unit(
        limit in 1u64..=1 << 53,
        count in 1u64..1_000,
        (unit, micros) in prop::sample::select(UNITS),
        form in 0usize..4,
    ) {
        let (text, count) = match form {
            0 => (format!("{limit}/{unit}"), 1),
            1 => (format!("{limit} per {unit}"), 1),
            2 => (format!("{limit}/{count}{unit}"), count),
            _ => (format!("{limit} per {count} {unit}"), count),
        };
        prop_assert_eq!(text.parse(), Ok(Quota::new(limit, ticks(count * micros))), "{}", text);
    }
}

#[test]
fn quota_is_parsed_in_common_forms() {
    let minute = Duration::from_secs(60);
    for (text, quota) in [
        ("100/min", Quota::per_minute(100)),
        ("10/s", Quota::per_second(10)),
        ("10_000/h", Quota::per_hour(10_000)),
        (" 5 / 10 s ", Quota::new(5, Duration::from_secs(10))),
        ("5 per 15min", Quota::new(5, 15 * minute)),
        ("1000 per 7 days", Quota::new(1_000, 7 * 24 * 60 * minute)),
        ("1/w", Quota::new(1, 7 * 24 * 60 * minute)),
    ] {
        assert_eq!(text.parse(), Ok(quota), "{text:?}");
    }
    assert_eq!(Quota::per_minute(100).to_string(), "100/min");
    assert_eq!(Quota::new(1_000, Duration::from_secs(7)).to_string(), "1000 per 7s");
    assert_eq!(Quota::new(60, Duration::from_millis(1_500)).to_string(), "60 per 1500ms");
}

proptest! {
    /// The parts sustain at most the quota, and are as large as whole numbers allow.
    #[test]
    fn parts_of_a_quota_sustain_at_most_the_quota(quota in any_quota(), processes in log_uniform(1 << 40).prop_map(|count| count.max(1))) {
        let part = match quota.divided_by(processes) {
            Ok(part) => part,
            Err(error) => {
                prop_assert_eq!(error, tower_ratelimit::QuotaError::PeriodTooLong);
                prop_assert!(quota.limit() < processes, "a limit of at least one for each keeps its period");
                return Ok(());
            }
        };
        let wide = |number: u64| BigUint::from(number);
        let period = |quota: Quota| BigUint::from(quota.period().as_micros());
        let sustained = |part_limit: BigUint, part_period: BigUint| {
            part_limit * wide(processes) * period(quota) <= wide(quota.limit()) * part_period
        };
        prop_assert!(sustained(wide(part.limit()), period(part)), "{} by {}: {}", quota, processes, part);
        if quota.limit() >= processes {
            prop_assert_eq!(part.period(), quota.period());
            prop_assert!(!sustained(wide(part.limit() + 1), period(part)), "{} by {}: {}", quota, processes, part);
        } else {
            prop_assert_eq!(part.limit(), 1);
            prop_assert!(!sustained(wide(1), period(part) - 1_u8), "{} by {}: {}", quota, processes, part);
        }
    }
}

#[test]
fn quota_divided_by_no_process_is_an_error() {
    assert_eq!(Quota::per_minute(5).divided_by(0), Err(tower_ratelimit::QuotaError::NoProcess));
    assert_eq!(Quota::per_minute(5).divided_by(8), Ok(Quota::new(1, Duration::from_secs(96))));
    assert_eq!(Quota::per_minute(5).divided_by(1), Ok(Quota::per_minute(5)));
}
