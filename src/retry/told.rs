use std::time::Duration;

/// What an answer says about asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "a user's own reader makes them")]
pub enum Told {
    /// Nothing: it is what was asked for, or a failure that asking again does not mend.
    Nothing,
    /// Asking again helps, not before this time has passed.
    After(Duration),
    /// Asking again may help, and it is not said when.
    Later,
}

/// Reads off an answer whether to ask again, and when.
///
/// A closure `Fn(&Request, Result<&Response, &Error>) -> Told` reads.
pub trait ReadAnswer<Request, Response, Error> {
    /// What the answer to a request says.
    fn read(&self, request: &Request, answer: Result<&Response, &Error>) -> Told;
}

impl<Request, Response, Error, F> ReadAnswer<Request, Response, Error> for F
where
    F: Fn(&Request, Result<&Response, &Error>) -> Told,
{
    fn read(&self, request: &Request, answer: Result<&Response, &Error>) -> Told {
        self(request, answer)
    }
}
