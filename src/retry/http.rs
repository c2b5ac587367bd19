use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, header};
use sfv::{BareItem, List, ListEntry, Parser};

use super::hint::{ReadRetryHint, RetryHint};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Reads HTTP answers.
///
/// - A 429 says to come back after `Retry-After` (RFC 9110, section 10.2.3): in so many seconds, or at a date, which is
///   reckoned from the answer's own `Date` if it has one, so that the clocks need not agree. If there is none that can
///   be read, after the longest `t` of the quotas in `RateLimit` of which nothing remains
///   (draft-ietf-httpapi-ratelimit-headers-10). Else it may be asked again later.
/// - A 503 is asked again only if it says when, and the request's method is idempotent: it may have been acted upon.
/// - With the feature `tonic`, an answer that has a `grpc-status` is read as [`GrpcHint`](super::GrpcHint) does.
/// - All other answers are final, and so are errors.
///
/// What can't be read is as if it weren't there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpHint;

impl HttpHint {
    /// Reads a response of any type, for closures and for loops of your own: see
    /// [`RetryAfter::clone_with`](super::RetryAfter::clone_with).
    ///
    /// `method` is the request's. Without a method, a 503 is final.
    #[must_use]
    pub fn read_response(self, method: Option<&Method>, status: StatusCode, headers: &HeaderMap) -> RetryHint {
        match status {
            StatusCode::TOO_MANY_REQUESTS => {
                retry_after(headers).or_else(|| next_token_after(headers)).map_or(RetryHint::Backoff, RetryHint::After)
            }
            StatusCode::SERVICE_UNAVAILABLE if method.is_some_and(Method::is_idempotent) => {
                retry_after(headers).map_or(RetryHint::None, RetryHint::After)
            }
            _ => grpc(headers),
        }
    }
}

impl<A, B, E> ReadRetryHint<Request<A>, Response<B>, E> for HttpHint {
    fn read(&self, request: &Request<A>, answer: Result<&Response<B>, &E>) -> RetryHint {
        let Ok(response) = answer else { return RetryHint::None };
        self.read_response(Some(request.method()), response.status(), response.headers())
    }
}

#[cfg(feature = "tonic")]
fn grpc(headers: &HeaderMap) -> RetryHint {
    super::grpc::hint_from_headers(headers)
}

#[cfg(not(feature = "tonic"))]
fn grpc(_: &HeaderMap) -> RetryHint {
    RetryHint::None
}

/// Of several lines, which there should not be, the longest.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(header::RETRY_AFTER).iter().filter_map(|line| line.to_str().ok());
    lines.filter_map(|line| delta(line.trim()).or_else(|| until(line.trim(), headers))).max()
}

/// Digits alone. What is too large for a number is as good as for ever.
fn delta(text: &str) -> Option<Duration> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(text.parse().unwrap_or(u64::MAX)))
}

/// Until a date; nothing, if that is past.
fn until(text: &str, headers: &HeaderMap) -> Option<Duration> {
    let date = httpdate::parse_http_date(text).ok()?;
    let sent = headers.get(header::DATE).and_then(|line| httpdate::parse_http_date(line.to_str().ok()?).ok());
    let now = sent.unwrap_or_else(SystemTime::now);
    Some(date.duration_since(now).unwrap_or_default())
}

/// The longest time until there is more of what is used up.
fn next_token_after(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(RATELIMIT).iter().map(|line| line.to_str().ok());
    let text = lines.collect::<Option<Vec<_>>>()?.join(", ");
    let list: List = Parser::new(&text).parse().ok()?;
    let used_up = list.iter().filter_map(|entry| {
        let ListEntry::Item(item) = entry else { return None };
        let number = |key| item.params.get(key).and_then(BareItem::as_integer).map(i64::from);
        let seconds = number("t").filter(|_| number("r").is_some_and(|remaining| remaining <= 0))?;
        Some(Duration::from_secs(u64::try_from(seconds).ok()?))
    });
    used_up.max()
}
