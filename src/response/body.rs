use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pin_project::pin_project;

/// The inner service's body, or that of a refusal: see [`MapBody`](super::MapBody).
#[pin_project]
#[derive(Debug)]
pub struct Body<B>(#[pin] State<B>);

#[pin_project(project = Projection)]
#[derive(Debug)]
enum State<B> {
    Service(#[pin] B),
    Rejection(Option<Bytes>),
}

impl<B> Body<B> {
    pub(super) fn service(body: B) -> Self {
        Self(State::Service(body))
    }

    pub(super) fn refusal(bytes: Bytes) -> Self {
        Self(State::Rejection(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().0.project() {
            Projection::Service(body) => body.poll_frame(cx),
            Projection::Rejection(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            State::Service(body) => body.is_end_stream(),
            State::Rejection(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            State::Service(body) => body.size_hint(),
            State::Rejection(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
        }
    }
}

/// An empty one of the inner kind.
impl<B: Default> Default for Body<B> {
    fn default() -> Self {
        Self::service(B::default())
    }
}
