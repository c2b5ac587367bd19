use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::refusal::Refusal;
use crate::decision::Decision;

/// Renders a refusal's status and body. [`Http`](super::Http) adds the header fields.
///
/// A closure `Fn(&Refusal) -> Response<Body>` renders.
pub trait Render<B> {
    /// The response to a refusal.
    fn render(&self, refusal: &Refusal) -> Response<B>;
}

impl<B, F: Fn(&Refusal) -> Response<B>> Render<B> for F {
    fn render(&self, refusal: &Refusal) -> Response<B> {
        self(refusal)
    }
}

/// A problem body (RFC 9457): `application/problem+json`.
///
/// | Refusal | Status |
/// |---|---|
/// | over a limit | 429, type `quota-exceeded`, with the names of the limits that refused in `violated-policies` |
/// | the store could not answer, and the policy is to refuse | 503 |
/// | the request lacks its key | 400, or 500 if the server is at fault |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Problem;

impl<B: From<Bytes>> Render<B> for Problem {
    fn render(&self, refusal: &Refusal) -> Response<B> {
        let status = status(refusal);
        let mut response = Response::new(B::from(body(refusal, status).into()));
        *response.status_mut() = status;
        let json = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}

fn status(refusal: &Refusal) -> StatusCode {
    match refusal {
        Refusal::MissingKey(missing) if missing.is_from_server() => StatusCode::INTERNAL_SERVER_ERROR,
        Refusal::MissingKey(_) => StatusCode::BAD_REQUEST,
        _ if refusal.is_over_limit() => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn body(refusal: &Refusal, status: StatusCode) -> String {
    let (kind, title) = match status {
        StatusCode::TOO_MANY_REQUESTS => {
            ("https://iana.org/assignments/http-problem-types#quota-exceeded", "Request quota exceeded")
        }
        status => ("about:blank", status.canonical_reason().unwrap_or_default()),
    };
    let mut json = String::with_capacity(256);
    let code = status.as_u16();
    // Writing to a `String` can't fail.
    let _ = write!(json, r#"{{"type":"{kind}","title":"{title}","status":{code},"detail":"#);
    push_string(&mut json, &refusal.to_string());
    if let Some(decision) = refusal.decision().filter(|_| refusal.is_over_limit()) {
        push_violated(&mut json, decision);
    }
    json.push('}');
    json
}

fn push_violated(json: &mut String, decision: &Decision) {
    json.push_str(r#","violated-policies":["#);
    let violated =
        decision.standings().iter().filter(|standing| !standing.is_shadow() && !standing.verdict().is_allowed());
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
    for char in text.chars() {
        match char {
            '"' | '\\' => json.extend(['\\', char]),
            '\0'..='\x1f' => {
                let _ = write!(json, "\\u{:04x}", u32::from(char));
            }
            char => json.push(char),
        }
    }
    json.push('"');
}
