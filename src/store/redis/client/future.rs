use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;
use tokio::sync::oneshot;

use super::completion::{Completion, OperationResult};
use super::config::ClientConfig;
use crate::decision::Decision;
use crate::error::Error;
use crate::limiter::LimiterFuture;
use crate::store::inner::runtime::Sleep;

/// The result of a queued operation, or an error at the deadline.
#[pin_project]
pub(super) struct PendingReply {
    #[pin]
    reply: oneshot::Receiver<OperationResult>,
    #[pin]
    timer: Sleep,
    config: Arc<ClientConfig>,
}

impl PendingReply {
    pub(super) fn new(reply: oneshot::Receiver<OperationResult>, timer: Sleep, config: Arc<ClientConfig>) -> Self {
        Self { reply, timer, config }
    }

    /// Returns the decision of the reply.
    ///
    /// If the future is dropped before the decision was sent, nothing is charged. After that it may have been charged.
    pub(super) fn into_decision<T: From<Decision> + Send + 'static>(self) -> LimiterFuture<T> {
        LimiterFuture::pending(async move {
            match self.await? {
                Completion::Decided(decision, _) => Ok(decision.into()),
                Completion::SessionExpired | Completion::Repeated(_) | Completion::Done => Err(reply_lost()),
            }
        })
    }
}

impl Future for PendingReply {
    type Output = OperationResult;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<OperationResult> {
        let mut this = self.project();
        if let Poll::Ready(result) = this.reply.as_mut().poll(cx) {
            return Poll::Ready(result.unwrap_or_else(|_| Err(reply_lost())));
        }
        ready!(this.timer.poll(cx));
        // Cancels the operation if it was not sent yet, even if the caller keeps this future: a failed decision is not
        // charged later.
        this.reply.close();
        // The result may have arrived between the two polls.
        let late = |_| Err(Error::unavailable(this.config.timeout_message()));
        Poll::Ready(this.reply.try_recv().unwrap_or_else(late))
    }
}

/// The worker task ended before it completed the operation.
pub(super) fn reply_lost() -> Error {
    Error::unavailable(
        "the call to Redis was lost: its worker task ended, and the cost may have been charged; see the log for a \
         panic message",
    )
}
