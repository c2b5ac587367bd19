use std::mem;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;

use super::body::ReadAheadBody;
use super::bounds::Bounds;
use super::drain::Drain;
use super::service::is_left_alone;
use super::unread::{ReadEnd, Unread};
use crate::sync::{Mutex, MutexGuard};

/// What a reader and its body share: `None` once the body has been polled, or has been dropped and is not to be discarded.
///
/// The lock is held while the body is polled. So the body never sees two polls at a time, and the service that polls
/// next replaces the waker that the reader has left in the body: no wake-up is lost.
pub(super) struct Shared<B: Body<Data = Bytes>> {
    unread: Mutex<Option<Unread<B>>>,
    drain: Option<Drain>,
}

impl<B: Body<Data = Bytes>> Shared<B> {
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Unread<B>>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the body, or keeps it for [`Reader::discard`].
    pub(super) fn drop_body(&self) {
        let mut unread = self.lock();
        match &mut *unread {
            Some(unread) if self.drain.is_some() => unread.is_dropped = true,
            _ => {
                let dropped = unread.take();
                drop(unread);
                drop(dropped);
            }
        }
    }
}

/// Reads a body ahead of the service that has received it.
pub(super) struct Reader<B: Body<Data = Bytes>>(Arc<Shared<B>>);

impl<B: Body<Data = Bytes>> Reader<B> {
    /// Returns a reader of the body, and the body for the service.
    pub(super) fn new(body: B, bounds: &Bounds, drain: Option<Drain>) -> (Self, ReadAheadBody<B>) {
        let shared = Arc::new(Shared { unread: Mutex::new(Some(Unread::new(body, bounds))), drain });
        (Self(Arc::clone(&shared)), ReadAheadBody::shared(shared))
    }

    /// Reads what the body has ready. The task is woken when there is more, unless the service has begun to read.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<ReadEnd> {
        match &mut *self.0.lock() {
            Some(unread) if !unread.is_dropped => unread.poll_read_ahead(cx),
            _ => Poll::Ready(ReadEnd::Stopped),
        }
    }

    /// Discards the body of a request that was rejected, if the service has dropped it unread.
    pub(super) fn discard<T>(&self, response: &Response<T>)
    where
        B: Send + 'static,
    {
        let Some(drain) = &self.0.drain else { return };
        let dropped = self.0.lock().take_if(|unread| unread.is_dropped);
        if let Some(unread) = dropped.filter(|_| Drain::applies_to(response)) {
            drain.discard(unread.rest);
        }
    }
}

/// Polls a [`Reader`] of any body.
pub(crate) struct BodyReader(Box<dyn Fn(&mut Context<'_>) -> Poll<ReadEnd> + Send + Sync>);

impl BodyReader {
    /// Makes the body of the request one that is read ahead. Returns `None` if the request is left alone.
    #[cfg_attr(not(any(feature = "axum", feature = "tonic")), allow(dead_code, reason = "no body type is known"))]
    pub(super) fn of_request<B>(request: &mut Request<B>, bounds: &Bounds) -> Option<Self>
    where
        B: Body<Data = Bytes, Error: Send> + Default + From<ReadAheadBody<B>> + Send + 'static,
    {
        if is_left_alone(request) {
            return None;
        }
        let (reader, body) = Reader::new(mem::take(request.body_mut()), bounds, None);
        *request.body_mut() = body.into();
        Some(Self(Box::new(move |cx| reader.poll(cx))))
    }

    /// Reads what the body has ready. The task is woken when there is more.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<ReadEnd> {
        (self.0)(cx)
    }
}
