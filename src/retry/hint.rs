use std::time::Duration;

/// What an answer says about asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "a user's own reader makes them")]
pub enum RetryHint {
    /// Nothing: it is what was asked for, or a failure that asking again does not mend.
    None,
    /// Asking again helps, not before this time has passed.
    After(Duration),
    /// Asking again may help, and it is not said when.
    Backoff,
}

/// Reads off an answer whether to ask again, and when.
///
/// A closure `Fn(&Request, Result<&Response, &Error>) -> RetryHint` reads.
pub trait ReadRetryHint<Request, Response, Error> {
    /// What the answer to a request says.
    fn read(&self, request: &Request, answer: Result<&Response, &Error>) -> RetryHint;
}

impl<Request, Response, Error, F> ReadRetryHint<Request, Response, Error> for F
where
    F: Fn(&Request, Result<&Response, &Error>) -> RetryHint,
{
    fn read(&self, request: &Request, answer: Result<&Response, &Error>) -> RetryHint {
        self(request, answer)
    }
}
