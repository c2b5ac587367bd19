//! The trait between the layer and responses.

use std::time::Duration;

use super::Rejection;
use crate::decision::{Decision, Detail};
use crate::observe::Observers;

/// Turns decisions into responses.
///
/// A closure `Fn(Request, Rejection) -> Response` is a responder that does not change the responses of allowed
/// requests. With the feature `axum` the closure may return a `StatusCode`, or a tuple that begins with one. The layer
/// sends the response as it is: to a `HEAD` request the closure must return a response without a body.
///
/// No responder changes the error type of the service.
///
/// # Example
///
/// A responder for a custom protocol, whose answers carry the number of requests that remain.
///
/// ```
/// use tower_ratelimit::{Decision, Respond};
/// use tower_ratelimit::response::Rejection;
///
/// struct Answer {
///     text: String,
///     remaining: Option<u64>,
/// }
///
/// #[derive(Clone)]
/// struct AddRemaining;
///
/// impl<Request, E> Respond<Request, Answer, E> for AddRemaining {
///     type Response = Answer;
///     /// The part of the decision that the response needs.
///     type Context = Option<u64>;
///
///     fn on_allowed(&self, _request: &mut Request, decision: Option<&Decision>) -> Option<u64> {
///         decision?.remaining()
///     }
///
///     fn map_response(remaining: Option<u64>, answer: Answer) -> Answer {
///         Answer { remaining, ..answer }
///     }
///
///     fn on_rejected(&self, _request: Request, rejection: Rejection) -> Result<Answer, E> {
///         Ok(Answer { text: rejection.to_string(), remaining: Some(0) })
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a responder for a service that takes `{Request}` and returns `{Response}`",
    note = "`Http` is a responder for HTTP services whose response body implements `http_body::Body`, `Default` and \
            `From<Bytes>`; for other bodies use `.responder(Http::new().map_body())`, for gRPC \
            `.responder(Grpc::new())` (feature `tonic`), for services that are not HTTP `.responder(RejectWithError)` \
            or a closure",
    note = "a closure of `Http::render` takes `(&http::request::Parts, &Rejection)` and returns a `Response`; with the \
            feature `axum` also a `StatusCode`, or a tuple that begins with one",
    note = "`RejectWithError` needs an error type that implements `From<Rejection>`, which `{Error}` may not: add \
            `.map_err(BoxError::from)` between the layer and the service"
)]
pub trait Respond<Request, Response, Error> {
    /// The response of the rate limited service.
    type Response;
    /// The value that [`on_allowed`](Self::on_allowed) hands to [`map_response`](Self::map_response).
    ///
    /// The response future stores the context, so a small one is cheaper.
    type Context;

    /// Returns how many limits the decisions list for this responder.
    #[inline]
    fn detail(&self) -> Detail {
        Detail::MostRestrictive
    }

    /// Returns how long the client waits for the response, if the request states it.
    ///
    /// A request waits in a queue for at most this time, and at most for the layer's `max_wait`. The default is `None`;
    /// `Grpc` reads the header `grpc-timeout`.
    fn client_timeout(&self, request: &Request) -> Option<Duration> {
        let _ = request;
        None
    }

    /// Prepares a request before the layer forwards it, and returns the response's context.
    ///
    /// `decision` is `None` if no limit applies to the request.
    fn on_allowed(&self, request: &mut Request, decision: Option<&Decision>) -> Self::Context;

    /// Gives the context the layer's observers. The layer calls this only if it has observers.
    #[doc(hidden)]
    fn observe(context: &mut Self::Context, observers: &Observers) {
        let _ = (context, observers);
    }

    /// Converts the inner service's response to a forwarded request.
    fn map_response(context: Self::Context, response: Response) -> Self::Response;

    /// Answers a request that the layer does not forward.
    ///
    /// # Errors
    ///
    /// The responder may answer with an error.
    fn on_rejected(&self, request: Request, rejection: Rejection) -> Result<Self::Response, Error>;
}
