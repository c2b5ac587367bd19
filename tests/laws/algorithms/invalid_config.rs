//! Invalid settings are errors at build time. The message states what would be valid.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::{
    DynLimit, Error, FixedWindow, Gcra, InFlight, LeakyBucket, LeakyQueue, Limit, ManualClock, Memory, Quota,
    QuotaError, SlidingLog, SlidingWindow, TokenBucket,
};

use crate::cases;
use crate::harness::gcra;
use crate::model::MAX_PERIOD;
use crate::schedule::{bucket, log_uniform};
use crate::span::ticks;

const MAX_LIMIT: u64 = 1 << 53;

#[test]
fn invalid_quotas_are_errors() {
    let second = Duration::from_secs(1);
    let cases = [
        (Quota::try_new(MAX_LIMIT + 1, second), QuotaError::LimitTooLarge, "2^53"),
        (Quota::try_new(u64::MAX, second), QuotaError::LimitTooLarge, "2^53"),
        (Quota::try_new(1, Duration::ZERO), QuotaError::PeriodZero, "at least one microsecond"),
        (Quota::try_new(1, Duration::from_nanos(1)), QuotaError::FractionalMicros, "whole number of microseconds"),
        (Quota::try_new(1, second + Duration::from_nanos(500)), QuotaError::FractionalMicros, "whole number"),
        (Quota::try_new(1, second / 3), QuotaError::FractionalMicros, "whole number of microseconds"),
        (Quota::try_new(1, ticks(MAX_PERIOD + 1)), QuotaError::PeriodTooLong, "200 years"),
        (Quota::try_new(1, Duration::from_secs(u64::MAX)), QuotaError::PeriodTooLong, "200 years"),
    ];
    for (built, expected, text) in cases {
        assert_eq!(built, Err(expected));
        assert!(expected.to_string().contains(text), "{expected}");
    }
    assert!(Quota::try_new(MAX_LIMIT, ticks(MAX_PERIOD)).is_ok());
    assert!(Quota::try_new(1, ticks(1)).is_ok());
}

#[test]
fn invalid_quota_texts_are_errors() {
    let cases = [
        ("", QuotaError::InvalidFormat),
        ("10", QuotaError::InvalidFormat),
        ("10/", QuotaError::InvalidFormat),
        ("/s", QuotaError::InvalidFormat),
        ("ten/min", QuotaError::InvalidFormat),
        ("-1/s", QuotaError::InvalidFormat),
        ("+1/s", QuotaError::InvalidFormat),
        ("1.5/s", QuotaError::InvalidFormat),
        ("1e3/s", QuotaError::InvalidFormat),
        ("_1/s", QuotaError::InvalidFormat),
        ("10 20/s", QuotaError::InvalidFormat),
        ("10 per", QuotaError::InvalidFormat),
        ("10/5", QuotaError::InvalidFormat),
        ("10/fortnight", QuotaError::UnknownUnit),
        ("10/1.5s", QuotaError::UnknownUnit),
        ("10/-1s", QuotaError::UnknownUnit),
        ("10/s/s", QuotaError::UnknownUnit),
        ("10/0s", QuotaError::PeriodZero),
        ("9007199254740993/s", QuotaError::LimitTooLarge),
        ("18446744073709551615/s", QuotaError::LimitTooLarge),
        ("18446744073709551616/s", QuotaError::LimitTooLarge),
        ("1/18446744073709551616us", QuotaError::PeriodTooLong),
        ("1 per 18446744073709551615w", QuotaError::PeriodTooLong),
        ("1 per 73051d", QuotaError::PeriodTooLong),
    ];
    for (text, expected) in cases {
        assert_eq!(text.parse::<Quota>(), Err(expected), "{text:?}");
        assert!(!expected.to_string().is_empty());
    }
    // The sign of micro, and the Greek letter.
    assert_eq!(["1/\u{b5}s", "1/\u{3bc}s"].map(str::parse), [Ok(Quota::new(1, ticks(1))); 2]);
    assert!(QuotaError::InvalidFormat.to_string().contains("100/min"));
    assert!(QuotaError::UnknownUnit.to_string().contains("us, ms, s, min, h, d or w"));
}

/// A constructor without `try` panics with the error of the one with it.
#[test]
fn constructors_and_setters_panic_with_the_error() {
    let second = Quota::per_second(1);
    let panics: [(fn(Quota), &str); 8] = [
        (|quota| _ = Gcra::new(quota).burst(0), "invalid burst: 0"),
        (|_| _ = Gcra::new(Quota::per_day(999_999_937)), "invalid quota: in lowest terms"),
        (|quota| _ = LeakyQueue::new(quota).max_waiting(u64::MAX), "the maximum is 2^53"),
        (|_| _ = SlidingLog::new(Quota::per_day(1_000_001)), "a sliding log stores every hit"),
        (|_| _ = InFlight::new(1 << 53), "`max` must be below 2^53"),
        (|_| _ = InFlight::new(1).max_duration(Duration::ZERO), "from 1 us up to 200 years"),
        (|_| _ = InFlight::new(1).max_duration(ticks(MAX_PERIOD + 1)), "from 1 us up to 200 years"),
        (|quota| _ = Memory::<u64, _>::new((Gcra::new(quota), Gcra::new(quota))), "two limits are named \"default\""),
    ];
    for (construct, text) in panics {
        let panic = std::panic::catch_unwind(|| construct(second)).expect_err(text);
        let message = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let message = message.expect("a message");
        assert!(message.contains(text), "{message} does not contain {text:?}");
    }
}

#[test]
fn invalid_bursts_are_errors() {
    let daily = Gcra::new(Quota::per_day(1));
    assert_config_error(daily.try_burst(0), "at least 1");
    assert_config_error(daily.try_burst(MAX_LIMIT + 1), "2^53");
    assert_config_error(daily.try_burst(u64::MAX), "2^53");
    assert_config_error(daily.try_burst(73_051), "a burst of at most 73050");
    assert!(daily.try_burst(73_050).is_ok());
    assert_config_error(TokenBucket::new(Quota::per_day(1)).try_burst(0), "at least 1");
    assert_config_error(LeakyBucket::new(Quota::per_day(1)).try_burst(0), "at least 1");
}

#[test]
fn buckets_reject_quotas_that_are_too_fine() {
    assert_config_error(Gcra::try_new(Quota::per_day(999_999_937)), "invalid quota 999999937/d: in lowest terms");
    assert_config_error(TokenBucket::try_new(Quota::per_day(999_999_937)), "the nearest valid quota is");
    assert_config_error(LeakyBucket::try_new(Quota::per_day(999_999_937)), "2^53");
    let largest = Quota::new(MAX_LIMIT, ticks(MAX_PERIOD));
    assert_config_error(Gcra::try_new(largest), "the nearest valid quota is");
    let _ = FixedWindow::new(largest);
}

/// The exact boundary: the limit times the period is at most 2^53 in lowest terms.
#[test]
fn bucket_accepts_quotas_up_to_the_boundary_of_limit_times_period() {
    for limit in 2..1_000 {
        for period in [MAX_LIMIT / limit, MAX_LIMIT / limit + 1] {
            let quota = Quota::new(limit, ticks(period));
            assert_eq!(Gcra::try_new(quota).is_ok(), fits(quota), "{quota}");
        }
    }
}

/// The limit is below 2^32 in lowest terms.
#[test]
fn bucket_accepts_quotas_up_to_the_boundary_of_the_limit() {
    let quota = |limit, period| Quota::new(limit, ticks(period));
    assert!(Gcra::try_new(quota((1 << 32) - 1, 1)).is_ok());
    assert!(Gcra::try_new(quota(1 << 32, 1)).is_err());
    assert!(Gcra::try_new(quota(1 << 33, 4)).is_ok());
    assert_eq!(suggested_by(Gcra::try_new(quota(1 << 32, 1))), quota((1 << 32) - 1, 1), "the next one");
    assert_eq!(suggested_by(Gcra::try_new(quota(1 << 40, 1))), quota((1 << 32) - 1, 1));
    assert_eq!(suggested_by(Gcra::try_new(quota((1 << 40) + 2, 2))), quota((1 << 33) - 2, 2));
}

/// A period with awkward divisors.
#[test]
fn error_suggests_the_nearest_quota_when_it_is_far() {
    let period = 1_000_003 * 1_000_033;
    let limit = 500 * 1_000_003 + 300_000;
    let suggested = suggested_by(Gcra::try_new(Quota::new(limit, ticks(period))));
    assert_eq!(suggested, Quota::new(500 * 1_000_033, ticks(period)), "a multiple of a divisor is 285000 off");
}

/// A multiple of one of the period's two divisors is 499,999 off, and a multiple of the other one is further away.
#[test]
fn error_suggests_the_nearest_quota_within_half_a_million() {
    let period = 1_000_003 * 1_000_033;
    let suggested = suggested_by(Gcra::try_new(Quota::new(533_353_100_054, ticks(period))));
    assert_eq!(suggested, Quota::new(533_353_100_054 - 499_999, ticks(period)));
}

/// The period is a prime: the limit is a multiple of it, or limit times period is at most 2^53.
#[test]
fn error_suggests_the_largest_quota_when_no_valid_one_is_near() {
    let period = (1 << 31) - 19;
    let suggested = suggested_by(Gcra::try_new(Quota::new(10_000_000, ticks(period))));
    assert_eq!(suggested, Quota::new(MAX_LIMIT / period, ticks(period)));
    let suggested = suggested_by(Gcra::try_new(Quota::new(5 * period + 10_000_000, ticks(period))));
    assert_eq!(suggested, Quota::new(5 * period, ticks(period)));
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn suggested_quota_fits_and_is_the_nearest(
        limit in log_uniform(MAX_LIMIT),
        unit in prop::sample::select(vec![1_000_000u64, 60_000_000, 3_600_000_000, 86_400_000_000]),
        count in 1u64..1_000,
    ) {
        let quota = Quota::new(limit, ticks(unit * count));
        if let Err(error) = Gcra::try_new(quota) {
            let suggested = suggested_in(&error);
            prop_assert!(Gcra::try_new(suggested).is_ok(), "{error}");
            prop_assert_eq!(suggested.period(), quota.period());
            for off in 1..suggested.limit().abs_diff(limit).min(3_000) {
                for nearer in [limit.saturating_sub(off), limit + off] {
                    let nearer = Quota::try_new(nearer, quota.period());
                    prop_assert!(nearer.is_err() || !fits(nearer.expect("checked")), "{off} is nearer: {error}");
                }
            }
        }
    }

    #[test]
    fn suggested_burst_is_the_maximum(spec in bucket()) {
        let gcra = gcra(spec);
        if let Err(error) = gcra.try_burst(MAX_LIMIT) {
            let message = error.to_string();
            let max = message.rsplit(' ').next().and_then(|max| max.parse().ok()).expect("a number at the end");
            prop_assert!(gcra.try_burst(max).is_ok(), "{}", message);
            prop_assert!(gcra.try_burst(max + 1).is_err(), "{}", message);
        }
    }
}

#[test]
fn invalid_limiters_are_errors() {
    let gcra = Gcra::new(Quota::per_second(1));
    let named = |name: &'static str| Limit::new(name, gcra);
    assert_config_error(Memory::<u64, _>::builder(gcra).max_keys(0).build(), "invalid `max_keys`: 0");
    assert_config_error(
        Memory::<u64, _>::builder((named("a"), named("b"), named("a"))).build(),
        "two limits are named \"a\"",
    );
    assert_config_error(Memory::<u64, _>::builder((gcra, gcra)).build(), "two limits are named \"default\"");
    assert_config_error(Memory::<u64, _>::builder((named("a"), named(""))).build(), "empty name");
    assert_config_error(Memory::<u64, _>::builder(named("")).clock(ManualClock::new()).build(), "empty name");
    assert_config_error(
        Memory::<u64, _>::builder(named("größe")).build(),
        "limit name \"größe\": header fields cannot carry 'ö'",
    );
    assert_config_error(
        Memory::<u64, _>::builder((named("a"), named("b\"c"))).build(),
        "header fields cannot carry '\"'",
    );
    assert_config_error(Memory::<u64, _>::builder(named("b\\c")).build(), "header fields cannot carry '\\\\'");
    assert_config_error(Memory::<u64, _>::builder(named("b\nc")).build(), "header fields cannot carry '\\n'");
    assert_config_error(
        Memory::builder(vec![DynLimit::<u64>::new(named("b\u{7f}"))]).build(),
        "header fields cannot carry '\\u{7f}'",
    );
    #[cfg(target_pointer_width = "64")]
    assert_config_error(Memory::<u64, _>::builder(gcra).max_keys(usize::MAX).build(), "the maximum is 2^32");
    assert!(Memory::<u64, _>::builder((named("a"), named("b"))).max_keys(1).build().is_ok());
}

fn assert_config_error<T: std::fmt::Debug>(built: Result<T, Error>, text: &str) {
    let error = built.expect_err("invalid settings");
    assert!(error.is_config(), "{error:?}");
    assert!(error.to_string().contains(text), "{error} does not contain {text:?}");
}

fn fits(quota: Quota) -> bool {
    let (mut a, mut b) = (u128::from(quota.limit()), quota.period().as_micros());
    let product = a * b;
    while b != 0 {
        (a, b) = (b, a % b);
    }
    product / a / a <= u128::from(MAX_LIMIT) && u128::from(quota.limit()) / a < 1 << 32
}

fn suggested_by(built: Result<Gcra, Error>) -> Quota {
    suggested_in(&built.expect_err("too fine"))
}

fn suggested_in(error: &Error) -> Quota {
    let message = error.to_string();
    let (_, quota) = message.split_once("the nearest valid quota is ").expect("the message suggests a quota");
    quota.parse().expect("the suggestion is in the text form")
}

#[test]
fn queue_accepts_as_many_waiting_requests_as_a_burst_has_room_for() {
    let daily = LeakyQueue::new(Quota::per_day(1));
    for waiting in [0, 1, 7, 73_049] {
        let queue = daily.try_max_waiting(waiting).expect("valid");
        assert_eq!((Algorithm::max_waiting(&queue), queue.quota()), (Some(waiting), daily.quota()));
        assert_eq!(queue, daily.max_waiting(waiting));
    }
    assert_config_error(daily.try_max_waiting(73_050), "a burst of at most 73050");
    assert_config_error(daily.try_max_waiting(u64::MAX), "the maximum is 2^53");
    assert_eq!(LeakyQueue::try_new(Quota::per_second(10)).expect("valid"), LeakyQueue::new(Quota::per_second(10)));
}

/// "The number of blocks is the largest number up to ten that divides the period's microseconds."
#[test]
fn sliding_window_has_the_largest_number_of_blocks_up_to_ten_that_divides_the_period() {
    for (period, blocks) in [(10, 10), (9, 9), (7, 7), (11, 1), (22, 2), (33, 3), (77, 7), (99, 9), (1, 1), (120, 10)] {
        let window = SlidingWindow::new(Quota::new(5, ticks(period)));
        assert_eq!(window, window.blocks(blocks), "{period} microseconds");
        assert_eq!(window.counter_words() as u64, blocks + 7);
    }
}

#[test]
fn sliding_log_accepts_limits_up_to_a_million() {
    for (limit, is_valid) in [(1, true), (1_000_000, true), (1_000_001, false)] {
        let quota = Quota::per_day(limit);
        assert_eq!(SlidingLog::try_new(quota).ok(), is_valid.then(|| SlidingLog::new(quota)));
    }
}

#[test]
fn accessors_return_the_configuration() {
    let quota = Quota::per_second(10);
    assert_eq!((Gcra::new(quota).max_burst(), Gcra::new(quota).burst(7).max_burst()), (10, 7));
    assert_eq!((TokenBucket::new(quota).burst(7).max_burst(), LeakyBucket::new(quota).strict().max_burst()), (7, 1));
    assert_eq!(Algorithm::max_waiting(&LeakyQueue::new(quota)), Some(10));
    assert_eq!(Algorithm::max_waiting(&LeakyQueue::new(quota).max_waiting(7)), Some(7));
    assert_eq!(Algorithm::max_waiting(&Gcra::new(quota)), None);
    assert_eq!(InFlight::new(7).max(), 7);
    assert_eq!(SlidingLog::new(quota).max_heap_bytes(), 160);
    assert_eq!(FixedWindow::new(quota).max_heap_bytes(), 0);
}
