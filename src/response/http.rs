use http::{Request, Response};

use super::Respond;
use super::headers::{HeaderOptions, HttpContext, ResetFormat, legacy};
use super::map_body::MapBody;
use super::problem::{Problem, Render};
use super::rejection::Rejection;
use crate::decision::{Decision, Detail};
use crate::observe::Observers;

/// Answers in HTTP. The default responder of the layer.
///
/// - A rejection over the limit has status 429, `Retry-After` (whole seconds, rounded up, at least 1),
///   `Cache-Control: no-store` and a [`Problem`] body, or the response of [`render`](Self::render). A request whose
///   cost exceeds the limit has no `Retry-After`.
/// - Responses to allowed and denied requests carry `RateLimit` and `RateLimit-Policy`
///   (draft-ietf-httpapi-ratelimit-headers-10), which list every limit. Values that a handler or another limiter has
///   set stay. If such a value names a limit of the same name, clients cannot tell the limits apart: the layer's
///   observers receive a [warning](crate::observe::Event::Warning), once.
/// - Handlers find a [`RateLimitInfo`](super::RateLimitInfo) in the request's extensions if
///   [`request_extension`](Self::request_extension) is on. It is off by default.
///
/// ```
/// use tower_ratelimit::response::{Http, ResetFormat};
///
/// let like_github = Http::new().legacy_headers(ResetFormat::EpochSeconds);
/// let minimal = Http::minimal();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Http<R = Problem> {
    pub(super) headers: HeaderOptions,
    render: R,
}

impl Http {
    /// Creates a responder with rate limit headers and a problem body.
    #[must_use]
    pub const fn new() -> Self {
        let headers = HeaderOptions { rate_limit: true, ..HeaderOptions::EMPTY };
        Self { headers, render: Problem }
    }

    /// Creates a responder that changes rejections only, and allocates nothing for allowed requests.
    ///
    /// Rejections carry `Retry-After` and `Cache-Control`, and no other headers.
    #[must_use]
    pub const fn minimal() -> Self {
        Self { headers: HeaderOptions::EMPTY, render: Problem }
    }
}

impl<R> Http<R> {
    /// Sets whether responses carry `RateLimit` and `RateLimit-Policy`.
    #[must_use]
    pub fn rate_limit_headers(mut self, on: bool) -> Self {
        self.headers.rate_limit = on;
        self
    }

    /// Adds `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` of the most restrictive limit.
    ///
    /// Clients of an older draft (`RateLimit: limit=10, remaining=..`) misread the current `RateLimit` header. For
    /// these clients, turn [`rate_limit_headers`](Self::rate_limit_headers) off.
    #[must_use]
    pub fn legacy_headers(mut self, reset: ResetFormat) -> Self {
        self.headers.legacy = Some(reset);
        self
    }

    /// Sets whether requests carry a [`RateLimitInfo`](super::RateLimitInfo) in their extensions, for handlers.
    ///
    /// Off by default, because no part of the crate reads the value. With it the layer takes 15 % more instructions.
    #[must_use]
    pub fn request_extension(mut self, on: bool) -> Self {
        self.headers.request_extension = on;
        self
    }

    /// Sets whether responses carry a [`RateLimitInfo`](super::RateLimitInfo) in their extensions, for outer layers
    /// such as an access log.
    ///
    /// Off by default. A copy of the decision takes two allocations, and the map of the extensions more.
    #[must_use]
    pub fn response_extension(mut self, on: bool) -> Self {
        self.headers.response_extension = on;
        self
    }

    /// Sets whether `Access-Control-Expose-Headers` lists the headers, so that scripts of other origins can read them.
    ///
    /// Off by default, because a CORS layer may already list them
    /// (<https://fetch.spec.whatwg.org/#http-access-control-expose-headers>). Place the CORS layer outside of this
    /// layer in either case, so that rejections pass through the CORS layer. [`Preflight`](crate::key::Preflight)
    /// exempts CORS preflight requests.
    #[must_use]
    pub fn expose_headers(mut self, on: bool) -> Self {
        self.headers.cors_expose = on;
        self
    }

    /// Renders rejections with a closure `Fn(&Parts, &Rejection) -> Response<Body>`.
    ///
    /// The [`Parts`] belong to the rejected request. The responder adds its headers to the closure's response. With the
    /// feature `axum` the closure may return a `StatusCode`, or a tuple that begins with one, as axum's handlers do.
    ///
    /// ```
    /// use http::StatusCode;
    /// use http::request::Parts;
    /// use tower_ratelimit::response::{Http, Rejection};
    ///
    /// let responder = Http::new().render(|_: &Parts, rejection: &Rejection| {
    ///     (StatusCode::TOO_MANY_REQUESTS, format!("Slow down: {rejection}"))
    /// });
    /// ```
    ///
    /// An HTML page for browsers, the [`Problem`] for all other clients. `Vary` is not needed, because rejections are
    /// not stored.
    ///
    /// ```
    /// use axum::body::Body;
    /// use axum::response::{Html, IntoResponse, Response};
    /// use axum::{Router, routing::get};
    /// use http::request::Parts;
    /// use http::{Request, StatusCode, header};
    /// use tower::ServiceExt;
    /// use tower_ratelimit::key::Global;
    /// use tower_ratelimit::response::{Http, Problem, Rejection};
    /// use tower_ratelimit::{FixedWindow, Memory, Quota, RateLimitLayer};
    ///
    /// fn negotiate(request: &Parts, rejection: &Rejection) -> Response {
    ///     let accept = request.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    ///     if rejection.is_over_limit() && accept.is_some_and(|types| types.contains("text/html")) {
    ///         let page = Html("<h1>Too many requests</h1><p>Please try again later.</p>");
    ///         return (StatusCode::TOO_MANY_REQUESTS, page).into_response();
    ///     }
    ///     Problem.render(rejection)
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
    pub fn render<F>(self, render: F) -> Http<F> {
        Http { headers: self.headers, render }
    }

    /// Adds the headers and the extension of a rejection to its rendered response.
    pub(super) fn finish_rejected<B>(&self, mut response: Response<B>, rejection: Rejection) -> Response<B> {
        legacy::forbid_storing(response.headers_mut());
        if let Some(retry_after) = rejection.retry_after() {
            legacy::add_retry_after(response.headers_mut(), retry_after);
        }
        match rejection {
            Rejection::OverLimit(decision) => self.headers.on_denied(&mut response, decision),
            _ => self.headers.expose(&mut response),
        }
        response
    }

    /// Supports services whose response body does not implement `From<Bytes>`.
    ///
    /// The body of the rate limited service becomes a [`ResponseBody`](super::ResponseBody).
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

impl<A, B, E, R: Render<B>> Respond<Request<A>, Response<B>, E> for Http<R> {
    type Response = Response<B>;
    type Context = HttpContext;

    #[inline]
    fn detail(&self) -> Detail {
        self.headers.detail()
    }

    #[inline]
    fn on_allowed(&self, request: &mut Request<A>, decision: Option<&Decision>) -> HttpContext {
        self.headers.on_allowed(request.extensions_mut(), decision)
    }

    fn observe(context: &mut HttpContext, observers: &Observers) {
        context.observe(observers);
    }

    #[inline]
    fn map_response(context: HttpContext, response: Response<B>) -> Response<B> {
        context.map_response(response)
    }

    fn on_rejected(&self, request: Request<A>, rejection: Rejection) -> Result<Response<B>, E> {
        let (request, _body) = request.into_parts();
        let response = self.render.render(&request, &rejection);
        Ok(self.finish_rejected(response, rejection))
    }
}
