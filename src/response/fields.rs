//! The header fields: draft-ietf-httpapi-ratelimit-headers-10, `Retry-After` (RFC 9110), and the legacy `X-RateLimit-*`.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::partition::Hash;
use super::text::push_number;
use crate::decision::{Decision, Figures, Standing, Verdict};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// What `X-RateLimit-Reset` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "these are the two that are in use")]
pub enum LegacyReset {
    /// UTC seconds since the Unix epoch, as GitHub sends it.
    EpochSeconds,
    /// Seconds from now, as Envoy and Kong send it.
    DeltaSeconds,
}

/// `RateLimit` and `RateLimit-Policy`, appended to what a handler or another limiter has put there.
pub(super) fn add_draft(headers: &mut HeaderMap, standings: &[Standing], partition: Option<Hash>) {
    let key = partition.map(|hash| format!(";pk=:{}:", STANDARD.encode(hash))).unwrap_or_default();
    // One buffer for both lists; each value is then copied out at its length.
    let mut list = String::with_capacity(96);
    let told = || standings.iter().filter(|standing| !standing.is_shadow());
    for standing in told() {
        let figures = standing.figures();
        push_item(&mut list, standing.name());
        push_parameter(&mut list, ";q=", figures.limit);
        push_parameter(&mut list, ";w=", seconds(figures.window).max(1));
        list.push_str(&key);
    }
    append(headers, RATELIMIT_POLICY, &list);
    list.clear();
    for standing in told() {
        let figures = standing.figures();
        push_item(&mut list, standing.name());
        push_parameter(&mut list, ";r=", figures.remaining);
        let more_after = seconds(more_after(standing.verdict(), &figures));
        if more_after > 0 {
            push_parameter(&mut list, ";t=", more_after);
        }
        list.push_str(&key);
    }
    append(headers, RATELIMIT, &list);
}

/// The time until there is more: for what was refused it is told no later than it is refused until.
fn more_after(verdict: Verdict, figures: &Figures) -> Duration {
    match verdict {
        Verdict::Denied { retry_after } => figures.more_after.min(retry_after),
        _ => figures.more_after,
    }
}

/// `X-RateLimit-*`: of several limits, and of what is there already, the most restrictive.
pub(super) fn add_legacy(headers: &mut HeaderMap, decision: &Decision, reset: LegacyReset) {
    let Some(standing) = decision.standing() else { return };
    let figures = standing.figures();
    let there = headers.get(&LEGACY_REMAINING).and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    if there.is_some_and(|remaining| remaining <= figures.remaining) {
        return;
    }
    let reset_at = match reset {
        LegacyReset::DeltaSeconds => seconds(figures.reset),
        LegacyReset::EpochSeconds => {
            let moment = decision.decided_at().after(figures.reset);
            moment.as_micros().div_ceil(1_000_000)
        }
    };
    for (name, value) in
        [(LEGACY_LIMIT, figures.limit), (LEGACY_REMAINING, figures.remaining), (LEGACY_RESET, reset_at)]
    {
        headers.insert(name, HeaderValue::from(value));
    }
}

/// `Retry-After`: whole seconds, rounded up, at least 1.
pub(super) fn add_retry_after(headers: &mut HeaderMap, retry_after: Duration) {
    headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(retry_after).max(1)));
}

/// Names the fields in `Access-Control-Expose-Headers`, after what is named there already.
pub(super) fn expose(headers: &mut HeaderMap) {
    let present = [RATELIMIT, RATELIMIT_POLICY, LEGACY_LIMIT, LEGACY_REMAINING, LEGACY_RESET, header::RETRY_AFTER];
    let mut list = String::with_capacity(96);
    for name in present.iter().filter(|name| headers.contains_key(*name)) {
        if !list.is_empty() {
            list.push_str(", ");
        }
        list.push_str(name.as_str());
    }
    append(headers, header::ACCESS_CONTROL_EXPOSE_HEADERS, &list);
}

/// Starts a member of a structured-field List: a String (RFC 9651, section 3.3.3), which is ASCII.
fn push_item(list: &mut String, name: &str) {
    if !list.is_empty() {
        list.push_str(", ");
    }
    list.push('"');
    if name.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
        list.push_str(name);
    } else {
        for char in name.chars() {
            match char {
                '"' | '\\' => list.extend(['\\', char]),
                ' '..='~' => list.push(char),
                _ => list.push('?'),
            }
        }
    }
    list.push('"');
}

/// A structured-field Integer has at most 15 digits.
fn push_parameter(list: &mut String, name: &str, number: u64) {
    list.push_str(name);
    push_number(list, number.min(999_999_999_999_999));
}

/// Whole seconds, rounded up.
fn seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

fn append(headers: &mut HeaderMap, name: HeaderName, list: &str) {
    // All characters in it are visible ASCII or spaces.
    if let Some(value) = HeaderValue::from_str(list).ok().filter(|value| !value.is_empty()) {
        headers.append(name, value);
    }
}
