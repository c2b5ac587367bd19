use std::fmt::Write;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};

use super::rejection::Rejection;
use crate::decision::Decision;

/// Renders a refusal's status and body. [`Http`](super::Http) adds the header fields.
///
/// A closure `Fn(&Parts, &Rejection) -> Response<Body>` renders.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't render refusals as `Response<{B}>`",
    note = "a renderer is a type that implements `Render<{B}>`, or a closure `|request: &http::request::Parts, \
            refusal: &Rejection|` that returns a `Response<{B}>`"
)]
pub trait Render<B> {
    /// Returns the response to `request`, which was refused.
    fn render(&self, request: &Parts, refusal: &Rejection) -> Response<B>;
}

impl<B, F: Fn(&Parts, &Rejection) -> Response<B>> Render<B> for F {
    fn render(&self, request: &Parts, refusal: &Rejection) -> Response<B> {
        self(request, refusal)
    }
}

/// A problem body (RFC 9457): `application/problem+json`.
///
/// | Rejection | Status |
/// |---|---|
/// | over a limit | 429, type `quota-exceeded`, with the names of the limits that refused in `violated-policies` |
/// | the store could not answer, and the policy is to refuse | 503 |
/// | the request lacks its key | 400, or 500 if the server is at fault |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Problem;

impl<B: From<Bytes>> Render<B> for Problem {
    fn render(&self, _request: &Parts, refusal: &Rejection) -> Response<B> {
        let status = status(refusal);
        let mut response = Response::new(B::from(body(refusal, status).into()));
        *response.status_mut() = status;
        let json = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}

/// The HTTP status of a refusal: 400 or above.
pub(super) fn status(refusal: &Rejection) -> StatusCode {
    match refusal {
        Rejection::MissingKey(missing) if missing.is_server_error() => StatusCode::INTERNAL_SERVER_ERROR,
        Rejection::MissingKey(_) => StatusCode::BAD_REQUEST,
        _ if refusal.is_over_limit() => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn body(refusal: &Rejection, status: StatusCode) -> String {
    let (kind, title) = match status {
        StatusCode::TOO_MANY_REQUESTS => {
            ("https://iana.org/assignments/http-problem-types#quota-exceeded", "Request quota exceeded")
        }
        status => ("about:blank", status.canonical_reason().unwrap_or_default()),
    };
    let mut json = String::with_capacity(256);
    for part in [r#"{"type":""#, kind, r#"","title":""#, title, r#"","status":"#, status.as_str(), r#","detail":"#] {
        json.push_str(part);
    }
    push_string(&mut json, &refusal.to_text());
    if let Some(decision) = refusal.decision().filter(|_| refusal.is_over_limit()) {
        push_violated(&mut json, decision);
    }
    json.push('}');
    json
}

fn push_violated(json: &mut String, decision: &Decision) {
    json.push_str(r#","violated-policies":["#);
    let violated =
        decision.limits().iter().filter(|standing| !standing.is_shadow() && !standing.verdict().is_allowed());
    for (index, standing) in violated.enumerate() {
        if index > 0 {
            json.push(',');
        }
        push_string(json, standing.name());
    }
    json.push(']');
}

/// A JSON string (RFC 8259, section 7).
fn push_string(json: &mut String, text: &str) {
    json.push('"');
    let mut rest = text;
    while let Some(index) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
        json.push_str(&rest[..index]);
        match rest.as_bytes()[index] {
            escaped @ (b'"' | b'\\') => json.extend(['\\', char::from(escaped)]),
            // Writing to a `String` can't fail.
            control => drop(write!(json, "\\u{control:04x}")),
        }
        rest = &rest[index + 1..];
    }
    json.push_str(rest);
    json.push('"');
}
