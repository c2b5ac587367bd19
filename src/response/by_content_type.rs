use http::{HeaderMap, HeaderValue, Request, Response, header};

use super::admission::Admission;
use super::any_body::AnyBody;
use super::grpc::Grpc;
use super::http::Http;
use super::partition::Partition;
use super::problem::{Problem, Render};
use super::refusal::Refusal;
use super::seam::Respond;
use super::tell::HttpMark;
use crate::decision::Decision;

/// Answers gRPC calls by [`Grpc`] and all other requests by [`Http`], for servers that speak both on one port.
///
/// A gRPC call is known by its `content-type`: `application/grpc`, with or without what may follow it. So are those of
/// gRPC-Web (`application/grpc-web`), which are answered in their own content type.
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
/// [`any_body`](Self::any_body).
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
    pub fn any_body(self) -> AnyBody<Self> {
        AnyBody(self)
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
    type Mark = HttpMark;

    fn wants_every_limit(&self) -> bool {
        Respond::<Request<A>, Response<B>, E>::wants_every_limit(&self.grpc)
            || Respond::<Request<A>, Response<B>, E>::wants_every_limit(&self.http)
    }

    fn wants_every_refusal(&self) -> bool {
        true
    }

    fn admit(&self, request: &mut Request<A>, admission: Admission) -> HttpMark {
        let is_grpc = grpc_content_type(request.headers()).is_some();
        if is_grpc {
            Respond::<_, Response<B>, E>::admit(&self.grpc, request, admission)
        } else {
            Respond::<_, Response<B>, E>::admit(&self.http, request, admission)
        }
    }

    fn admit_ref(&self, request: &Request<A>, decision: &Decision) -> Option<HttpMark> {
        if grpc_content_type(request.headers()).is_some() {
            Respond::<_, Response<B>, E>::admit_ref(&self.grpc, request, decision)
        } else {
            Respond::<_, Response<B>, E>::admit_ref(&self.http, request, decision)
        }
    }

    #[inline]
    fn finish(mark: HttpMark, response: Response<B>) -> Response<B> {
        mark.finish(response)
    }

    fn refuse(&self, request: Request<A>, refusal: Refusal) -> Result<Response<B>, E> {
        match grpc_content_type(request.headers()) {
            None => self.http.refuse(request, refusal),
            Some(content_type) => {
                let mut response = self.grpc.refusal(refusal);
                response.headers_mut().insert(header::CONTENT_TYPE, content_type);
                Ok(response)
            }
        }
    }
}

/// The content type to answer a gRPC call in: without a suffix where nothing follows it, as refusals have no messages.
fn grpc_content_type(headers: &HeaderMap) -> Option<HeaderValue> {
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
