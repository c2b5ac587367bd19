//! Times in logs.

use tower_ratelimit::Timestamp;

/// Parses the time of an access log, such as `10/Oct/2000:13:55:36 -0700`.
pub(super) fn parse_access_time(text: &str) -> Option<Timestamp> {
    let parsed = jiff::fmt::strtime::parse("%d/%b/%Y:%H:%M:%S %z", text).ok()?;
    from_micros(parsed.to_timestamp().ok()?.as_microsecond())
}

/// Parses seconds since the Unix epoch with an optional fraction, or a time of RFC 3339.
///
/// Digits after the sixth of a fraction are dropped.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return from_micros(text.parse::<jiff::Timestamp>().ok()?.as_microsecond());
    }
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(6);
    let micros = digits.fold(0, |micros, digit| micros * 10 + u64::from(digit - b'0'));
    let seconds: u64 = whole.parse().ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros).map(Timestamp::from_micros)
}

fn from_micros(micros: i64) -> Option<Timestamp> {
    u64::try_from(micros).ok().map(Timestamp::from_micros)
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
        assert_eq!(micros(parse_time("1700000000")), Some(1_700_000_000_000_000));
        assert_eq!(micros(parse_time("1700000000.25")), Some(1_700_000_000_250_000));
        assert_eq!(micros(parse_time("0.1234567")), Some(123_456));
        assert_eq!(micros(parse_time("2023-11-14T22:13:20.000001Z")), Some(1_700_000_000_000_001));
        assert_eq!(micros(parse_time("2023-11-14T23:13:20+01:00")), Some(1_700_000_000_000_000));
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in ["", ".", "-1", "1.5.5", "1e9", "yesterday", "1969-12-31T23:59:59Z", "99999999999999999999"] {
            assert_eq!(parse_time(text), None, "{text:?}");
        }
    }
}
