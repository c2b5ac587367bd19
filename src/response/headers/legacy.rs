//! The header fields besides the [draft's](super::draft): `Retry-After` (RFC 9110), and the legacy `X-RateLimit-*`.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::fmt::seconds;
use super::rate_limit::{RATELIMIT, RATELIMIT_POLICY};
use crate::decision::Decision;

const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// What `X-RateLimit-Reset` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "these are the two that are in use")]
pub enum ResetFormat {
    /// UTC seconds since the Unix epoch, as GitHub sends it.
    EpochSeconds,
    /// Seconds from now, as Envoy and Kong send it.
    DeltaSeconds,
}

/// `X-RateLimit-*`: of several limits, and of what is there already, the most restrictive.
pub(in crate::response) fn add_legacy(headers: &mut HeaderMap, decision: &Decision, reset: ResetFormat) {
    let Some(standing) = decision.most_restrictive() else { return };
    let figures = standing.snapshot();
    let there = headers.get(&LEGACY_REMAINING).and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    if there.is_some_and(|remaining| remaining <= figures.remaining) {
        return;
    }
    let reset_at = match reset {
        ResetFormat::DeltaSeconds => seconds(figures.reset),
        ResetFormat::EpochSeconds => {
            let moment = decision.decided_at().saturating_add(figures.reset);
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
pub(in crate::response) fn add_retry_after(headers: &mut HeaderMap, retry_after: Duration) {
    headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(retry_after).max(1)));
}

/// `Cache-Control: no-store`, in place of any other: a 429 must not be stored (RFC 6585, section 4), and no other
/// refusal is of use to another client either.
pub(in crate::response) fn forbid_storing(headers: &mut HeaderMap) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// Names the fields in `Access-Control-Expose-Headers`, after what is named there already.
pub(in crate::response) fn expose(headers: &mut HeaderMap) {
    let present = [RATELIMIT, RATELIMIT_POLICY, LEGACY_LIMIT, LEGACY_REMAINING, LEGACY_RESET, header::RETRY_AFTER];
    let mut list = String::with_capacity(96);
    for name in present.iter().filter(|name| headers.contains_key(*name)) {
        if !list.is_empty() {
            list.push_str(", ");
        }
        list.push_str(name.as_str());
    }
    if let Ok(names) = HeaderValue::try_from(list)
        && !names.is_empty()
    {
        headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, names);
    }
}
