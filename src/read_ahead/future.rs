use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body;
use pin_project::pin_project;

use super::reader::Reader;
use super::unread::ReadEnd;
use crate::sync::POLLED_AFTER_COMPLETION;

/// The response future of a [`ReadAhead`](super::ReadAhead) service.
///
/// Dropping it drops the future of the inner service.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ReadAheadFuture<F, B: Body<Data = Bytes>> {
    #[pin]
    response: Option<F>,
    reader: Option<Reader<B>>,
    reads: bool,
}

impl<F, B: Body<Data = Bytes>> ReadAheadFuture<F, B> {
    pub(super) fn new(response: F, reader: Option<Reader<B>>) -> Self {
        Self { response: Some(response), reads: reader.is_some(), reader }
    }
}

impl<F, B, T, E> Future for ReadAheadFuture<F, B>
where
    F: Future<Output = Result<Response<T>, E>>,
    B: Body<Data = Bytes> + Send + 'static,
    T: Default,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // First the service: it may begin to read the body itself.
        let response = this.response.as_mut().as_pin_mut().expect(POLLED_AFTER_COMPLETION);
        if let Poll::Ready(result) = response.poll(cx) {
            if let (Some(reader), Ok(response)) = (this.reader.take(), &result) {
                reader.discard(response);
            }
            return Poll::Ready(result);
        }
        if let Some(reader) = this.reader.as_ref().filter(|_| *this.reads)
            && let Poll::Ready(end) = reader.poll(cx)
        {
            *this.reads = false;
            if end == ReadEnd::Failed {
                this.response.set(None);
                let mut response = Response::new(T::default());
                *response.status_mut() = StatusCode::BAD_REQUEST;
                return Poll::Ready(Ok(response));
            }
        }
        Poll::Pending
    }
}

impl_debug!([F, B: Body<Data = Bytes>] ReadAheadFuture<F, B> { reads });
