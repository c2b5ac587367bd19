//! The guard of a request in flight, and the response body that keeps it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Extensions;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use crate::limiter::Held;

/// Keeps a request in flight, for a limit on requests [in flight](crate::InFlight).
///
/// A layer with [`release_on_body_end`](crate::RateLimitLayer::release_on_body_end) inserts a guard into the extensions
/// of each request that such a limit has allowed. The request is in flight until the response's body has ended and the
/// last clone of the guard is dropped.
///
/// Handlers of an upgrade (WebSocket) move a clone into the task that serves the connection, because the response of an
/// upgrade has no body. All other handlers ignore the guard: it is dropped with the request. A request that no such limit
/// has counted has no guard: one that is exempt, for example, or that [`FailOpen`](crate::limiter::FailOpen) has allowed.
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use tower_ratelimit::{InFlight, InFlightGuard, Memory, PeerIp, RateLimitLayer};
///
/// async fn upgrade(guard: Option<Extension<InFlightGuard>>) {
///     // In production, in the callback of `WebSocketUpgrade::on_upgrade`.
///     tokio::spawn(async move {
///         // ... serve the connection ...
///         drop(guard);
///     });
/// }
///
/// let layer = RateLimitLayer::new(PeerIp::new(), Memory::new(InFlight::new(2))).release_on_body_end();
/// let app: Router = Router::new().route("/socket", get(upgrade)).layer(layer);
/// ```
#[derive(Clone)]
#[must_use = "dropping the last guard ends the request"]
pub struct InFlightGuard {
    /// Dropping it releases the held cost.
    held: Arc<Held>,
    /// The guard of a layer around this one, if the guard is in the extensions of a request.
    _outer: Option<Arc<InFlightGuard>>,
}

impl InFlightGuard {
    pub(crate) fn new(held: Held) -> Self {
        Self { held: Arc::new(held), _outer: None }
    }

    /// Inserts a clone. It contains the guard that a layer around this one has inserted.
    pub(super) fn insert_into(&self, extensions: &mut Extensions) {
        let outer = extensions.remove::<Self>().map(Arc::new);
        extensions.insert(Self { held: Arc::clone(&self.held), _outer: outer });
    }
}

impl_debug!(InFlightGuard {});

/// A response body whose request is in flight until the body has ended or is dropped.
///
/// The response body of a service behind a layer with
/// [`release_on_body_end`](crate::RateLimitLayer::release_on_body_end).
#[pin_project]
#[derive(Debug)]
pub struct InFlightBody<B> {
    #[pin]
    body: B,
    guard: Option<InFlightGuard>,
}

impl<B> InFlightBody<B> {
    pub(super) fn new(body: B, guard: Option<InFlightGuard>) -> Self {
        Self { body, guard }
    }
}

impl<B: Body> Body for InFlightBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        // A server does not poll a body again that says that it has ended, and may drop it much later.
        if !matches!(frame, Some(Ok(_))) || this.body.is_end_stream() {
            *this.guard = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a rejection by a layer around this one.
impl<B: From<Bytes>> From<Bytes> for InFlightBody<B> {
    fn from(bytes: Bytes) -> Self {
        Self::new(B::from(bytes), None)
    }
}

/// The default body of the inner service.
impl<B: Default> Default for InFlightBody<B> {
    fn default() -> Self {
        Self::new(B::default(), None)
    }
}
