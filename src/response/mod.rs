//! What a decision looks like from outside.
//!
//! | Responder | A refusal is | For |
//! |---|---|---|
//! | [`Http`] | 429 with `Retry-After`, rate limit fields and a problem body | servers whose response body is made from bytes (axum's is) |
//! | [`MapBody`] | the same, in a [`Body`] around the service's own | servers with any other body |
//! | `Grpc` | a gRPC status, with `RetryInfo` and `QuotaFailure` (feature `tonic`) | gRPC servers: tonic |
//! | `ByContentType` | the one or the other | servers that speak both on one port |
//! | [`RejectWithError`] | a [`Rejected`] error | clients, services that are not HTTP |
//! | a closure `Fn(Request, Rejection) -> Response` | what it returns | all else |

mod body;
#[cfg(feature = "tonic")]
mod by_content_type;
mod closure;
#[cfg(feature = "tonic")]
mod grpc;
mod headers;
mod http;
mod info;
mod map_body;
mod partition;
mod problem;
mod reject_with_error;
mod rejection;

pub use self::body::Body;
#[cfg(feature = "tonic")]
pub use self::by_content_type::ByContentType;
#[cfg(feature = "tonic")]
pub use self::grpc::Grpc;
pub use self::headers::{HttpContext, ResetFormat};
pub use self::http::Http;
pub use self::info::RateLimitInfo;
pub use self::map_body::MapBody;
pub use self::partition::{Partition, PartitionBy};
pub use self::problem::{Problem, Render};
pub use self::reject_with_error::{BoxError, RejectWithError, Rejected};
pub use self::rejection::Rejection;
use crate::decision::Decision;
use crate::observe::Observers;

/// Turns decisions into responses.
///
/// A closure `Fn(Request, Rejection) -> Response` is a responder that leaves what is let through as it is.
///
/// # Example
///
/// A responder for a protocol of one's own, whose answers tell how much is left.
///
/// ```
/// use tower_ratelimit::response::{RateLimitInfo, Rejection, Respond};
///
/// struct Answer {
///     text: String,
///     left: Option<u64>,
/// }
///
/// #[derive(Clone)]
/// struct TellLeft;
///
/// impl<Request, E> Respond<Request, Answer, E> for TellLeft {
///     type Response = Answer;
///     type Error = E;
///     /// What the answer will need to know of the decision.
///     type Context = Option<u64>;
///
///     fn admit(&self, _request: &mut Request, admission: RateLimitInfo) -> Option<u64> {
///         admission.decision()?.remaining()
///     }
///
///     fn finish(left: Option<u64>, answer: Answer) -> Answer {
///         Answer { left, ..answer }
///     }
///
///     fn refuse(&self, _request: Request, refusal: Rejection) -> Result<Answer, E> {
///         Ok(Answer { text: refusal.to_string(), left: Some(0) })
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't answer for a service that takes `{Request}` and returns `{Response}`",
    note = "`Http` answers for HTTP services whose response body is made from `Bytes`; for other bodies use \
            `.responder(Http::new().map_body())`, for gRPC `.responder(Grpc::new())` (feature `tonic`), for services \
            that are not HTTP `.responder(RejectWithError)` or a closure"
)]
pub trait Respond<Request, Response, Error> {
    /// What the limited service answers with.
    type Response;
    /// What the limited service fails with.
    type Error: From<Error>;
    /// What [`finish`](Self::finish) needs to know of an admission. It travels with the request's future.
    type Context;

    /// Whether decisions should list every limit, as header fields do.
    fn wants_all_limits(&self) -> bool {
        false
    }

    /// Whether decisions should list every limit if they refuse, to name all that do.
    fn wants_all_denials(&self) -> bool {
        false
    }

    /// A request is about to be let through.
    fn admit(&self, request: &mut Request, admission: RateLimitInfo) -> Self::Context;

    /// As [`admit`](Self::admit), where the request stays as it is and a look at the decision is enough. It is asked first for
    /// what is let through at once, and `admit` only if it answers `None`, which is the default.
    ///
    /// It must come to the same as `admit`. It saves moving the decision, which takes a good part of the time that deciding does.
    #[inline]
    fn admit_ref(&self, request: &Request, decision: &Decision) -> Option<Self::Context> {
        let _ = (request, decision);
        None
    }

    /// Lets `mark` emit warnings in [`finish`](Self::finish). The layer calls this only if it has observers.
    #[doc(hidden)]
    fn observe(mark: &mut Self::Context, observers: &Observers) {
        let _ = (mark, observers);
    }

    /// The service has answered a request that was let through.
    fn finish(mark: Self::Context, response: Response) -> Self::Response;

    /// A request is not let through.
    ///
    /// # Errors
    ///
    /// Where the answer is an error.
    fn refuse(&self, request: Request, refusal: Rejection) -> Result<Self::Response, Self::Error>;
}
