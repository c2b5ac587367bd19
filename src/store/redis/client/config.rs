use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::observe::{Event, Observers};
use crate::store::redis::client::trade::Trade;
use crate::store::redis::conflicts::Presence;
use crate::store::redis::health::node::{Lane, Lanes};
use crate::store::redis::health::probe;
use crate::store::redis::server::RedisServer;

/// The configuration and the state that all lines of a limiter share.
pub(crate) struct Core<T> {
    pub(crate) name: String,
    pub(crate) server: RedisServer,
    pub(crate) trade: T,
    pub(crate) lanes: Lanes,
    pub(crate) deadline: Duration,
    /// The prefix of all keys.
    pub(crate) prefix: String,
    pub(crate) observers: Observers,
    /// Registers this limiter for the other limiters of this process that have the same name.
    pub(crate) _presence: Option<Arc<Presence>>,
}

impl<T> Core<T> {
    /// Records that a lane's server has answered.
    pub(crate) fn succeeded(&self, lane: &Lane) {
        if lane.breaker.success() {
            self.tell(|| Event::Breaker { store: &self.name, error: None });
        }
    }

    /// Emits an event for a call with `orders` operations, if it was observed when it began.
    pub(crate) fn called(&self, orders: usize, began: Option<std::time::Instant>, error: Option<&Error>) {
        if let Some(began) = began {
            self.tell(|| Event::Batch { store: &self.name, size: orders, elapsed: began.elapsed(), error });
        }
    }

    /// Emits an event. A panic of an observer ends here: the task that calls this carries the calls of many requests.
    fn tell<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        // The panic hook has reported the panic.
        let _ = catch_unwind(AssertUnwindSafe(|| self.observers.emit(event)));
    }
}

impl<T: Trade> Core<T> {
    /// Records that a lane's server has not answered what began at `began`. If that opens the breaker, a probe starts at once.
    ///
    /// A runtime that can't connect is no failure of the server: other runtimes may use the same limiter.
    pub(crate) fn failed(self: &Arc<Self>, lane: &Arc<Lane>, began: Instant, error: &Error) {
        if !error.is_config() && lane.breaker.failure(began, error) {
            probe::start(self, lane);
            self.tell(|| Event::Breaker { store: &self.name, error: Some(error) });
        }
    }
}
