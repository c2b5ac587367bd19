//! `X-RateLimit-*`, `Retry-After` (RFC 9110), `Cache-Control`, `Connection` and `Access-Control-Expose-Headers`.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Version, header};

use super::rate_limit::{RATELIMIT, RATELIMIT_POLICY, client_snapshot};
use crate::decision::{Decision, LimitSnapshot, ceil_seconds};

const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The unit of `X-RateLimit-Reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "no other formats are in use")]
pub enum ResetFormat {
    /// Seconds since the Unix epoch, as GitHub sends them.
    EpochSeconds,
    /// Seconds from now, as Envoy and Kong send them.
    DeltaSeconds,
}

/// `X-RateLimit-*` of the most restrictive limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LegacyHeaders {
    limit: u64,
    remaining: u64,
    reset: u64,
}

impl LegacyHeaders {
    /// Returns `None` if a policy decided.
    pub(super) fn new(decision: &Decision, reset: ResetFormat) -> Option<Self> {
        let LimitSnapshot { limit, remaining, reset: span, .. } = client_snapshot(decision.most_restrictive()?);
        let reset = match reset {
            ResetFormat::DeltaSeconds => ceil_seconds(span),
            ResetFormat::EpochSeconds => decision.decided_at().saturating_add(span).as_micros().div_ceil(1_000_000),
        };
        Some(Self { limit, remaining, reset })
    }

    /// Adds the headers. Headers that another limiter has set stay if they have as little remaining.
    pub(super) fn add(self, headers: &mut HeaderMap) {
        let present = headers.get(&LEGACY_REMAINING).and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
        if present.is_some_and(|remaining| remaining <= self.remaining) {
            return;
        }
        for (name, value) in
            [(LEGACY_LIMIT, self.limit), (LEGACY_REMAINING, self.remaining), (LEGACY_RESET, self.reset)]
        {
            insert_number(headers, name, value);
        }
    }
}

/// Adds `Retry-After`: whole seconds, rounded up, at least 1.
pub(in crate::response) fn add_retry_after(headers: &mut HeaderMap, retry_after: Duration) {
    insert_number(headers, header::RETRY_AFTER, ceil_seconds(retry_after).max(1));
}

/// Inserts a number. `HeaderValue::from` would allocate twice: row "service, rejected" of benches/figures.md.
fn insert_number(headers: &mut HeaderMap, name: HeaderName, number: u64) {
    if let Ok(value) = HeaderValue::from_str(itoa::Buffer::new().format(number)) {
        headers.insert(name, value);
    }
}

/// Replaces `Cache-Control` by `no-store`.
///
/// A cache must not store a 429 (RFC 6585, section 4). The other rejections concern one request only.
pub(in crate::response) fn forbid_storing(headers: &mut HeaderMap) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// Whether a cache may store the response for other clients (RFC 9111, section 3).
pub(super) fn is_shared(headers: &HeaderMap) -> bool {
    let directives = |name: HeaderName| {
        let lines = headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
        lines.flat_map(|line| line.split(',')).map(|directive| directive.split('=').next().unwrap_or_default().trim())
    };
    let has = |names: &[&str]| {
        directives(header::CACHE_CONTROL).any(|directive| names.iter().any(|name| directive.eq_ignore_ascii_case(name)))
    };
    let is_stored = has(&["public", "s-maxage", "max-age"]) || headers.contains_key(header::EXPIRES);
    is_stored && !has(&["private", "no-store"]) || headers.contains_key("cdn-cache-control")
}

/// Adds `Connection: close` if the request is of HTTP/1 and has a body.
///
/// The server does not read the body of a rejected request, and closes the connection behind the response. A client
/// that does not know this sends its next request on that connection (RFC 9112, section 9.6).
pub(in crate::response) fn close_if_unread(headers: &mut HeaderMap, version: Version, request: &HeaderMap) {
    let is_empty = request.get(header::CONTENT_LENGTH).is_none_or(|length| length.as_bytes() == b"0");
    if version <= Version::HTTP_11 && (!is_empty || request.contains_key(header::TRANSFER_ENCODING)) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

/// The headers that a responder adds, and that scripts of other origins cannot read by default.
const EXPOSED: [HeaderName; 10] = [
    RATELIMIT,
    RATELIMIT_POLICY,
    LEGACY_LIMIT,
    LEGACY_REMAINING,
    LEGACY_RESET,
    header::RETRY_AFTER,
    // A trailers-only response, which a gRPC-Web client reads as headers.
    HeaderName::from_static("grpc-status"),
    HeaderName::from_static("grpc-message"),
    HeaderName::from_static("grpc-status-details-bin"),
    PUSHBACK,
];

/// The wait that a gRPC server demands.
pub(in crate::response) const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Appends the names of the rate limit headers in the response to `Access-Control-Expose-Headers`.
pub(in crate::response) fn expose(headers: &mut HeaderMap) {
    let mut list = String::with_capacity(96);
    for name in EXPOSED.iter().filter(|name| headers.contains_key(*name)) {
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
