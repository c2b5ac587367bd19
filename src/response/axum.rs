use std::convert::Infallible;
use std::error::Error;
use std::fmt;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use super::http::Http;
use super::info::RateLimitInfo;
use super::problem::Problem;
use super::rejection::Rejection;
use crate::observe::Observers;

/// The response of [`Http::new`], for handlers that call a limiter themselves.
///
/// ```
/// use axum::extract::State;
/// use tower_ratelimit::response::Rejection;
/// use tower_ratelimit::{AcquireOptions, Gcra, Memory};
///
/// async fn handler(State(limiter): State<Memory<str, Gcra>>) -> Result<&'static str, Rejection> {
///     let decision = limiter.check("reports", AcquireOptions::cost(5));
///     if !decision.is_allowed() {
///         return Err(Rejection::OverLimit(decision));
///     }
///     Ok("the report")
/// }
/// # let _: axum::Router<Memory<str, Gcra>> = axum::Router::new().route("/", axum::routing::get(handler));
/// ```
impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let response = Problem.render(&self);
        Http::new().finish_rejected(response, self)
    }
}

/// The rejection of a handler with an argument [`RateLimitInfo`] if no layer has inserted it: status 500.
///
/// The client receives no reason. In debug builds the reason is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingRateLimitInfo;

impl fmt::Display for MissingRateLimitInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no RateLimitInfo in the request: no RateLimitLayer with a responder that inserts it is around the handler; \
             add `.responder(Http::new().headers(Headers::new().request_extension(true)))` to the layer, or use \
             `Option<RateLimitInfo>`",
        )
    }
}

impl Error for MissingRateLimitInfo {}

impl IntoResponse for MissingRateLimitInfo {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, "server misconfigured").into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for RateLimitInfo {
    type Rejection = MissingRateLimitInfo;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, MissingRateLimitInfo> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            Observers::default().warn(&MissingRateLimitInfo.to_string());
            MissingRateLimitInfo
        })
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for RateLimitInfo {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}
