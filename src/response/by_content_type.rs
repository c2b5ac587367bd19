use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use http_body::Body;

use super::Respond;
use super::grpc::{Grpc, answer_type};
use super::grpc_timeout::grpc_timeout;
use super::headers::{HttpContext, legacy};
use super::http::Http;
use super::map_body::MapBody;
use super::problem::{Problem, Render};
use super::rejection::Rejection;
use crate::decision::{Decision, Detail};
use crate::observe::Observers;

/// Answers gRPC calls with [`Grpc`] and all other requests with [`Http`].
///
/// A gRPC call is a `POST` whose `content-type` is `application/grpc` or `application/grpc-web`, with or without a
/// suffix. gRPC-Web calls are answered in their own content type. A rejection of any other request has a status of
/// 400 or above, whatever its `content-type`.
///
/// ```
/// use tower_ratelimit::response::{ByContentType, Grpc, Headers};
/// use tower_ratelimit::{Gcra, Http, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::<std::net::IpAddr, _>::new(Gcra::new(Quota::per_second(10)));
/// let responder = ByContentType::new(Grpc::new(), Http::new().headers(Headers::new().expose(true)));
/// let layer = RateLimitLayer::new(PeerIp::new(), limiter).responder(responder);
/// ```
///
/// This works with axum's router as it is. If the body does not implement `From<Bytes>`, as tonic's, use
/// [`map_body`](Self::map_body).
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct ByContentType<R = Problem> {
    grpc: Grpc,
    http: Http<R>,
}

impl<R> ByContentType<R> {
    /// Answers gRPC calls with `grpc`, and all other requests with `http`.
    pub const fn new(grpc: Grpc, http: Http<R>) -> Self {
        Self { grpc, http }
    }

    /// Returns the response to a rejected request, for handlers that call a limiter themselves: see [`Http::reject`].
    pub fn reject<B>(&self, request: &Parts, rejection: impl Into<Rejection>) -> Response<B>
    where
        B: Body + Default,
        R: Render<B>,
    {
        match answer_type(&request.method, &request.headers) {
            None => self.http.reject(request, rejection),
            answer_type => self.grpc.reject(answer_type, rejection.into()),
        }
    }

    /// Supports services with any response body, which becomes a [`ResponseBody`](super::ResponseBody).
    pub fn map_body(self) -> MapBody<Self> {
        MapBody(self)
    }
}

impl Default for ByContentType {
    fn default() -> Self {
        Self::new(Grpc::new(), Http::new())
    }
}

impl<A, B, E, R> Respond<Request<A>, Response<B>, E> for ByContentType<R>
where
    B: Body + Default,
    R: Render<B>,
{
    type Response = Response<B>;
    type Context = HttpContext;

    fn detail(&self) -> Detail {
        self.grpc.headers.detail().max(self.http.headers.detail())
    }

    fn client_timeout(&self, request: &Request<A>) -> Option<Duration> {
        answer_type(request.method(), request.headers()).and_then(|_| grpc_timeout(request.headers()))
    }

    fn on_allowed(&self, request: &mut Request<A>, decision: Option<&Decision>) -> HttpContext {
        let is_grpc = answer_type(request.method(), request.headers()).is_some();
        let headers = if is_grpc { self.grpc.headers } else { self.http.headers };
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
