use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

/// The inner service's body, or the body of a rejection: see [`MapBody`](super::MapBody).
#[pin_project]
#[derive(Debug)]
pub struct ResponseBody<B>(#[pin] State<B>);

#[pin_project(project = Projection)]
#[derive(Debug)]
enum State<B> {
    Service(#[pin] B),
    Rejection(Option<Bytes>),
}

impl<B> ResponseBody<B> {
    pub(super) fn from_service(body: B) -> Self {
        Self(State::Service(body))
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
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

/// The body of a rejection.
impl<B> From<Bytes> for ResponseBody<B> {
    fn from(bytes: Bytes) -> Self {
        Self(State::Rejection(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }
}

/// An empty body.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self(State::Rejection(None))
    }
}
