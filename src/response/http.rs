#[cfg(feature = "tonic")]
use std::time::Duration;

#[cfg(feature = "tonic")]
use http::HeaderMap;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, header};
use http_body::Body;

use super::Respond;
#[cfg(feature = "tonic")]
use super::grpc::{Grpc, answer_type};
#[cfg(feature = "tonic")]
use super::grpc_timeout::grpc_timeout;
use super::headers::{Headers, HttpContext, legacy};
use super::map_body::MapBody;
use super::problem::{Problem, Render};
use super::rejection::Rejection;
use crate::decision::{Decision, Detail};
use crate::observe::Observers;

/// Answers in HTTP. The default responder of the layer.
///
/// - A rejection over the limit has status 429, `Retry-After` (whole seconds, rounded up, at least 1),
///   `Cache-Control: no-store` and a [`Problem`] body, or the response of [`render`](Self::render). A request whose
///   cost exceeds the limit has no `Retry-After`. A rejected `HEAD` has the same headers and no body.
/// - Responses to allowed and denied requests carry `RateLimit` and `RateLimit-Policy`
///   (draft-ietf-httpapi-ratelimit-headers-11), which list every limit. Values that a handler or another limiter has
///   set stay. If such a value names a limit of the same name, clients cannot tell the limits apart: the layer's
///   observers receive a [warning](crate::observe::Event::Warning), once.
/// - A rejection over HTTP/1 of a request with a body has `Connection: close`, because the body is not read. A client
///   that sends a large body and reads afterwards may still report a broken connection instead of the rejection.
/// - Handlers find a [`RateLimitInfo`](crate::RateLimitInfo) in the request's extensions if
///   [`Headers::request_extension`] is on. It is off by default.
///
/// ```
/// use tower_ratelimit::Http;
/// use tower_ratelimit::response::{Headers, ResetFormat};
///
/// let like_github = Http::new().headers(Headers::none().legacy(ResetFormat::EpochSeconds));
/// let rejections_only = Http::without_headers();
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Http<R = Problem> {
    headers: Headers,
    /// The responder of gRPC calls. `None`: they are answered as all other requests.
    #[cfg(feature = "tonic")]
    grpc: Option<Grpc>,
    render: R,
}

impl Http {
    /// Creates a responder with rate limit headers and a problem body.
    pub const fn new() -> Self {
        Self::with(Headers::new())
    }

    /// Creates a responder that changes rejections only, and allocates nothing for allowed requests.
    ///
    /// Rejections carry `Retry-After` and `Cache-Control`, and no other headers.
    pub const fn without_headers() -> Self {
        Self::with(Headers::none())
    }

    const fn with(headers: Headers) -> Self {
        Self {
            headers,
            #[cfg(feature = "tonic")]
            grpc: None,
            render: Problem,
        }
    }
}

impl<R> Http<R> {
    /// Sets the header fields that responses carry, and the extensions: see [`Headers`].
    pub fn headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
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
    /// use tower_ratelimit::Http;
    /// use tower_ratelimit::response::Rejection;
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
    /// use tower_ratelimit::response::{Problem, Rejection};
    /// use tower_ratelimit::{FixedWindow, Http, Memory, Quota, RateLimitLayer};
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
    pub fn render<F>(self, render: F) -> Http<F> {
        Http {
            headers: self.headers,
            #[cfg(feature = "tonic")]
            grpc: self.grpc,
            render,
        }
    }

    /// Answers gRPC calls with [`Grpc`]: for servers with gRPC and HTTP on one port.
    ///
    /// A gRPC call is a `POST` whose `content-type` is `application/grpc` or `application/grpc-web`, with or without a
    /// suffix. gRPC-Web calls are answered in their own content type. A rejection of any other request has a status of
    /// 400 or above, whatever its `content-type`.
    ///
    /// ```
    /// use tower_ratelimit::response::{Grpc, Headers};
    /// use tower_ratelimit::{Gcra, Http, Memory, PeerIp, Quota, RateLimitLayer};
    ///
    /// let limiter = Memory::<std::net::IpAddr, _>::new(Gcra::new(Quota::per_second(10)));
    /// let responder = Http::new().headers(Headers::new().expose(true)).grpc(Grpc::new());
    /// let layer = RateLimitLayer::new(PeerIp::new(), limiter).responder(responder);
    /// ```
    ///
    /// This works with axum's router as it is. If the body does not implement `From<Bytes>`, as tonic's, use
    /// [`map_body`](Self::map_body).
    #[cfg(feature = "tonic")]
    pub fn grpc(mut self, grpc: Grpc) -> Self {
        self.grpc = Some(grpc);
        self
    }

    /// Returns the responder of a gRPC call, and the content type of its answer. `None` for other requests.
    #[cfg(feature = "tonic")]
    fn of_call(&self, method: &Method, headers: &HeaderMap) -> Option<(&Grpc, HeaderValue)> {
        self.grpc.as_ref().and_then(|grpc| Some((grpc, answer_type(method, headers)?)))
    }

    /// Returns the response to a rejected request, for handlers that call a limiter themselves: the same status, headers
    /// and body as the layer's.
    ///
    /// `rejection` is the [`Decision`] that denies the request, a [`MissingKey`](crate::key::MissingKey), or the
    /// [`Error`](crate::Error) of the limiter. In axum a handler extracts the [`Parts`]. The page "Recipes" of the guide
    /// has an example.
    pub fn reject<B>(&self, request: &Parts, rejection: impl Into<Rejection>) -> Response<B>
    where
        B: Body + Default,
        R: Render<B>,
    {
        let rejection = rejection.into();
        #[cfg(feature = "tonic")]
        if let Some((grpc, content_type)) = self.of_call(&request.method, &request.headers) {
            return grpc.reject(Some(content_type), rejection);
        }
        let mut response = self.finish_rejected(self.render.render(request, &rejection), rejection);
        if request.method == Method::HEAD {
            remove_body(&mut response);
        }
        response
    }

    /// Adds the headers and the extension of a rejection to its rendered response.
    pub(super) fn finish_rejected<B>(&self, mut response: Response<B>, rejection: Rejection) -> Response<B> {
        legacy::forbid_storing(response.headers_mut());
        if let Some(retry_after) = self.headers.retry_after(&rejection) {
            legacy::add_retry_after(response.headers_mut(), retry_after);
        }
        match rejection {
            Rejection::OverLimit(decision) => self.headers.on_denied(&mut response, decision),
            _ => self.headers.add_exposed(&mut response),
        }
        response
    }

    /// Supports services whose response body does not implement `From<Bytes>` and `Default`.
    ///
    /// The body of the rate limited service becomes a [`ResponseBody`](super::ResponseBody). A closure of
    /// [`render`](Self::render) returns a `Response<Bytes>` then.
    pub fn map_body(self) -> MapBody<Self> {
        MapBody(self)
    }
}

impl_default!(Http);

impl<A, B, E, R> Respond<Request<A>, Response<B>, E> for Http<R>
where
    B: Body + Default,
    R: Render<B>,
{
    type Response = Response<B>;
    type Context = HttpContext;

    #[inline]
    fn detail(&self) -> Detail {
        let detail = self.headers.detail();
        #[cfg(feature = "tonic")]
        let detail = self.grpc.map_or(detail, |grpc| grpc.headers.detail().max(detail));
        detail
    }

    #[cfg(feature = "tonic")]
    fn client_timeout(&self, request: &Request<A>) -> Option<Duration> {
        self.of_call(request.method(), request.headers()).and_then(|_| grpc_timeout(request.headers()))
    }

    #[inline]
    fn on_allowed(&self, request: &mut Request<A>, decision: Option<&Decision>) -> HttpContext {
        let headers = &self.headers;
        #[cfg(feature = "tonic")]
        let headers = self.of_call(request.method(), request.headers()).map_or(headers, |(grpc, _)| &grpc.headers);
        headers.on_allowed(request.extensions_mut(), decision)
    }

    fn observe(context: &mut HttpContext, observers: &Observers) {
        context.observe(observers);
    }

    #[inline]
    fn map_response(context: HttpContext, response: Response<B>) -> Response<B> {
        context.map_response(response)
    }

    fn on_rejected(&self, request: Request<A>, rejection: Rejection) -> Result<Response<B>, E> {
        let parts = request.into_parts().0;
        let mut response = self.reject(&parts, rejection);
        legacy::close_if_unread(response.headers_mut(), parts.version, &parts.headers);
        Ok(response)
    }
}

/// Removes the body of a response to `HEAD`, and states the length that `GET` would have received (RFC 9110, sections
/// 8.6 and 9.3.2).
///
/// Servers do not: hyper sends the body in HTTP/2, which clients take for a protocol error.
fn remove_body<B: Body + Default>(response: &mut Response<B>) {
    let body = std::mem::take(response.body_mut());
    if let Some(length) = body.size_hint().exact() {
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
}
