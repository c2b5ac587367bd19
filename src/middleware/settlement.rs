//! A request that is with the inner service, and whose actual cost the response tells.

use std::sync::Arc;

use super::config::Settings;
use super::cost::CostPolicy;
use crate::limiter::{Held, LimiterFuture};
use crate::observe::Event;

/// What to settle when the service has responded. Dropped before, it settles the whole held cost.
pub(crate) struct Bill<K, A, R, T> {
    settings: Arc<Settings<K, A, R, T>>,
    held: Option<Held>,
}

impl<K, A, R, T> Bill<K, A, R, T> {
    pub(crate) fn new(settings: Arc<Settings<K, A, R, T>>, held: Held) -> Self {
        Self { settings, held: Some(held) }
    }

    /// Settle, and returns the reply if the store is still recording it.
    pub(crate) fn settle<Request, Response, Error>(
        mut self,
        answer: Result<&Response, &Error>,
    ) -> Option<LimiterFuture<()>>
    where
        T: CostPolicy<Request, Response, Error>,
    {
        let held = self.held.take()?;
        let actual = self.settings.tariff.settle(held.cost(), answer);
        self.settings.observers.emit(|| Event::Settled { held: held.cost(), actual });
        // If the store cannot record it now, the hold expires there: the response does not wait for that.
        held.settle(actual).try_ready().err()
    }
}

impl<K, A, R, T> Drop for Bill<K, A, R, T> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let cost = held.cost();
            self.settings.observers.emit(|| Event::Settled { held: cost, actual: cost });
        }
    }
}
