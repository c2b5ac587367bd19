use bytes::Bytes;
use http::{Request, Response};

use super::Respond;
use super::body::Body;
use super::headers::HttpContext;
use super::http::Http;
use super::info::RateLimitInfo;
use super::rejection::Rejection;
use crate::decision::Decision;
use crate::observe::Observers;

/// A responder for services with any response body, of one that answers in bytes: the limited service's body is a
/// [`Body`] around it.
///
/// Made by [`Http::map_body`].
#[derive(Clone, Copy, Debug)]
pub struct MapBody<R = Http>(pub(super) R);

impl<A, B, E, R> Respond<Request<A>, Response<B>, E> for MapBody<R>
where
    R: Respond<Request<A>, Response<Bytes>, E, Response = Response<Bytes>, Error = E, Context = HttpContext>,
{
    type Response = Response<Body<B>>;
    type Error = E;
    type Context = HttpContext;

    fn wants_all_limits(&self) -> bool {
        self.0.wants_all_limits()
    }

    fn wants_all_denials(&self) -> bool {
        self.0.wants_all_denials()
    }

    fn admit(&self, request: &mut Request<A>, admission: RateLimitInfo) -> HttpContext {
        self.0.admit(request, admission)
    }

    #[inline]
    fn admit_ref(&self, request: &Request<A>, decision: &Decision) -> Option<HttpContext> {
        self.0.admit_ref(request, decision)
    }

    fn observe(mark: &mut HttpContext, observers: &Observers) {
        mark.observe(observers);
    }

    #[inline]
    fn finish(mark: HttpContext, response: Response<B>) -> Response<Body<B>> {
        mark.finish(response).map(Body::service)
    }

    fn refuse(&self, request: Request<A>, refusal: Rejection) -> Result<Response<Body<B>>, E> {
        Ok(self.0.refuse(request, refusal)?.map(Body::refusal))
    }
}
