//! The forms in which servers state times.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, header};
use jiff::{SpanRelativeTo, Timestamp, fmt::strtime};

/// The unit of a number that names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
}

/// A time as a server states it.
enum StatedTime {
    In(Duration),
    /// Since 1970.
    At(Duration),
}

/// Reads a time in any of the forms that servers use, relative to the server's time. `None` if it is malformed or past.
///
/// A number is relative, in `unit`, or a time since 1970. The other forms are spans such as `6m0s`, and dates.
pub(super) fn read_time(text: &str, unit: Unit, headers: &HeaderMap) -> Option<Duration> {
    let time = number(text, unit).or_else(|| span(text)).or_else(|| date(text))?;
    match time {
        StatedTime::In(span) => Some(span),
        StatedTime::At(time) => time.checked_sub(now(headers)).filter(|wait| !wait.is_zero()),
    }
}

/// Reads a decimal number. Only a time since 1970 is told by its size: no server states a wait of thirty years.
fn number(text: &str, unit: Unit) -> Option<StatedTime> {
    /// From 2001 to 5138, in seconds.
    const SINCE_1970: std::ops::Range<u128> = 1_000_000_000..100_000_000_000;
    const NANOS: u128 = 1_000_000_000;
    let mut nanos = billionths(text)?;
    if unit == Unit::Milliseconds {
        nanos = nanos.div_ceil(1_000);
    }
    let scales = [1, 1_000, 1_000_000];
    if let Some(scale) = scales.into_iter().find(|scale| SINCE_1970.contains(&(nanos / NANOS / scale))) {
        return Some(StatedTime::At(duration(nanos / scale)));
    }
    Some(StatedTime::In(duration(nanos)))
}

/// Reads a decimal number in billionths, rounded up. The maximum stands for numbers that overflow.
pub(super) fn billionths(text: &str) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() + fraction.len() == 0 || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse().unwrap_or(u64::MAX) };
    let (digits, rest) = fraction.split_at(fraction.len().min(9));
    let digits: u64 = format!("{digits:0<9}").parse().unwrap_or_default();
    let added = u128::from(digits) + u128::from(rest.bytes().any(|digit| digit > b'0'));
    Some(u128::from(whole) * 1_000_000_000 + added)
}

/// Reads a span with units, such as `2m59.56s`. A negative span is not in the future.
fn span(text: &str) -> Option<StatedTime> {
    let span: jiff::Span = text.parse().ok()?;
    let span = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(span).ok().map(StatedTime::In)
}

/// Reads the dates of HTTP (RFC 9110, section 5.6.7), of RFC 3339, and of JavaScript.
fn date(text: &str) -> Option<StatedTime> {
    if let Ok(date) = httpdate::parse_http_date(text) {
        return date.duration_since(SystemTime::UNIX_EPOCH).ok().map(StatedTime::At);
    }
    let time: Timestamp = text.parse().ok().or_else(|| {
        // The name of the zone follows in parentheses.
        let text = text.split(" (").next()?;
        strtime::parse("%a %b %d %Y %H:%M:%S GMT%z", text).ok()?.to_timestamp().ok()
    })?;
    Duration::try_from(time.as_duration()).ok().map(StatedTime::At)
}

/// Returns the server's time by its field `Date` if present, so that the clocks need not agree. Since 1970.
fn now(headers: &HeaderMap) -> Duration {
    let sent = headers.get(header::DATE).and_then(|line| httpdate::parse_http_date(line.to_str().ok()?).ok());
    sent.unwrap_or_else(SystemTime::now).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Converts nanoseconds. The maximum stands for numbers that overflow.
pub(super) fn duration(nanos: u128) -> Duration {
    let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
    Duration::new(seconds, u32::try_from(nanos % 1_000_000_000).unwrap_or_default())
}
