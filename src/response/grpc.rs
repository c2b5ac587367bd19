use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, header};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

use super::Respond;
use super::body::Body;
use super::headers::legacy as fields;
use super::headers::{HttpContext, Tell};
use super::info::RateLimitInfo;
use super::problem;
use super::rejection::Rejection;
use crate::decision::{Decision, LimitStatus};
use crate::observe::Observers;

const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Answers as gRPC servers do: a refusal is a *trailers-only* response, of HTTP status 200, whose header fields hold
/// the gRPC status, and whose body is empty. (Clients read a plain 429 as `UNAVAILABLE`, the wrong code.)
///
/// | Rejection | Code | Details |
/// |---|---|---|
/// | over a limit | `RESOURCE_EXHAUSTED` (8) | `RetryInfo` with the exact wait, `QuotaFailure` with the limits that refused |
/// | it costs more than the limit can ever hold | the same | `QuotaFailure` alone: without `RetryInfo` clients don't try again |
/// | the store could not answer, and the policy is to refuse | `UNAVAILABLE` (14) | `RetryInfo` |
/// | the request lacks its key | `INVALID_ARGUMENT` (3), or `INTERNAL` (13) if the server is at fault | |
///
/// A call is charged when it begins, a stream like any other, however many messages follow. A refused call never
/// reaches its handler. Handlers find an [`RateLimitInfo`] in the request's extensions.
///
/// A refusal carries `cache-control: no-store`. A request that is no gRPC call (a `POST` whose content type is
/// `application/grpc`, or gRPC-Web's) is refused with the HTTP status that [`Http`](super::Http) uses, so that nobody
/// takes the refusal for a page.
///
/// It serves on a whole server and on one service alike, intercepted or not. The limited service's body is a [`Body`]
/// around the service's own.
///
/// ```
/// use tonic::service::interceptor::InterceptedService;
/// use tonic::transport::Server;
/// use tower::Layer;
/// use tower_ratelimit::response::Grpc;
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// # fn serve() {
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)).burst(20));
/// let layer = RateLimitLayer::new(PeerIp::new(), limiter).responder(Grpc::new());
///
/// let (_, health) = tonic_health::server::health_reporter();
/// let everything = Server::builder().layer(layer.clone()).add_service(health.clone());
/// let one_service = Server::builder().add_service(layer.layer(health.clone()));
///
/// let intercepted = InterceptedService::new(health, |call: tonic::Request<()>| Ok(call));
/// let intercepted_service = Server::builder().add_service(layer.layer(intercepted));
/// # }
/// ```
///
/// tonic 0.14 reads the peer's address from its own connection: there is nothing to set up for
/// [`PeerIp`](crate::PeerIp).
#[derive(Clone, Copy, Debug)]
pub struct Grpc {
    tell: Tell,
    details: bool,
    pushback: Option<Duration>,
}

impl Grpc {
    /// `RetryInfo` and `QuotaFailure` with refusals; extensions; no pushback.
    #[must_use]
    pub const fn new() -> Self {
        Self { tell: Tell { extensions: true, ..Tell::NOTHING }, details: true, pushback: None }
    }

    /// Whether to send `RetryInfo` and `QuotaFailure` in `grpc-status-details-bin`. OpenTelemetry's exporters try again
    /// after `RESOURCE_EXHAUSTED` only if there is a `RetryInfo`.
    #[must_use]
    pub fn details(mut self, on: bool) -> Self {
        self.details = on;
        self
    }

    /// Sends `grpc-retry-pushback-ms`, which those clients obey that have a retry policy in their service config
    /// (<https://github.com/grpc/proposal/blob/master/A6-client-retries.md>): in milliseconds, rounded up, and by up to
    /// `jitter` longer at random, so that not all that were refused together come back together. What never fits is
    /// told -1: don't retry.
    #[must_use]
    pub fn pushback(mut self, jitter: Duration) -> Self {
        self.pushback = Some(jitter);
        self
    }

    /// Whether to send `RateLimit` and `RateLimit-Policy` as metadata, as [`Http`](super::Http) does. Off by default.
    #[must_use]
    pub fn rate_limit_headers(mut self, on: bool) -> Self {
        self.tell.draft = on;
        self
    }

    /// Whether to put an [`RateLimitInfo`] into the extensions of requests and responses.
    #[must_use]
    pub fn extensions(mut self, on: bool) -> Self {
        self.tell.extensions = on;
        self
    }

    /// The status that a refusal is answered with, for those who answer themselves.
    #[must_use]
    pub fn status(&self, refusal: &Rejection) -> Status {
        let code = code(refusal);
        if !self.details || matches!(refusal, Rejection::MissingKey(_)) {
            return Status::new(code, refusal.to_text());
        }
        let mut details = ErrorDetails::new();
        if let Some(retry_after) = refusal.retry_after() {
            details.set_retry_info(Some(retry_after));
        }
        if let Some(decision) = refusal.decision().filter(|_| refusal.is_over_limit()) {
            details.set_quota_failure(violations(decision));
        }
        Status::with_error_details(code, refusal.to_text(), details)
    }

    pub(super) fn refusal<A, B: Default>(&self, request: &Request<A>, refusal: Rejection) -> Response<B> {
        let mut response = self.status(&refusal).into_http();
        match answer_type(request) {
            Some(content_type) => drop(response.headers_mut().insert(header::CONTENT_TYPE, content_type)),
            None => *response.status_mut() = problem::status(&refusal),
        }
        fields::forbid_storing(response.headers_mut());
        if let Some(value) = self.pushback.and_then(|jitter| pushback(&refusal, jitter)) {
            response.headers_mut().insert(PUSHBACK, HeaderValue::from(value));
        }
        if let Rejection::OverLimit(decision) = refusal {
            self.tell.refuse(&mut response, decision, None);
        }
        response
    }
}

impl Default for Grpc {
    fn default() -> Self {
        Self::new()
    }
}

impl<A, B, E> Respond<Request<A>, Response<B>, E> for Grpc {
    type Response = Response<Body<B>>;
    type Error = E;
    type Context = HttpContext;

    fn wants_all_limits(&self) -> bool {
        self.tell.draft
    }

    fn wants_all_denials(&self) -> bool {
        true
    }

    fn admit(&self, request: &mut Request<A>, admission: RateLimitInfo) -> HttpContext {
        self.tell.admit(request.extensions_mut(), admission, None)
    }

    #[inline]
    fn admit_ref(&self, _request: &Request<A>, decision: &Decision) -> Option<HttpContext> {
        self.tell.admit_ref(decision, || None)
    }

    fn observe(mark: &mut HttpContext, observers: &Observers) {
        mark.observe(observers);
    }

    #[inline]
    fn finish(mark: HttpContext, response: Response<B>) -> Response<Body<B>> {
        mark.finish(response).map(Body::service)
    }

    fn refuse(&self, request: Request<A>, refusal: Rejection) -> Result<Response<Body<B>>, E> {
        Ok(self.refusal(&request, refusal).map(|()| Body::refusal(Bytes::new())))
    }
}

/// The content type to answer a gRPC call in, without a suffix, as refusals have no messages. `None` if `request` is no
/// gRPC call.
///
/// gRPC and gRPC-Web know `POST` only. The answer of status 200 to any other method could be taken, and stored, for a
/// page.
pub(super) fn answer_type<A>(request: &Request<A>) -> Option<HeaderValue> {
    if request.method() != Method::POST {
        return None;
    }
    let content_type = request.headers().get(header::CONTENT_TYPE)?.to_str().ok()?;
    // Types are case-insensitive, and parameters may follow (RFC 9110, section 8.3.1).
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let is = |name: &str| {
        let (start, rest) = essence.split_at_checked(name.len()).unwrap_or_default();
        start.eq_ignore_ascii_case(name) && (rest.is_empty() || rest.starts_with('+'))
    };
    let names = ["application/grpc", "application/grpc-web", "application/grpc-web-text"];
    names.into_iter().find(|name| is(name)).map(HeaderValue::from_static)
}

fn code(refusal: &Rejection) -> Code {
    match refusal {
        Rejection::MissingKey(missing) if missing.is_server_error() => Code::Internal,
        Rejection::MissingKey(_) => Code::InvalidArgument,
        _ if refusal.is_over_limit() => Code::ResourceExhausted,
        _ => Code::Unavailable,
    }
}

/// The limits that refused. The key is not told: it may be a secret, or somebody's address.
fn violations(decision: &Decision) -> Vec<QuotaViolation> {
    let violated = |standing: &&LimitStatus| !standing.is_shadow() && !standing.verdict().is_allowed();
    let violation = |standing: &LimitStatus| {
        let figures = standing.snapshot();
        let description = format!("at most {} in {:?}", figures.limit, figures.window);
        let mut violation = QuotaViolation::new(format!("limit:{}", standing.name()), description);
        standing.name().clone_into(&mut violation.quota_id);
        violation.quota_value = i64::try_from(figures.limit).unwrap_or(i64::MAX);
        violation
    };
    decision.limits().iter().filter(violated).map(violation).collect()
}

/// A signed number of 32 bits; a negative one means never.
fn pushback(refusal: &Rejection, jitter: Duration) -> Option<i32> {
    match refusal.retry_after() {
        None => refusal.is_over_limit().then_some(-1),
        Some(retry_after) => {
            let longest = u64::try_from(jitter.as_millis()).unwrap_or(u64::MAX);
            let late = u128::from(fastrand::u64(0..=longest));
            let millis = retry_after.as_nanos().div_ceil(1_000_000).saturating_add(late);
            Some(i32::try_from(millis).unwrap_or(i32::MAX))
        }
    }
}
