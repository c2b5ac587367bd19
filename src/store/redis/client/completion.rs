use crate::decision::Decision;
use crate::error::Error;
use crate::store::redis::holds::Grant;

/// The result of one operation.
pub(crate) type OperationResult = Result<Completion, Error>;

pub(crate) enum Completion {
    /// A decision, and the hold that it granted.
    Decided(Decision, Option<Grant>),
    /// The server does not know a session any more, so nothing is held. A retry creates a new session.
    SessionExpired,
    /// An operation without a value has succeeded.
    Done,
}
