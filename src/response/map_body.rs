use std::time::Duration;

use http::{Request, Response};

use super::Respond;
use super::body::ResponseBody;
use super::headers::HttpContext;
use super::http::Http;
use super::rejection::Rejection;
use crate::decision::{Decision, Detail};
use crate::observe::Observers;

/// A responder for services with any response body, built by [`Http::map_body`].
///
/// The body of the rate limited service is a [`ResponseBody`] around the inner service's body.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct MapBody<R = Http>(pub(super) R);

impl<A, B, E, R> Respond<Request<A>, Response<B>, E> for MapBody<R>
where
    R: Respond<Request<A>, Response<ResponseBody<B>>, E, Response = Response<ResponseBody<B>>, Context = HttpContext>,
{
    type Response = Response<ResponseBody<B>>;
    type Context = HttpContext;

    #[inline]
    fn detail(&self) -> Detail {
        self.0.detail()
    }

    fn client_timeout(&self, request: &Request<A>) -> Option<Duration> {
        self.0.client_timeout(request)
    }

    #[inline]
    fn on_allowed(&self, request: &mut Request<A>, decision: Option<&Decision>) -> HttpContext {
        self.0.on_allowed(request, decision)
    }

    fn observe(context: &mut HttpContext, observers: &Observers) {
        context.observe(observers);
    }

    #[inline]
    fn map_response(context: HttpContext, response: Response<B>) -> Response<ResponseBody<B>> {
        context.map_response(response).map(ResponseBody::from_service)
    }

    fn on_rejected(&self, request: Request<A>, rejection: Rejection) -> Result<Response<ResponseBody<B>>, E> {
        self.0.on_rejected(request, rejection)
    }
}
