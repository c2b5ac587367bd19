//! Times in logs.

use tower_ratelimit::Timestamp;

/// Parses the time of an access log, such as `10/Oct/2000:13:55:36 -0700`.
pub(super) fn parse_access_time(text: &str) -> Option<Timestamp> {
    let parsed = jiff::fmt::strtime::parse("%d/%b/%Y:%H:%M:%S %z", text).ok()?;
    from_micros(parsed.to_timestamp().ok()?.as_microsecond())
}

/// The years 2000 to 2100, in seconds since the Unix epoch.
const YEARS: std::ops::Range<u64> = 946_684_800..4_102_444_800;
/// Fewer seconds: a trace that starts at 0.
const LONGEST_TRACE: u64 = 100_000_000;

/// Parses a number of seconds, milliseconds, microseconds or nanoseconds since the Unix epoch with an optional fraction, or
/// a time of RFC 3339. The range of years determines the unit.
///
/// What is less than a microsecond is dropped.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return from_micros(text.parse::<jiff::Timestamp>().ok()?.as_microsecond());
    }
    let number: u64 = whole.parse().ok()?;
    let in_second = [1, 1_000, 1_000_000, 1_000_000_000_u64];
    let is_in_years = |unit: &&u64| YEARS.contains(&(number / **unit));
    let unit = if number < LONGEST_TRACE { 1 } else { *in_second.iter().find(is_in_years)? };
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let billionths = digits.fold(u128::from(number), |sum, digit| sum * 10 + u128::from(digit - b'0'));
    u64::try_from(billionths / u128::from(unit) / 1_000).ok().map(Timestamp::from_micros)
}

fn from_micros(micros: i64) -> Option<Timestamp> {
    let micros = u64::try_from(micros).ok()?;
    YEARS.contains(&(micros / 1_000_000)).then(|| Timestamp::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(time: Option<Timestamp>) -> Option<u64> {
        time.map(Timestamp::as_micros)
    }

    #[test]
    fn times_are_parsed_to_the_microsecond() {
        assert_eq!(micros(parse_access_time("10/Oct/2000:13:55:36 -0700")), Some(971_211_336_000_000));
        assert_eq!(micros(parse_access_time("10/Oct/2000:13:55:36")), None);
        assert_eq!(micros(parse_access_time("10/Oct/0023:13:55:36 -0700")), None);
        assert_eq!(micros(parse_time("1700000000")), Some(1_700_000_000_000_000));
        assert_eq!(micros(parse_time("1700000000.25")), Some(1_700_000_000_250_000));
        assert_eq!(micros(parse_time("1700000000123")), Some(1_700_000_000_123_000));
        assert_eq!(micros(parse_time("1700000000123.4567")), Some(1_700_000_000_123_456));
        assert_eq!(micros(parse_time("1700000000123456.9")), Some(1_700_000_000_123_456));
        assert_eq!(micros(parse_time("1700000000123456789")), Some(1_700_000_000_123_456));
        assert_eq!(micros(parse_time("0.1234567")), Some(123_456));
        assert_eq!(micros(parse_time("99999999")), Some(99_999_999_000_000));
        assert_eq!(micros(parse_time("2023-11-14T22:13:20.000001Z")), Some(1_700_000_000_000_001));
        assert_eq!(micros(parse_time("2023-11-14T23:13:20+01:00")), Some(1_700_000_000_000_000));
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            ".",
            "-1",
            "1.5.5",
            "1e9",
            "yesterday",
            "1969-12-31T23:59:59Z",
            "1999-12-31T23:59:59Z",
            "2100-01-01T00:00:00Z",
            "100000000",
            "946684799",
            "4102444800",
            "946684799999",
            "4102444800000",
            "9223372036854775807",
            "99999999999999999999",
        ] {
            assert_eq!(parse_time(text), None, "{text:?}");
        }
    }
}
