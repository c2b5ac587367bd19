use std::collections::HashMap;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

use super::Respond;
use super::body::ResponseBody;
use super::grpc_timeout::grpc_timeout;
use super::headers::{Headers, HttpContext, legacy};
use super::problem;
use super::rejection::Rejection;
use crate::decision::{BlockReason, Decision, Detail, LimitStatus};
use crate::observe::Observers;

/// Answers in gRPC: a rejection is a *trailers-only* response.
///
/// Such a response has HTTP status 200, the gRPC status in its headers, and an empty body. (gRPC clients read an HTTP
/// status of 429 as `UNAVAILABLE`, which is the wrong code.)
///
/// | Rejection | Code | Details |
/// |---|---|---|
/// | over the limit | `RESOURCE_EXHAUSTED` (8) | `RetryInfo` with the exact wait, `QuotaFailure` with the limits that deny |
/// | the key is blocked | `RESOURCE_EXHAUSTED` (8) | as above, and `ErrorInfo` with the reason `BLOCKED`, or `ABNORMAL_USAGE_DETECTED` if by an [escalation](crate::limiter::Escalating) |
/// | the cost exceeds the limit | `RESOURCE_EXHAUSTED` (8) | `QuotaFailure` only: clients do not retry without `RetryInfo` |
/// | the limiter is unavailable, and the policy is to deny | `UNAVAILABLE` (14) | `RetryInfo` |
/// | the request has no key | `INVALID_ARGUMENT` (3) | |
/// | the handler's hold repeats the id of another one | `ALREADY_EXISTS` (6) | |
/// | the server is misconfigured | `INTERNAL` (13) | |
///
/// `grpc-retry-pushback-ms` states the same wait for clients that retry inside gRPC
/// (<https://github.com/grpc/proposal/blob/master/A6-client-retries.md>). It is -1, which forbids a retry, if the cost
/// exceeds the limit.
///
/// The layer charges a call when the call begins, whatever the number of its messages. A rejected call does not reach
/// its handler. Handlers find a [`RateLimitInfo`](crate::RateLimitInfo) in the request's extensions if
/// [`Headers::request_extension`] is on. It is off by default.
///
/// A rejection carries `cache-control: no-store`. A request that is not a gRPC call (a `POST` with the content type
/// of gRPC or gRPC-Web) is rejected with the HTTP status that [`Http`](super::Http) uses, so that no client takes the
/// rejection for a page.
///
/// The layer works on a whole server, on one service, and on an intercepted service. The body of the rate limited
/// service is a [`ResponseBody`] around the inner service's body.
///
#[cfg_attr(not(doctest), doc = include_str!("tonic.md"))]
///
/// [`PeerIp`](crate::PeerIp) finds the peer's address of tonic 0.14 without further setup.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Grpc {
    pub(super) headers: Headers,
    details: bool,
}

impl Grpc {
    /// Creates a responder with `RetryInfo` and `QuotaFailure`.
    pub const fn new() -> Self {
        Self { headers: Headers::none(), details: true }
    }

    /// Sets whether rejections carry `RetryInfo` and `QuotaFailure` in `grpc-status-details-bin`.
    ///
    /// OpenTelemetry's exporters retry after `RESOURCE_EXHAUSTED` only if there is a `RetryInfo`.
    pub fn details(mut self, on: bool) -> Self {
        self.details = on;
        self
    }

    /// Sets the header fields that responses carry as metadata, and the extensions: see [`Headers`]. By default none.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Returns the gRPC status of a rejection, for custom responders, and for handlers that call a limiter themselves.
    pub fn status(&self, rejection: &Rejection) -> Status {
        self.status_after(rejection, self.headers.retry_after(rejection))
    }

    fn status_after(self, rejection: &Rejection, retry_after: Option<Duration>) -> Status {
        let code = code(rejection);
        if !self.details || matches!(rejection, Rejection::MissingKey(_)) || rejection.is_misconfigured() {
            return Status::new(code, rejection.to_text());
        }
        let mut details = ErrorDetails::new();
        if let Some(retry_after) = retry_after {
            details.set_retry_info(Some(retry_after));
        }
        if let Some(decision) = rejection.decision().filter(|_| rejection.is_over_limit()) {
            details.set_quota_failure(violations(decision));
        }
        if let Some(reason) = rejection.decision().and_then(Decision::block_reason) {
            let reason = if reason == BlockReason::Escalation { "ABNORMAL_USAGE_DETECTED" } else { "BLOCKED" };
            details.set_error_info(reason, "ratelimit", HashMap::new());
        }
        Status::with_error_details(code, rejection.to_text(), details)
    }

    pub(super) fn reject<B: Default>(self, answer_type: Option<HeaderValue>, rejection: Rejection) -> Response<B> {
        let retry_after = self.headers.retry_after(&rejection);
        let mut response = self.status_after(&rejection, retry_after).into_http();
        match answer_type {
            Some(content_type) => drop(response.headers_mut().insert(header::CONTENT_TYPE, content_type)),
            None => *response.status_mut() = problem::status(&rejection),
        }
        legacy::forbid_storing(response.headers_mut());
        if let Some(value) = pushback(&rejection, retry_after) {
            response.headers_mut().insert(legacy::PUSHBACK, HeaderValue::from(value));
        }
        match rejection {
            Rejection::OverLimit(decision) => self.headers.on_denied(&mut response, decision),
            _ => self.headers.add_exposed(&mut response),
        }
        response
    }
}

impl_default!(Grpc);

impl<A, B, E> Respond<Request<A>, Response<B>, E> for Grpc {
    type Response = Response<ResponseBody<B>>;
    type Context = HttpContext;

    fn detail(&self) -> Detail {
        self.headers.detail()
    }

    fn client_timeout(&self, request: &Request<A>) -> Option<Duration> {
        grpc_timeout(request.headers())
    }

    #[inline]
    fn on_allowed(&self, request: &mut Request<A>, decision: Option<&Decision>) -> HttpContext {
        self.headers.on_allowed(request.extensions_mut(), decision)
    }

    fn observe(context: &mut HttpContext, observers: &Observers) {
        context.observe(observers);
    }

    #[inline]
    fn map_response(context: HttpContext, response: Response<B>) -> Response<ResponseBody<B>> {
        context.map_response(response).map(ResponseBody::from_service)
    }

    fn on_rejected(&self, request: Request<A>, rejection: Rejection) -> Result<Response<ResponseBody<B>>, E> {
        let mut response = self.reject(answer_type(request.method(), request.headers()), rejection);
        legacy::close_if_unread(response.headers_mut(), request.version(), request.headers());
        Ok(response)
    }
}

/// Returns the content type of the answer to a gRPC call, or `None` if the request is not a gRPC call.
///
/// The type has no suffix, because rejections have no messages. gRPC and gRPC-Web use `POST` only. A cache or a browser
/// could take an answer of status 200 to any other method for a page.
pub(super) fn answer_type(method: &Method, headers: &HeaderMap) -> Option<HeaderValue> {
    if method != Method::POST {
        return None;
    }
    let content_type = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    // Types are case-insensitive, and parameters may follow (RFC 9110, section 8.3.1).
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let is = |name: &str| {
        let (start, rest) = essence.split_at_checked(name.len()).unwrap_or_default();
        start.eq_ignore_ascii_case(name) && (rest.is_empty() || rest.starts_with('+'))
    };
    let names = ["application/grpc", "application/grpc-web", "application/grpc-web-text"];
    names.into_iter().find(|name| is(name)).map(HeaderValue::from_static)
}

fn code(rejection: &Rejection) -> Code {
    match rejection {
        _ if rejection.is_misconfigured() => Code::Internal,
        Rejection::MissingKey(_) => Code::InvalidArgument,
        _ if rejection.repeats_id() => Code::AlreadyExists,
        _ if rejection.is_over_limit() => Code::ResourceExhausted,
        _ => Code::Unavailable,
    }
}

/// Returns the limits that deny. The key is left out: it may be a secret or an address.
fn violations(decision: &Decision) -> Vec<QuotaViolation> {
    let is_violated = |limit: &&LimitStatus| !limit.is_shadow() && !limit.verdict().is_allowed();
    let violation = |limit: &LimitStatus| {
        let snapshot = limit.snapshot();
        let description = match snapshot.window {
            None => format!("at most {} in flight", snapshot.limit),
            Some(window) => format!("at most {} in {window:?}", snapshot.limit),
        };
        let mut violation = QuotaViolation::new(format!("limit:{}", limit.name()), description);
        limit.name().clone_into(&mut violation.quota_id);
        violation.quota_value = i64::try_from(snapshot.limit).unwrap_or(i64::MAX);
        violation
    };
    decision.limits().iter().filter(is_violated).map(violation).collect()
}

/// Returns the pushback as gRPC defines it: a signed 32-bit number, negative to forbid a retry.
fn pushback(rejection: &Rejection, retry_after: Option<Duration>) -> Option<i32> {
    match retry_after {
        None => (rejection.is_over_limit() || rejection.repeats_id()).then_some(-1),
        Some(wait) => Some(i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)),
    }
}
