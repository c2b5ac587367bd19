use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;

use futures_util::future::{Either, select};
use redis::Value;
use tokio::sync::oneshot;

use super::operation::QueuedOperation;
use crate::decision::Decision;
use crate::error::Error;
use crate::store::inner::runtime::Sleep;
use crate::store::redis::holds::Grant;
use crate::store::redis::script::Repeated;

/// The result of one operation.
pub(crate) type OperationResult = Result<Completion, Error>;

pub(crate) enum Completion {
    /// A decision, and the hold that it granted.
    Decided(Decision, Option<Grant>),
    /// The server does not know a session any more, so nothing is held. A retry creates a new session.
    SessionExpired,
    /// The request repeats an id, and is not decided yet.
    Repeated(Repeated),
    /// The reply to a command.
    #[cfg_attr(not(feature = "redis-cell"), allow(dead_code, reason = "only `RedisCell` sends commands"))]
    Replied(Value),
    /// An operation without a value has succeeded.
    Done,
}

/// Operations that have ended, and their results, whose callers the worker task has not answered yet. All are answered when
/// this is dropped.
#[derive(Default)]
pub(super) struct Answers(pub(super) VecDeque<(QueuedOperation, OperationResult)>);

impl Answers {
    /// Answers at most this number of callers.
    pub(super) fn complete(&mut self, count: usize) {
        for (operation, result) in self.0.drain(..count.min(self.0.len())) {
            operation.complete(result);
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.complete(usize::MAX);
    }
}

/// Waits for an operation, or until the deadline, and then returns an error with this message.
///
/// The operation is dropped at the end, also if the caller keeps the returned future. That cancels an operation that was
/// not sent yet, so a failed decision is not charged later. If it was sent, the grant in its reply releases the cost.
pub(crate) async fn by_deadline<T>(
    operation: impl Future<Output = Result<T, Error>>,
    timer: Sleep,
    message: impl FnOnce() -> String,
) -> Result<T, Error> {
    match select(pin!(operation), pin!(timer)).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => Err(Error::unavailable(message())),
    }
}

/// Waits for the result of a queued operation.
pub(super) async fn reply_of(reply: oneshot::Receiver<OperationResult>) -> OperationResult {
    reply.await.unwrap_or_else(|_| Err(reply_lost()))
}

/// The worker task ended before it completed the operation.
pub(crate) fn reply_lost() -> Error {
    Error::unavailable(
        "the call to Redis was lost: its worker task ended, and the cost may have been charged; see the log for a \
         panic message",
    )
}
