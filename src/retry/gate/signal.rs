use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};

use crate::retry::fields::{limits, retry_after};

/// What a response says about the limits of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GateSignal {
    /// The server processed the request.
    Served {
        /// The number of further requests that the server would process now, if it states one.
        remaining: Option<u64>,
    },
    /// The server processed the request, and has nothing more available for this time.
    ServedLast(Duration),
    /// The server rejected the request for this time, or for an unknown time.
    Rejected(Option<Duration>),
}

/// Reads from a response what it says about the limits of its server.
///
/// A closure `Fn(&Response) -> GateSignal` implements the trait.
pub trait ReadGateSignal<Response> {
    /// Reads a response.
    fn read(&self, response: &Response) -> GateSignal;
}

impl<Response, F: Fn(&Response) -> GateSignal> ReadGateSignal<Response> for F {
    fn read(&self, response: &Response) -> GateSignal {
        self(response)
    }
}

/// Reads HTTP responses.
///
/// - A 429 is a rejection, and so is a 503 with `Retry-After`, and a 403 with `Retry-After` or an exhausted limit (as
///   GitHub sends). The time is `Retry-After`, otherwise the time until the exhausted limits have more available.
/// - A response of any other status is the last one for a time if it names an exhausted limit.
///
/// Exhausted limits are those of `RateLimit` with `r=0`, in the spellings of all drafts
/// (draft-ietf-httpapi-ratelimit-headers), and those of the fields `x-ratelimit-remaining` of GitHub,
/// `x-ratelimit-remaining-requests` and `-tokens` of OpenAI, and `anthropic-ratelimit-*-remaining`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpGateSignal;

impl HttpGateSignal {
    /// Reads the parts of a response, for closures.
    #[must_use]
    pub fn read_response(self, status: StatusCode, headers: &HeaderMap) -> GateSignal {
        let retry_after = retry_after(headers);
        let limits = limits(headers);
        let exhausted_for = limits.exhausted_for();
        let told = retry_after.or(exhausted_for);
        match status {
            StatusCode::TOO_MANY_REQUESTS => GateSignal::Rejected(told),
            StatusCode::SERVICE_UNAVAILABLE if retry_after.is_some() => GateSignal::Rejected(told),
            StatusCode::FORBIDDEN if told.is_some() => GateSignal::Rejected(told),
            _ => exhausted_for
                .map_or_else(|| GateSignal::Served { remaining: limits.remaining() }, GateSignal::ServedLast),
        }
    }
}

impl<B> ReadGateSignal<Response<B>> for HttpGateSignal {
    fn read(&self, response: &Response<B>) -> GateSignal {
        self.read_response(response.status(), response.headers())
    }
}
