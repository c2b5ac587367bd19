//! What the layer, its services and their futures share.

use std::fmt;

use tower_service::Service;

use crate::decision::Ask;
use crate::error::Error;
use crate::limiter::Outcome;
use crate::response::{Admission, Refusal, Respond};

#[derive(Clone)]
pub(crate) struct Settings<K, A, R> {
    pub(crate) key: K,
    pub(crate) limiter: A,
    pub(crate) responder: R,
    pub(crate) missing: WhenMissing,
}

/// What becomes of a request that should have a key and has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenMissing {
    /// It is refused: in HTTP with status 400, or 500 where the server is at fault.
    #[default]
    Refuse,
    /// It is let through under no limit. Whoever can leave the key out can then lift the limit.
    Exempt,
}

impl<K, A, R> Settings<K, A, R> {
    pub(crate) fn ask<Request, S>(&self) -> Ask
    where
        S: Service<Request>,
        R: Respond<Request, S::Response, S::Error>,
    {
        let mut ask = Ask::default();
        ask.every_limit = self.responder.wants_every_limit();
        ask
    }
}

/// What a limiter's answer means for a request.
#[inline]
pub(crate) fn judge(result: Result<Outcome, Error>) -> Result<Admission, Refusal> {
    match result {
        Ok(outcome) if outcome.decision.is_allowed() => Ok(Admission::Decided(outcome.decision)),
        Ok(outcome) => Err(Refusal::Limited(outcome.decision)),
        Err(error) => Err(Refusal::Unavailable(error)),
    }
}

impl<K, A, R> fmt::Debug for Settings<K, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("missing", &self.missing).finish_non_exhaustive()
    }
}
