//! The settlement of a held cost after the service has responded.

use std::sync::Arc;

use super::config::ConfigOf;
use super::cost::CostPolicy as _;
use super::parts::Parts;
use crate::limiter::{Held, LimiterFuture};
use crate::observe::Event;

/// The held cost of a forwarded request.
///
/// Dropped before the service has responded, it settles the whole held cost: the guard does that when it is dropped.
pub(crate) struct PendingSettlement<Request, P: Parts<Request>> {
    config: Arc<ConfigOf<Request, P>>,
    held: Option<Held>,
}

impl<Request, P: Parts<Request>> PendingSettlement<Request, P> {
    pub(crate) fn new(config: Arc<ConfigOf<Request, P>>, held: Held) -> Self {
        Self { config, held: Some(held) }
    }

    /// Settles the actual cost. Returns the future if the store is still recording it.
    pub(crate) fn settle(mut self, result: Result<&P::InnerResponse, &P::InnerError>) -> Option<LimiterFuture<()>> {
        let held = self.held.take()?;
        let actual = self.config.cost_policy.settle(held.cost(), result);
        self.config.observers.emit(|| Event::Settled { held: held.cost(), actual });
        // An error is ignored: the hold then expires in the store, and the response does not depend on it.
        held.settle(actual).try_ready().err()
    }
}

impl<Request, P: Parts<Request>> Drop for PendingSettlement<Request, P> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let cost = held.cost();
            self.config.observers.emit(|| Event::Settled { held: cost, actual: cost });
        }
    }
}
