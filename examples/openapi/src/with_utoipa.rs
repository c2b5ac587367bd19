//! With utoipa: name [`Rejected`] in the `responses` of each operation behind the layer.

use utoipa::{IntoResponses, OpenApi, ToSchema};

/// A problem (RFC 9457).
#[derive(ToSchema)]
#[schema(as = Problem)]
#[allow(dead_code, reason = "documents the body, which the layer writes")]
struct Problem {
    /// The kind of the problem.
    #[schema(rename = "type", example = "https://iana.org/assignments/http-problem-types#quota-exceeded")]
    kind: String,
    title: String,
    status: u16,
    detail: Option<String>,
    /// The names of the limits that reject the request.
    #[schema(rename = "violated-policies")]
    violated_policies: Option<Vec<String>>,
    /// Why the client is blocked.
    #[schema(rename = "block-reason")]
    block_reason: Option<String>,
}

/// What the layer answers in place of the handler.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "documents responses, which the layer writes")]
enum Rejected {
    /// Too many requests. Wait for `Retry-After`; without the field, no retry succeeds.
    #[response(status = 429, content_type = "application/problem+json", headers(
        ("retry-after" = u64, description = "Seconds until a retry succeeds."),
        ("ratelimit" = String, description = "Per limit: what remains (`r`), and the seconds until more is available (`t`)."),
        ("ratelimit-policy" = String, description = "Per limit: the quota (`q`), and its window in seconds (`w`)."),
        ("cache-control" = String, description = "`no-store`"),
    ))]
    OverLimit(#[to_schema] Problem),
    /// The request does not say who sends it.
    #[response(status = 400, content_type = "application/problem+json")]
    NoKey(#[to_schema] Problem),
    /// The limiter cannot decide.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(#[to_schema] Problem),
}

/// Creates an order.
#[utoipa::path(post, path = "/orders", responses((status = 200, description = "Created.", body = String, content_type = "text/plain"), Rejected))]
#[allow(dead_code, reason = "documents the handler")]
fn order() {}

#[derive(OpenApi)]
#[openapi(paths(order))]
struct Document;

pub(crate) fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}
