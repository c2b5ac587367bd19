use std::fmt::Write;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};

use super::closure::IntoAnswer;
use super::rejection::Rejection;
use crate::decision::{BlockReason, Decision};

/// Renders the status and the body of a rejection. [`Http`](super::Http) adds the headers.
///
/// [`Problem`] implements this trait, and so does a closure `Fn(&Parts, &Rejection) -> Response<Body>`. With the
/// feature `axum` the closure may return a tuple that begins with a status.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not render rejections as `Response<{B}>`",
    note = "use `Problem`, whose body must implement `From<Bytes>`, or a closure `|request: &http::request::Parts, \
            rejection: &Rejection|` that returns a `Response<{B}>`"
)]
pub trait Render<B> {
    /// Returns the response to the rejected `request`.
    fn render(&self, request: &Parts, rejection: &Rejection) -> Response<B>;
}

impl<B, F, Answer> Render<B> for F
where
    F: Fn(&Parts, &Rejection) -> Answer,
    Answer: IntoAnswer<Response<B>>,
{
    fn render(&self, request: &Parts, rejection: &Rejection) -> Response<B> {
        self(request, rejection).into_answer()
    }
}

/// A problem body (RFC 9457): `application/problem+json`.
///
/// | Rejection | Status |
/// |---|---|
/// | over the limit | 429, type `quota-exceeded`, with the names of the limits that deny in `violated-policies` |
/// | the key is blocked | 429, type `quota-exceeded` as above, or `abnormal-usage-detected` if by an [escalation](crate::limiter::Escalating); `block-reason` is `administrator` or `escalation` |
/// | the limiter is unavailable, and the policy is to deny | 503, type `temporary-reduced-capacity` |
/// | the request has no key | 400 |
/// | the handler's hold repeats the id of another one: [`is_repeat`](Decision::is_repeat), [`is_already_settled`](crate::Error::is_already_settled), [`is_id_conflict`](crate::Error::is_id_conflict) | 409 |
/// | the server is misconfigured | 500, without details |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Problem;

impl Problem {
    /// Returns the response to a rejected request, for closures that render some rejections themselves.
    pub fn render<B: From<Bytes>>(&self, rejection: &Rejection) -> Response<B> {
        let status = status(rejection);
        let mut response = Response::new(B::from(body(rejection, status).into()));
        *response.status_mut() = status;
        let json = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}

impl<B: From<Bytes>> Render<B> for Problem {
    fn render(&self, _request: &Parts, rejection: &Rejection) -> Response<B> {
        self.render(rejection)
    }
}

/// Returns the HTTP status of a rejection: 400 or above.
pub(super) fn status(rejection: &Rejection) -> StatusCode {
    match rejection {
        _ if rejection.is_misconfigured() => StatusCode::INTERNAL_SERVER_ERROR,
        Rejection::MissingKey(_) => StatusCode::BAD_REQUEST,
        _ if rejection.repeats_id() => StatusCode::CONFLICT,
        _ if rejection.is_over_limit() => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn body(rejection: &Rejection, status: StatusCode) -> String {
    let block_reason = rejection.decision().and_then(Decision::block_reason);
    let (kind, title) = match status {
        StatusCode::TOO_MANY_REQUESTS if block_reason == Some(BlockReason::Escalation) => {
            ("https://iana.org/assignments/http-problem-types#abnormal-usage-detected", "Abnormal usage detected")
        }
        StatusCode::TOO_MANY_REQUESTS => {
            ("https://iana.org/assignments/http-problem-types#quota-exceeded", "Request quota exceeded")
        }
        StatusCode::SERVICE_UNAVAILABLE => (
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "Temporarily reduced capacity",
        ),
        status => ("about:blank", status.canonical_reason().unwrap_or_default()),
    };
    let mut json = String::with_capacity(256);
    for part in [r#"{"type":""#, kind, r#"","title":""#, title, r#"","status":"#, status.as_str(), r#","detail":"#] {
        json.push_str(part);
    }
    push_string(&mut json, &rejection.to_text());
    if let Some(decision) = rejection.decision().filter(|_| rejection.is_over_limit()) {
        push_violated(&mut json, decision);
    }
    if let Some(reason) = block_reason {
        json.push_str(r#","block-reason":"#);
        push_string(&mut json, reason.name());
    }
    json.push('}');
    json
}

fn push_violated(json: &mut String, decision: &Decision) {
    json.push_str(r#","violated-policies":["#);
    let violated = decision.limits().iter().filter(|limit| !limit.is_shadow() && !limit.verdict().is_allowed());
    for (index, limit) in violated.enumerate() {
        if index > 0 {
            json.push(',');
        }
        push_string(json, limit.name());
    }
    json.push(']');
}

/// Appends a JSON string (RFC 8259, section 7).
fn push_string(json: &mut String, text: &str) {
    json.push('"');
    let mut rest = text;
    while let Some(index) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
        json.push_str(&rest[..index]);
        match rest.as_bytes()[index] {
            escaped @ (b'"' | b'\\') => json.extend(['\\', char::from(escaped)]),
            // Writing to a `String` does not fail.
            control => drop(write!(json, "\\u{control:04x}")),
        }
        rest = &rest[index + 1..];
    }
    json.push_str(rest);
    json.push('"');
}
