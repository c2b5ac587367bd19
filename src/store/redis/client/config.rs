use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, SystemClock, Timestamp};
use crate::store::redis::health::ServerHealth;
use crate::store::redis::holds::HoldRegistry;

/// The configuration and state that all worker tasks of a limiter share. They outlive a replacement of the limits.
#[derive(Clone)]
pub(crate) struct ClientConfig {
    pub(crate) health: Arc<ServerHealth>,
    pub(crate) deadline: Duration,
    pub(crate) holds: Arc<HoldRegistry>,
    /// For tests: replaces the server's clock.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) server_clock: ServerClock,
}

impl ClientConfig {
    /// Returns the message of a call without a reply.
    pub(super) fn timeout_message(&self) -> String {
        format!(
            "the call to Redis ({}) failed: no reply within the deadline of {:?}, and the cost may have been charged, or be \
             held until the hold expires; raise `deadline` or check the server",
            self.health.server.describe(),
            self.deadline
        )
    }
}

/// An estimate of the server's time, for the windows of calendars.
#[derive(Clone, Default)]
pub(crate) struct ServerClock {
    /// By how many microseconds the server's clock is ahead, as the last reply said that contradicted the estimate.
    ahead: Arc<AtomicI64>,
}

impl ServerClock {
    pub(super) fn now(&self) -> Timestamp {
        let now = SystemClock::new().now().as_micros();
        Timestamp::from_micros(now.saturating_add_signed(self.ahead.load(Ordering::Relaxed)))
    }

    /// Sets the server's time.
    pub(super) fn set(&self, now: Timestamp) {
        let own = SystemClock::new().now().as_micros();
        self.ahead.store(now.as_micros().wrapping_sub(own).cast_signed(), Ordering::Relaxed);
    }
}
