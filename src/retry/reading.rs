use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::fields::Statement;
use super::hint::RetryHint;

/// What a response says about the limits of its server: the retry policy and gates read the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// No rejection, and what remains.
    Served { remaining: Option<u64>, exhausted_for: Option<Duration> },
    /// The server did not process the request.
    Rejected(Option<Duration>),
    /// The same, and by its limits the server has more available within the second of `Retry-After`.
    TooFast(Duration),
    /// The server rejects requests, and may have processed this one.
    Unavailable(Duration),
}

impl Reading {
    pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        let statement = Statement::read(headers);
        let wait = statement.wait();
        match status {
            StatusCode::TOO_MANY_REQUESTS => match wait {
                Some(wait) if statement.is_brief(wait) => Self::TooFast(wait),
                _ => Self::Rejected(statement.rejected_for()),
            },
            // As GitHub sends.
            StatusCode::FORBIDDEN if wait.is_some() || statement.remaining == Some(0) => {
                Self::Rejected(statement.rejected_for())
            }
            StatusCode::SERVICE_UNAVAILABLE if wait.is_some() => Self::Unavailable(wait.unwrap_or_default()),
            _ => match grpc_hint(headers) {
                RetryHint::After(wait) => Self::Rejected(Some(wait)),
                RetryHint::Backoff => Self::Rejected(None),
                RetryHint::None => {
                    Self::Served { remaining: statement.remaining, exhausted_for: statement.exhausted_for }
                }
            },
        }
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
