use std::fmt;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, Response};
use http_body::Body;
#[cfg(feature = "tonic")]
use tonic::server::NamedService;
use tower_service::Service;

use super::body::ReadAheadBody;
use super::future::ReadAheadFuture;
use super::layer::{MapBody, ReadAheadLayer, SameBody};
use super::reader::Reader;

/// The service that [`ReadAheadLayer`](crate::ReadAheadLayer) wraps around an inner service.
///
/// This service is ready when the inner service is ready.
#[derive(Clone)]
pub struct ReadAhead<S, M = SameBody> {
    pub(super) inner: S,
    pub(super) layer: ReadAheadLayer<M>,
}

impl<S, M> ReadAhead<S, M> {
    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

/// Makes the body that the inner service takes. Public because a bound of [`ReadAhead`] names it.
pub trait IntoInnerBody<B: Body<Data = Bytes>> {
    type Body;

    fn read_ahead(&self, body: ReadAheadBody<B>) -> Self::Body;

    /// Makes the body of a request that the layer leaves alone.
    fn untouched(&self, body: B, wrap: impl FnOnce(B) -> ReadAheadBody<B>) -> Self::Body;
}

impl<B: Body<Data = Bytes> + From<ReadAheadBody<B>>> IntoInnerBody<B> for SameBody {
    type Body = B;

    fn read_ahead(&self, body: ReadAheadBody<B>) -> B {
        B::from(body)
    }

    fn untouched(&self, body: B, _: impl FnOnce(B) -> ReadAheadBody<B>) -> B {
        body
    }
}

impl<B: Body<Data = Bytes>, F: Fn(ReadAheadBody<B>) -> T, T> IntoInnerBody<B> for MapBody<F> {
    type Body = T;

    fn read_ahead(&self, body: ReadAheadBody<B>) -> T {
        (self.0)(body)
    }

    fn untouched(&self, body: B, wrap: impl FnOnce(B) -> ReadAheadBody<B>) -> T {
        (self.0)(wrap(body))
    }
}

impl<S, M, B, T> Service<Request<B>> for ReadAhead<S, M>
where
    M: IntoInnerBody<B>,
    S: Service<Request<M::Body>, Response = Response<T>>,
    B: Body<Data = Bytes> + Send + 'static,
    T: Default,
{
    type Response = Response<T>;
    type Error = S::Error;
    type Future = ReadAheadFuture<S::Future, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let ReadAheadLayer { into_body, bounds, drain } = &self.layer;
        let is_left_alone = is_left_alone(&request);
        let (mut parts, body) = request.into_parts();
        let (reader, body) = if is_left_alone {
            (None, into_body.untouched(body, |body| Reader::new(body, bounds, None).1))
        } else {
            parts.extensions.insert(IsReadAhead);
            let (reader, body) = Reader::new(body, bounds, drain.clone());
            (Some(reader), into_body.read_ahead(body))
        };
        ReadAheadFuture::new(self.inner.call(Request::from_parts(parts, body)), reader)
    }
}

/// A layer reads the body. Another one inside would take it away, and no layer could then discard it.
#[derive(Clone, Copy)]
struct IsReadAhead;

/// Whether the body of this request is not read ahead, or another layer reads it.
pub(super) fn is_left_alone<B: Body>(request: &Request<B>) -> bool {
    // With `Expect: 100-continue` the server asks the client for the body when the body is polled. The client must not
    // send it before the decision.
    request.body().is_end_stream()
        || request.headers().contains_key(EXPECT)
        || request.extensions().get::<IsReadAhead>().is_some()
}

impl_debug!([S: fmt::Debug, M] ReadAhead<S, M> { inner, layer });

/// Keeps the name of a gRPC service, by which tonic routes its requests.
#[cfg(feature = "tonic")]
impl<S: NamedService, M> NamedService for ReadAhead<S, M> {
    const NAME: &'static str = S::NAME;
}
