use http::{HeaderMap, Method, Request, Response, StatusCode};

use super::gate::{GateSignal, ReadGateSignal};
use super::hint::{ReadRetryHint, RetryHint};
use super::reading::Reading;

/// Reads HTTP responses, for [`RetryAfter`](super::RetryAfter) and for [`GateLayer`](super::gate::GateLayer).
///
/// | Response | Meaning |
/// |---|---|
/// | 429 | rejected |
/// | 403 with `Retry-After`, or with a limit of which nothing remains | rejected, as GitHub does |
/// | 503 with `Retry-After` | rejected, but maybe processed: retried if the method is idempotent |
/// | `grpc-status` of a rejection, as `GrpcHint` reads it | rejected (feature `tonic`) |
/// | any other | served: final for the policy |
///
/// The time of a rejection comes from `Retry-After` or from a provider's field for rejections. Otherwise it is the time
/// until the exhausted limits have more available, by `RateLimit` in the spellings of all drafts
/// (draft-ietf-httpapi-ratelimit-headers) or by one of the [fields of providers](super#fields-of-providers). If a field
/// stands twice, the exhausted limit counts. Fields of responses that a cache has stored (`Age`) are ignored.
///
/// | Form of a time | Example |
/// |---|---|
/// | a number of seconds, or of milliseconds where the field's name says so | `299.997` |
/// | seconds, milliseconds or microseconds since 1970, told apart by their size | `1700000060000` |
/// | a span with units | `2m59.56s`, `PT6M` |
/// | a date of HTTP, of RFC 3339 or of JavaScript | `2023-11-14T22:14:20Z` |
///
/// Dates and times since 1970 are relative to the response's `Date`, so that the clocks need not agree. Without a time,
/// or with one that is past, the policy backs off, and the gate closes for a second. Malformed fields are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpHint;

impl HttpHint {
    /// Reads the parts of a response, for closures and custom retry loops.
    ///
    /// See [`RetryAfter::clone_with`](super::RetryAfter::clone_with) for an example. Without the request's `method`,
    /// a 503 is final.
    pub fn read_response(self, method: Option<&Method>, status: StatusCode, headers: &HeaderMap) -> RetryHint {
        match Reading::of(status, headers) {
            Reading::Rejected(Some(wait)) | Reading::TooFast(wait) => RetryHint::After(wait),
            Reading::Rejected(None) => RetryHint::Backoff,
            Reading::Unavailable(wait) if method.is_some_and(Method::is_idempotent) => RetryHint::After(wait),
            Reading::Unavailable(_) | Reading::Served { .. } => RetryHint::None,
        }
    }

    /// Reads the parts of a response for a gate, for closures: see [`gate`](super::gate).
    pub fn gate_signal(self, status: StatusCode, headers: &HeaderMap) -> GateSignal {
        match Reading::of(status, headers) {
            Reading::Rejected(wait) => GateSignal::Rejected(wait),
            Reading::TooFast(_) => GateSignal::TooFast,
            Reading::Unavailable(wait) => GateSignal::Rejected(Some(wait)),
            Reading::Served { exhausted_for: Some(time), .. } => GateSignal::ServedLast(time),
            Reading::Served { remaining, .. } => GateSignal::Served { remaining },
        }
    }
}

impl<A, B, E> ReadRetryHint<Request<A>, Response<B>, E> for HttpHint {
    fn read(&self, request: &Request<A>, result: Result<&Response<B>, &E>) -> RetryHint {
        let Ok(response) = result else { return RetryHint::None };
        self.read_response(Some(request.method()), response.status(), response.headers())
    }
}

impl<B> ReadGateSignal<Response<B>> for HttpHint {
    fn read(&self, response: &Response<B>) -> GateSignal {
        self.gate_signal(response.status(), response.headers())
    }
}
