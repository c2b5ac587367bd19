use bytes::Bytes;
use http::{Request, Response};

use super::admission::Admission;
use super::body::Body;
use super::http::Http;
use super::refusal::Refusal;
use super::seam::Respond;
use super::tell::HttpMark;
use crate::decision::Decision;
use crate::observe::Observers;

/// A responder for services with any response body, of one that answers in bytes: the limited service's body is a
/// [`Body`] around it.
///
/// Made by [`Http::any_body`].
#[derive(Clone, Copy, Debug)]
pub struct AnyBody<R = Http>(pub(super) R);

impl<A, B, E, R> Respond<Request<A>, Response<B>, E> for AnyBody<R>
where
    R: Respond<Request<A>, Response<Bytes>, E, Response = Response<Bytes>, Error = E, Mark = HttpMark>,
{
    type Response = Response<Body<B>>;
    type Error = E;
    type Mark = HttpMark;

    fn wants_every_limit(&self) -> bool {
        self.0.wants_every_limit()
    }

    fn wants_every_refusal(&self) -> bool {
        self.0.wants_every_refusal()
    }

    fn admit(&self, request: &mut Request<A>, admission: Admission) -> HttpMark {
        self.0.admit(request, admission)
    }

    #[inline]
    fn admit_ref(&self, request: &Request<A>, decision: &Decision) -> Option<HttpMark> {
        self.0.admit_ref(request, decision)
    }

    fn observe(mark: &mut HttpMark, observers: &Observers) {
        mark.observe(observers);
    }

    #[inline]
    fn finish(mark: HttpMark, response: Response<B>) -> Response<Body<B>> {
        mark.finish(response).map(Body::service)
    }

    fn refuse(&self, request: Request<A>, refusal: Refusal) -> Result<Response<Body<B>>, E> {
        Ok(self.0.refuse(request, refusal)?.map(Body::refusal))
    }
}
