use bytes::Bytes;
use http::{Request, Response};

use super::admission::Admission;
use super::body::Body;
use super::http::{Http, HttpMark};
use super::problem::{Problem, Render};
use super::refusal::Refusal;
use super::seam::Respond;

/// [`Http`] for services with any response body: the limited service's body is a [`Body`] around it.
///
/// Made by [`Http::any_body`].
#[derive(Clone, Debug)]
pub struct AnyBody<R = Problem>(pub(super) Http<R>);

impl<A, B, E, R> Respond<Request<A>, Response<B>, E> for AnyBody<R>
where
    R: Render<Bytes>,
{
    type Response = Response<Body<B>>;
    type Error = E;
    type Mark = HttpMark;

    fn wants_every_limit(&self) -> bool {
        self.0.wants_every_limit()
    }

    fn wants_every_refusal(&self) -> bool {
        true
    }

    fn admit(&self, request: &mut Request<A>, admission: Admission) -> HttpMark {
        self.0.mark(request.extensions_mut(), admission)
    }

    fn finish(mark: HttpMark, response: Response<B>) -> Response<Body<B>> {
        mark.finish(response).map(Body::service)
    }

    fn refuse(&self, _request: Request<A>, refusal: Refusal) -> Result<Response<Body<B>>, E> {
        Ok(self.0.refusal(refusal).map(Body::refusal))
    }
}
