use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, header};
use sfv::{BareItem, List, ListEntry, Parser};

use super::hint::{ReadRetryHint, RetryHint};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Reads HTTP responses.
///
/// - After a 429, the client retries after `Retry-After` (RFC 9110, section 10.2.3): seconds, or a date. A date is
///   relative to the response's `Date` header if present, so that the clocks need not agree. Without a valid
///   `Retry-After`, the client retries after the longest `t` of the items in `RateLimit` with `r=0`
///   (draft-ietf-httpapi-ratelimit-headers-10 and -11). Without either, the client retries after the policy's backoff.
/// - After a 503, the client retries only if there is a `Retry-After` and the request's method is idempotent, because
///   the server may have processed the request.
/// - With the feature `tonic`, a response with a `grpc-status` is read as `GrpcHint` reads it.
/// - All other responses, and all errors, are final.
///
/// Malformed headers are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpHint;

impl HttpHint {
    /// Reads the parts of a response, for closures and custom retry loops.
    ///
    /// See [`RetryAfter::clone_with`](super::RetryAfter::clone_with) for an example. Without the request's `method`,
    /// a 503 is final.
    #[must_use]
    pub fn read_response(self, method: Option<&Method>, status: StatusCode, headers: &HeaderMap) -> RetryHint {
        match status {
            StatusCode::TOO_MANY_REQUESTS => {
                retry_after(headers).or_else(|| next_token_after(headers)).map_or(RetryHint::Backoff, RetryHint::After)
            }
            StatusCode::SERVICE_UNAVAILABLE if method.is_some_and(Method::is_idempotent) => {
                retry_after(headers).map_or(RetryHint::None, RetryHint::After)
            }
            _ => grpc_hint(headers),
        }
    }
}

impl<A, B, E> ReadRetryHint<Request<A>, Response<B>, E> for HttpHint {
    fn read(&self, request: &Request<A>, result: Result<&Response<B>, &E>) -> RetryHint {
        let Ok(response) = result else { return RetryHint::None };
        self.read_response(Some(request.method()), response.status(), response.headers())
    }
}

#[cfg(feature = "tonic")]
fn grpc_hint(headers: &HeaderMap) -> RetryHint {
    super::grpc::hint_from_headers(headers)
}

#[cfg(not(feature = "tonic"))]
fn grpc_hint(_: &HeaderMap) -> RetryHint {
    RetryHint::None
}

/// Returns the longest `Retry-After`, if the header is repeated.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(header::RETRY_AFTER).iter().filter_map(|line| line.to_str().ok());
    lines.filter_map(|line| delta_seconds(line.trim()).or_else(|| time_until(line.trim(), headers))).max()
}

/// Parses digits only. A number that overflows is the maximum.
fn delta_seconds(text: &str) -> Option<Duration> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(text.parse().unwrap_or(u64::MAX)))
}

/// Returns the time until a date, or zero if the date is past.
fn time_until(text: &str, headers: &HeaderMap) -> Option<Duration> {
    let date = httpdate::parse_http_date(text).ok()?;
    let sent = headers.get(header::DATE).and_then(|line| httpdate::parse_http_date(line.to_str().ok()?).ok());
    let now = sent.unwrap_or_else(SystemTime::now);
    Some(date.duration_since(now).unwrap_or_default())
}

/// Returns the longest time until an exhausted limit has more available.
fn next_token_after(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(RATELIMIT).iter().map(|line| line.to_str().ok());
    let text = lines.collect::<Option<Vec<_>>>()?.join(", ");
    let list: List = Parser::new(&text).parse().ok()?;
    let exhausted = list.iter().filter_map(|entry| {
        let ListEntry::Item(item) = entry else { return None };
        let number = |key| item.params.get(key).and_then(BareItem::as_integer).map(i64::from);
        let seconds = number("t").filter(|_| number("r").is_some_and(|remaining| remaining <= 0))?;
        Some(Duration::from_secs(u64::try_from(seconds).ok()?))
    });
    exhausted.max()
}
