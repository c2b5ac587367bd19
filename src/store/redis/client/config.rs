use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use crate::clock::Clock;
use crate::store::redis::conflicts::Registration;
use crate::store::redis::health::ServerHealth;
use crate::store::redis::holds::HoldRegistry;
use crate::store::redis::script::{LimitInfo, Script};

/// The configuration and state that all worker tasks of a limiter share.
pub(crate) struct ClientConfig {
    pub(crate) health: Arc<ServerHealth>,
    pub(crate) deadline: Duration,
    pub(crate) limits: Vec<LimitInfo>,
    pub(crate) script: Script,
    pub(crate) holds: Arc<HoldRegistry>,
    /// For tests: replaces the server's clock.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    /// Registers this limiter for the conflict warnings of other limiters.
    pub(crate) _registration: Arc<Registration>,
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
