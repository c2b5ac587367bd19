use axum::response::{IntoResponse, Response};

use super::http::Http;
use super::problem::Problem;
use super::rejection::Rejection;

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
