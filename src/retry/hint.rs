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

/// Reads responses with a closure, and retries no errors: see
/// [`RetryAfter::read_responses`](super::RetryAfter::read_responses).
#[derive(Clone, Copy, Debug)]
pub struct ResponsesOnly<F>(pub(super) F);

impl<Request, Response, Error, F> ReadRetryHint<Request, Response, Error> for ResponsesOnly<F>
where
    F: Fn(&Request, &Response) -> RetryHint,
{
    fn read(&self, request: &Request, result: Result<&Response, &Error>) -> RetryHint {
        result.map_or(RetryHint::None, |response| (self.0)(request, response))
    }
}

impl<Request, Response, Error, F> ReadRetryHint<Request, Response, Error> for F
where
    F: Fn(&Request, Result<&Response, &Error>) -> RetryHint,
{
    fn read(&self, request: &Request, result: Result<&Response, &Error>) -> RetryHint {
        self(request, result)
    }
}
