use http::{Request, Response};

use super::Respond;
use super::grpc::{Grpc, answer_type};
use super::headers::HttpContext;
use super::http::Http;
use super::info::RateLimitInfo;
use super::map_body::MapBody;
use super::partition::Partition;
use super::problem::{Problem, Render};
use super::rejection::Rejection;
use crate::decision::Decision;
use crate::observe::Observers;

/// Answers gRPC calls by [`Grpc`] and all other requests by [`Http`], for servers that speak both on one port.
///
/// A gRPC call is a `POST` whose `content-type` is `application/grpc`, with or without what may follow that, or
/// gRPC-Web's `application/grpc-web`, which is answered in its own content type. The answer to any other request has a
/// status of 400 or above, whatever its `content-type`.
///
/// ```
/// use std::time::Duration;
///
/// use tower_ratelimit::response::{ByContentType, Grpc, Http};
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// let responder = ByContentType::new(Grpc::new().pushback(Duration::from_millis(200)), Http::new());
/// let layer = RateLimitLayer::new(PeerIp::new(), limiter).responder(responder);
/// ```
///
/// With axum's router it serves as it is; where the body can't be made from bytes, as tonic's, use
/// [`map_body`](Self::map_body).
#[derive(Clone, Copy, Debug)]
pub struct ByContentType<R = Problem, P = ()> {
    grpc: Grpc,
    http: Http<R, P>,
}

impl<R, P> ByContentType<R, P> {
    /// Answers by one or the other.
    #[must_use]
    pub const fn new(grpc: Grpc, http: Http<R, P>) -> Self {
        Self { grpc, http }
    }

    /// Answers for services with any response body, at the price of a body type around theirs.
    #[must_use]
    pub fn map_body(self) -> MapBody<Self> {
        MapBody(self)
    }
}

impl Default for ByContentType {
    fn default() -> Self {
        Self::new(Grpc::new(), Http::new())
    }
}

impl<A, B, E, R, P> Respond<Request<A>, Response<B>, E> for ByContentType<R, P>
where
    B: Default,
    R: Render<B>,
    P: Partition<Request<A>>,
{
    type Response = Response<B>;
    type Error = E;
    type Context = HttpContext;

    fn wants_all_limits(&self) -> bool {
        Respond::<Request<A>, Response<B>, E>::wants_all_limits(&self.grpc)
            || Respond::<Request<A>, Response<B>, E>::wants_all_limits(&self.http)
    }

    fn wants_all_denials(&self) -> bool {
        true
    }

    fn admit(&self, request: &mut Request<A>, admission: RateLimitInfo) -> HttpContext {
        if answer_type(request).is_some() {
            Respond::<_, Response<B>, E>::admit(&self.grpc, request, admission)
        } else {
            Respond::<_, Response<B>, E>::admit(&self.http, request, admission)
        }
    }

    fn admit_ref(&self, request: &Request<A>, decision: &Decision) -> Option<HttpContext> {
        if answer_type(request).is_some() {
            Respond::<_, Response<B>, E>::admit_ref(&self.grpc, request, decision)
        } else {
            Respond::<_, Response<B>, E>::admit_ref(&self.http, request, decision)
        }
    }

    fn observe(mark: &mut HttpContext, observers: &Observers) {
        mark.observe(observers);
    }

    #[inline]
    fn finish(mark: HttpContext, response: Response<B>) -> Response<B> {
        mark.finish(response)
    }

    fn refuse(&self, request: Request<A>, refusal: Rejection) -> Result<Response<B>, E> {
        if answer_type(&request).is_some() {
            Ok(self.grpc.refusal(&request, refusal))
        } else {
            self.http.refuse(request, refusal)
        }
    }
}
