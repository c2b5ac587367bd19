/// Clones a request for a retry. A closure `Fn(&Request) -> Option<Request>` implements the trait.
#[diagnostic::on_unimplemented(
    message = "`RetryAfter` does not clone `{Request}`",
    note = "for a request that is not `Clone`, set a function: `RetryAfter::clone_with(reqwest::Request::try_clone)`"
)]
pub trait CloneRequest<Request> {
    /// Returns the clone, or `None` to disable retries of the request.
    fn clone_request(&self, request: &Request) -> Option<Request>;
}

impl<Request, F: Fn(&Request) -> Option<Request>> CloneRequest<Request> for F {
    fn clone_request(&self, request: &Request) -> Option<Request> {
        self(request)
    }
}

/// Clones requests with `Clone`. The default of [`RetryAfter`](super::RetryAfter).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByClone;

impl<Request: Clone> CloneRequest<Request> for ByClone {
    fn clone_request(&self, request: &Request) -> Option<Request> {
        Some(request.clone())
    }
}
