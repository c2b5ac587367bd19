use http::{Request, Response};

use super::Respond;
use super::headers::{HttpContext, Tell};
use super::headers::{ResetFormat, legacy as fields};
use super::info::RateLimitInfo;
use super::map_body::MapBody;
use super::partition::{Hash, Partition, PartitionBy};
use super::problem::{Problem, Render};
use super::rejection::Rejection;
use crate::decision::Decision;
use crate::observe::Observers;

/// Answers in HTTP. The default of the layer.
///
/// - A refusal is a 429 with `Retry-After` (whole seconds, rounded up, never 0), `Cache-Control: no-store` and a
///   [`Problem`] body, or what [`render`](Self::render) makes of it. What never fits has no `Retry-After`.
/// - Allowed and refused answers carry `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-10),
///   with every limit listed. What a handler or another limiter has put there stays. If that has a limit of the same
///   name, clients cannot tell the limits apart: the layer's observers receive a
///   [warning](crate::observe::Event::Warning), once.
/// - Requests and responses carry an [`RateLimitInfo`] in their extensions.
///
/// ```
/// use tower_ratelimit::response::{Http, ResetFormat};
///
/// let like_github = Http::new().legacy_headers(ResetFormat::EpochSeconds);
/// let silent = Http::minimal();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Http<R = Problem, P = ()> {
    tell: Tell,
    render: R,
    partition: P,
}

impl Http {
    /// The draft's header fields, extensions, a problem body.
    #[must_use]
    pub const fn new() -> Self {
        Self { tell: Tell { draft: true, extensions: true, ..Tell::NOTHING }, render: Problem, partition: () }
    }

    /// No header fields but those of refusals (`Retry-After`, `Cache-Control`), and no extensions: what is let through
    /// is left as it is, at no allocation.
    #[must_use]
    pub const fn minimal() -> Self {
        Self { tell: Tell::NOTHING, render: Problem, partition: () }
    }
}

impl<R, P> Http<R, P> {
    /// Whether to send `RateLimit` and `RateLimit-Policy`.
    #[must_use]
    pub fn rate_limit_headers(mut self, on: bool) -> Self {
        self.tell.draft = on;
        self
    }

    /// Sends `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, of the limit that speaks.
    ///
    /// Clients that know an older draft's `RateLimit` (`limit=10, remaining=..`) take that field for it where both are
    /// sent: for them, turn [`rate_limit_headers`](Self::rate_limit_headers) off.
    #[must_use]
    pub fn legacy_headers(mut self, reset: ResetFormat) -> Self {
        self.tell.legacy = Some(reset);
        self
    }

    /// Whether to put an [`RateLimitInfo`] into the extensions of requests and responses.
    #[must_use]
    pub fn extensions(mut self, on: bool) -> Self {
        self.tell.extensions = on;
        self
    }

    /// Whether to name what it sends in `Access-Control-Expose-Headers`, so that scripts of other origins can read it
    /// (<https://fetch.spec.whatwg.org/#http-access-control-expose-headers>). Off by default: a CORS layer may say it
    /// all. That layer goes outside of this one either way, for refusals to pass through it, and
    /// [`Preflight`](crate::key::Preflight) exempts its preflights.
    #[must_use]
    pub fn expose_headers(mut self, on: bool) -> Self {
        self.tell.exposed = on;
        self
    }

    /// Renders refusals by a closure of your own, `Fn(&Parts, &Rejection) -> Response<Body>`, where [`Parts`] are those
    /// of the refused request. The header fields are added to the closure's response.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tower_ratelimit::response::{Http, Rejection};
    ///
    /// let responder = Http::new().render(|_: &Parts, refusal: &Rejection| {
    ///     let mut response = http::Response::new(format!("Slow down: {refusal}"));
    ///     *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
    ///     response
    /// });
    /// ```
    ///
    /// A page for browsers, the [`Problem`] for all others. `Vary` is not needed, as refusals are not stored.
    ///
    /// ```
    /// use axum::body::Body;
    /// use axum::response::{Html, IntoResponse, Response};
    /// use axum::{Router, routing::get};
    /// use http::request::Parts;
    /// use http::{Request, StatusCode, header};
    /// use tower::ServiceExt;
    /// use tower_ratelimit::key::Global;
    /// use tower_ratelimit::response::{Http, Problem, Rejection, Render};
    /// use tower_ratelimit::{FixedWindow, Memory, Quota, RateLimitLayer};
    ///
    /// fn negotiate(request: &Parts, refusal: &Rejection) -> Response {
    ///     let accept = request.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    ///     if refusal.is_over_limit() && accept.is_some_and(|types| types.contains("text/html")) {
    ///         let page = Html("<h1>Too many requests</h1><p>Please try again later.</p>");
    ///         return (StatusCode::TOO_MANY_REQUESTS, page).into_response();
    ///     }
    ///     Problem.render(request, refusal)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let limiter = Memory::new(FixedWindow::new(Quota::per_hour(1)));
    /// let layer = RateLimitLayer::new(Global, limiter).responder(Http::new().render(negotiate));
    /// let app = Router::new().route("/", get(async || "hello")).layer(layer);
    ///
    /// let content_type = async |accept: &str| {
    ///     let request = Request::get("/").header("accept", accept).body(Body::empty()).unwrap();
    ///     let response = app.clone().oneshot(request).await.unwrap();
    ///     (response.status().as_u16(), response.headers()["content-type"].to_str().unwrap().to_owned())
    /// };
    /// assert_eq!(content_type("text/html").await.0, 200);
    /// assert_eq!(content_type("text/html, */*;q=0.8").await, (429, "text/html; charset=utf-8".to_owned()));
    /// assert_eq!(content_type("application/json").await, (429, "application/problem+json".to_owned()));
    /// # }
    /// ```
    ///
    /// [`Parts`]: http::request::Parts
    #[must_use]
    pub fn render<F>(self, render: F) -> Http<F, P> {
        Http { tell: self.tell, render, partition: self.partition }
    }

    /// Tells the partition key (`pk`) in `RateLimit` and `RateLimit-Policy`: by what the quota is counted, so that a
    /// client that is several knows which of them it was. It is sent as 128 bits of a keyed hash, never in clear: under
    /// a [`Pepper`](crate::key::Pepper) if all servers are to send the same, else under
    /// [`ProcessPepper`](crate::key::ProcessPepper).
    ///
    /// `key` is the layer's, as a rule, and is extracted once more to answer. All limits are told with the same `pk`.
    ///
    /// ```
    /// use tower_ratelimit::key::{Header, ProcessPepper};
    /// use tower_ratelimit::response::Http;
    /// use tower_ratelimit::{Gcra, Memory, Quota, RateLimitLayer};
    ///
    /// const TENANT: Header = Header::from_static("x-tenant");
    ///
    /// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
    /// let layer = RateLimitLayer::new(TENANT, limiter).responder(Http::new().partition_key(TENANT, ProcessPepper));
    /// ```
    #[must_use]
    pub fn partition_key<K, Q>(self, key: K, pepper: Q) -> Http<R, PartitionBy<K, Q>> {
        Http { tell: self.tell, render: self.render, partition: PartitionBy::new(key, pepper) }
    }

    /// Answers for services whose response body can't be made from bytes, at the price of a body type around theirs.
    #[must_use]
    pub fn map_body(self) -> MapBody<Self> {
        MapBody(self)
    }
}

impl Default for Http {
    fn default() -> Self {
        Self::new()
    }
}

impl<A, B, E, R, P> Respond<Request<A>, Response<B>, E> for Http<R, P>
where
    R: Render<B>,
    P: Partition<Request<A>>,
{
    type Response = Response<B>;
    type Error = E;
    type Context = HttpContext;

    fn wants_all_limits(&self) -> bool {
        self.tell.draft
    }

    fn wants_all_denials(&self) -> bool {
        true
    }

    fn admit(&self, request: &mut Request<A>, admission: RateLimitInfo) -> HttpContext {
        let partition = self.partition_of(request, admission.decision().is_some());
        self.tell.admit(request.extensions_mut(), admission, partition)
    }

    #[inline]
    fn admit_ref(&self, request: &Request<A>, decision: &Decision) -> Option<HttpContext> {
        self.tell.admit_ref(decision, || self.partition_of(request, true))
    }

    fn observe(mark: &mut HttpContext, observers: &Observers) {
        mark.observe(observers);
    }

    #[inline]
    fn finish(mark: HttpContext, response: Response<B>) -> Response<B> {
        mark.finish(response)
    }

    fn refuse(&self, request: Request<A>, refusal: Rejection) -> Result<Response<B>, E> {
        let partition = self.partition_of(&request, refusal.decision().is_some());
        let (request, _body) = request.into_parts();
        let mut response = self.render.render(&request, &refusal);
        fields::forbid_storing(response.headers_mut());
        if let Some(retry_after) = refusal.retry_after() {
            fields::add_retry_after(response.headers_mut(), retry_after);
        }
        match refusal {
            Rejection::OverLimit(decision) => self.tell.refuse(&mut response, decision, partition),
            _ => self.tell.expose(&mut response),
        }
        Ok(response)
    }
}

impl<R, P> Http<R, P> {
    fn partition_of<A>(&self, request: &Request<A>, is_limited: bool) -> Option<Hash>
    where
        P: Partition<Request<A>>,
    {
        if self.tell.draft && is_limited { self.partition.of(request) } else { None }
    }
}
