//! The header fields by which servers state their limits.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, header};
use jiff::{SignedDuration, Timestamp};
use sfv::{Dictionary, List, ListEntry, Parser};

/// The fields of one limit: what remains, and when more is available.
///
/// In this order: drafts of `RateLimit` before the ninth; GitHub and many others; OpenAI; Anthropic.
const PAIRS: [(&str, &str); 8] = [
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
];

/// A number of seconds from this one on is a time since 1970 (2001-09-09): no server states a wait of thirty years.
const FIRST_TIME_SINCE_1970: u64 = 1_000_000_000;

/// Returns the longest `Retry-After`, if the field is repeated.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(header::RETRY_AFTER).iter().filter_map(|line| line.to_str().ok());
    lines.filter_map(|line| delta_seconds(line.trim()).or_else(|| time_until(line.trim(), headers))).max()
}

/// What a server states about one of its limits.
struct Stated {
    remaining: i64,
    /// The time until more is available.
    reset: Option<Duration>,
}

/// What a server states about its limits.
pub(super) struct StatedLimits(Vec<Stated>);

impl StatedLimits {
    /// Returns the time until every exhausted limit has more available; `None` if the fields name no exhausted limit.
    pub(super) fn exhausted_for(&self) -> Option<Duration> {
        self.0.iter().filter(|limit| limit.remaining <= 0).filter_map(|limit| limit.reset).max()
    }

    /// Returns the least that remains of any limit.
    pub(super) fn remaining(&self) -> Option<u64> {
        self.0.iter().map(|limit| u64::try_from(limit.remaining).unwrap_or_default()).min()
    }
}

/// Reads the limits that the fields of a response state.
pub(super) fn limits(headers: &HeaderMap) -> StatedLimits {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let pairs = PAIRS.iter().filter_map(|(remaining, reset)| {
        let remaining = text(remaining)?.parse().ok()?;
        Some(Stated { remaining, reset: text(reset).and_then(|text| reset_in(text, headers)) })
    });
    StatedLimits(pairs.chain(rate_limit(headers)).collect())
}

/// Reads the field `RateLimit`: a list of limits, or in drafts before the eighth one limit as a dictionary.
fn rate_limit(headers: &HeaderMap) -> Vec<Stated> {
    let lines = headers.get_all("ratelimit").iter().map(|line| line.to_str().ok());
    let Some(lines) = lines.collect::<Option<Vec<_>>>().filter(|lines| !lines.is_empty()) else { return Vec::new() };
    // A list may end with empty elements (RFC 9110, section 5.6.1), which a structured field may not.
    let text = lines.join(", ");
    let text = text.trim_end_matches([',', ' ']);
    let seconds = |number: i64| u64::try_from(number).ok().map(Duration::from_secs);
    if let Ok(list) = Parser::new(text).parse::<List>() {
        let items = list.iter().filter_map(|entry| {
            let ListEntry::Item(item) = entry else { return None };
            // A draft may rename `r` to `a`, and `t` to `w`.
            let number = |names: [&str; 2]| {
                let parameter = names.iter().find_map(|name| item.params.get(*name))?;
                parameter.as_integer().map(i64::from)
            };
            Some(Stated { remaining: number(["r", "a"])?, reset: number(["t", "w"]).and_then(seconds) })
        });
        return items.collect();
    }
    let Ok(dictionary) = Parser::new(text).parse::<Dictionary>() else { return Vec::new() };
    let number = |name: &str| {
        let Some(ListEntry::Item(item)) = dictionary.get(name) else { return None };
        item.bare_item.as_integer().map(i64::from)
    };
    let reset = number("reset").and_then(seconds);
    number("remaining").map(|remaining| Stated { remaining, reset }).into_iter().collect()
}

/// Reads a time in any of the forms that servers use: seconds, seconds since 1970, a date, or a span such as `6m0s`.
fn reset_in(text: &str, headers: &HeaderMap) -> Option<Duration> {
    let until =
        |time: Duration| time.saturating_sub(now(headers).duration_since(SystemTime::UNIX_EPOCH).unwrap_or(time));
    if let Some(span) = delta_seconds(text) {
        return Some(if span.as_secs() < FIRST_TIME_SINCE_1970 { span } else { until(span) });
    }
    if let Ok(span) = text.parse::<SignedDuration>() {
        return Some(span.try_into().unwrap_or_default());
    }
    let time: Timestamp = text.parse().ok()?;
    Some(until(time.as_duration().try_into().unwrap_or_default()))
}

/// Parses digits only. A number that overflows is the maximum.
fn delta_seconds(text: &str) -> Option<Duration> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(text.parse().unwrap_or(u64::MAX)))
}

/// Returns the time until a date, or zero if the date is past.
fn time_until(text: &str, headers: &HeaderMap) -> Option<Duration> {
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now(headers)).unwrap_or_default())
}

/// Returns the server's time by its field `Date` if present, so that the clocks need not agree.
fn now(headers: &HeaderMap) -> SystemTime {
    let sent = headers.get(header::DATE).and_then(|line| httpdate::parse_http_date(line.to_str().ok()?).ok());
    sent.unwrap_or_else(SystemTime::now)
}
