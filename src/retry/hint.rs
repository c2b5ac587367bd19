use std::time::Duration;

/// The result of reading a response: whether to retry, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "custom readers create values")]
pub enum RetryHint {
    /// Do not retry: the response is a success, or a failure that a retry does not solve.
    None,
    /// Retry after this time, not before.
    After(Duration),
    /// Retry after the policy's backoff, because the response contains no time.
    Backoff,
}

/// Reads from a response whether to retry, and when.
///
/// A closure `Fn(&Request, Result<&Response, &Error>) -> RetryHint` implements the trait.
pub trait ReadRetryHint<Request, Response, Error> {
    /// Reads the result of a request.
    fn read(&self, request: &Request, result: Result<&Response, &Error>) -> RetryHint;
}

impl<Request, Response, Error, F> ReadRetryHint<Request, Response, Error> for F
where
    F: Fn(&Request, Result<&Response, &Error>) -> RetryHint,
{
    fn read(&self, request: &Request, result: Result<&Response, &Error>) -> RetryHint {
        self(request, result)
    }
}
