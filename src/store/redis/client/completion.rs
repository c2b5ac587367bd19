use super::operation::QueuedOperation;
use crate::decision::Decision;
use crate::error::Error;
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
    /// An operation without a value has succeeded.
    Done,
}

/// Operations of a call whose callers receive their results a little later than the others: at the latest when this is
/// dropped.
#[derive(Default)]
pub(super) struct DelayedResults(Vec<(QueuedOperation, OperationResult)>);

impl DelayedResults {
    pub(super) fn push(&mut self, operation: QueuedOperation, result: OperationResult) {
        self.0.push((operation, result));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Answers the callers.
    pub(super) fn complete(&mut self) {
        for (operation, result) in self.0.drain(..) {
            operation.complete(result);
        }
    }
}

impl Drop for DelayedResults {
    fn drop(&mut self) {
        self.complete();
    }
}
