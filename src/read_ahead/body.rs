use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::reader::Shared;
use super::unread::{Remainder, Unread};

/// A request body of which a [`ReadAheadLayer`](crate::ReadAheadLayer) may have read the first frames.
///
/// It returns the frames, the errors, the size hints and the end of the body unchanged. The layer reads nothing more
/// once the body has been polled or dropped, unless it discards the body: see `drain_rejected`.
pub struct ReadAheadBody<B: Body<Data = Bytes>>(Source<B>);

enum Source<B: Body<Data = Bytes>> {
    /// The layer may read, unless it has left the body alone. The body has not been polled.
    Shared(Arc<Shared<B>>),
    /// The service has polled the body.
    Own(Unread<B>),
}

impl<B: Body<Data = Bytes>> ReadAheadBody<B> {
    pub(super) fn shared(shared: Arc<Shared<B>>) -> Self {
        Self(Source::Shared(shared))
    }

    fn remainder(&self) -> Remainder {
        let ended = Remainder { is_end_stream: true, size_hint: SizeHint::with_exact(0) };
        match &self.0 {
            Source::Shared(shared) => shared.lock().as_ref().map_or(ended, Unread::remainder),
            Source::Own(unread) => unread.remainder(),
        }
    }
}

/// No field is pinned in place: the body is in a box.
impl<B: Body<Data = Bytes>> Unpin for ReadAheadBody<B> {}

impl<B: Body<Data = Bytes>> Body for ReadAheadBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        if let Source::Shared(shared) = &this.0 {
            // Ends the reading by the layer.
            let unread = shared.lock().take();
            if let Some(unread) = unread {
                this.0 = Source::Own(unread);
            }
        }
        match &mut this.0 {
            Source::Own(unread) => unread.poll_frame(cx),
            // Cannot happen: only this body takes the unread part.
            Source::Shared(_) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.remainder().is_end_stream
    }

    fn size_hint(&self) -> SizeHint {
        self.remainder().size_hint
    }
}

/// Drops the body at once, as without the layer: the layer's future may live on. A body that may be discarded is dropped
/// with the response.
impl<B: Body<Data = Bytes>> Drop for ReadAheadBody<B> {
    fn drop(&mut self) {
        if let Source::Shared(shared) = &self.0 {
            shared.drop_body();
        }
    }
}

impl_debug!([B: Body<Data = Bytes>] ReadAheadBody<B> |body| { size_hint: body.size_hint() });
