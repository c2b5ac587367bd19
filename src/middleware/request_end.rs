//! Where a request ends: the type of the layer says whether the layer tracks that, and how.

use std::marker::PhantomData;

use http::{Request, Response};
use http_body::Body;

use super::in_flight::{InFlightBody, InFlightGuard};

/// Tracks the end of requests, for limits on requests [in flight](crate::InFlight).
///
/// Implemented for `()`, which tracks nothing, for [`BodyEnd`] and for [`ResponseEnd`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot track the end of a `{Request}` that is answered by a `{Response}`",
    note = "`release_on_body_end` is for HTTP services: the request is a `http::Request`, the response a \
            `http::Response`; use `release_on_response` for other services"
)]
pub trait RequestEnd<Request, Response> {
    /// Whether the layer keeps the guard of a request until its end.
    const TRACKS: bool;

    /// What the response future keeps. Dropped with the future, it ends the request.
    type Tracker: Default;

    /// The response of the rate limited service.
    type Response;

    /// Tracks a request, which the layer forwards.
    fn track(request: &mut Request, guard: InFlightGuard) -> Self::Tracker;

    /// Hands the tracker to the response, or ends the request.
    fn on_response(tracker: Self::Tracker, response: Response) -> Self::Response;
}

impl<Request, Response> RequestEnd<Request, Response> for () {
    const TRACKS: bool = false;

    type Tracker = ();
    type Response = Response;

    fn track(_request: &mut Request, _guard: InFlightGuard) {}

    #[inline]
    fn on_response((): (), response: Response) -> Response {
        response
    }
}

/// A request ends when its response's body has ended or is dropped, and every guard in its extensions is dropped.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct BodyEnd(PhantomData<()>);

impl<A, B: Body> RequestEnd<Request<A>, Response<B>> for BodyEnd {
    const TRACKS: bool = true;

    type Tracker = Option<InFlightGuard>;
    type Response = Response<InFlightBody<B>>;

    fn track(request: &mut Request<A>, guard: InFlightGuard) -> Option<InFlightGuard> {
        guard.insert_into(request.extensions_mut());
        Some(guard)
    }

    fn on_response(guard: Option<InFlightGuard>, response: Response<B>) -> Response<InFlightBody<B>> {
        // A body that has ended from the start may never be polled.
        let guard = guard.filter(|_| !response.body().is_end_stream());
        response.map(|body| InFlightBody::new(body, guard))
    }
}

/// A request ends when the service has responded.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct ResponseEnd(PhantomData<()>);

impl<Request, Response> RequestEnd<Request, Response> for ResponseEnd {
    const TRACKS: bool = true;

    type Tracker = Option<InFlightGuard>;
    type Response = Response;

    fn track(_request: &mut Request, guard: InFlightGuard) -> Option<InFlightGuard> {
        Some(guard)
    }

    fn on_response(_guard: Option<InFlightGuard>, response: Response) -> Response {
        response
    }
}
