/// Clones a request, so that the request can be sent again.
///
/// A closure `Fn(&Request) -> Option<Request>` clones.
#[diagnostic::on_unimplemented(
    message = "`RetryAfter` can't clone `{Request}`",
    note = "for a request that is not `Clone`, set a function: `RetryAfter::clone_with(reqwest::Request::try_clone)`"
)]
pub trait CloneRequest<Request> {
    /// Returns the clone, or `None` if the request is not to be sent again.
    fn clone_request(&self, request: &Request) -> Option<Request>;
}

impl<Request, F: Fn(&Request) -> Option<Request>> CloneRequest<Request> for F {
    fn clone_request(&self, request: &Request) -> Option<Request> {
        self(request)
    }
}

/// Clones requests by their own `Clone`. The default of [`RetryAfter`](super::RetryAfter).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByClone;

impl<Request: Clone> CloneRequest<Request> for ByClone {
    fn clone_request(&self, request: &Request) -> Option<Request> {
        Some(request.clone())
    }
}
