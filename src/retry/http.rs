use http::{HeaderMap, Method, Request, Response, StatusCode};

use super::fields::{limits, retry_after};
use super::hint::{ReadRetryHint, RetryHint};

/// Reads HTTP responses.
///
/// - After a 429, the client retries after `Retry-After` (RFC 9110, section 10.2.3): seconds, or a date. A date is
///   relative to the response's `Date` header if present, so that the clocks need not agree. Without a valid
///   `Retry-After`, the client retries when the exhausted limits have more available: by `RateLimit` in the spellings of
///   all drafts (draft-ietf-httpapi-ratelimit-headers), by `x-ratelimit-*` as GitHub and OpenAI send it, or by
///   `anthropic-ratelimit-*`. Without either, the client retries after the policy's backoff.
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
            StatusCode::TOO_MANY_REQUESTS => retry_after(headers)
                .or_else(|| limits(headers).exhausted_for())
                .map_or(RetryHint::Backoff, RetryHint::After),
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
