//! A request that is with the inner service.

use std::sync::Arc;

use crate::limiter::{Limiter, Receipt, Reply};
use crate::observe::Event;
use crate::settings::Settings;
use crate::tariff::Tariff;

/// What to settle when the service has answered.
pub(crate) struct Bill<Key, K, A, R, T> {
    pub(crate) settings: Arc<Settings<K, A, R, T>>,
    pub(crate) key: Key,
    pub(crate) receipt: Receipt,
}

impl<Key, K, A, R, T> Bill<Key, K, A, R, T> {
    /// Settles, and says if that is still going on.
    pub(crate) fn settle<Request, Response, Error>(self, answer: Result<&Response, &Error>) -> Option<Reply<()>>
    where
        A: Limiter<Key>,
        T: Tariff<Request, Response, Error>,
    {
        let charged = self.receipt.cost();
        let actual = self.settings.tariff.settle(charged, answer);
        if actual == charged {
            return None;
        }
        self.settings.observers.tell(|| Event::Settled { charged, actual });
        // A store that can't note it now leaves the charge as it was: the response is not held up for that.
        self.settings.limiter.settle(&self.key, self.receipt, actual).try_ready().err()
    }
}
