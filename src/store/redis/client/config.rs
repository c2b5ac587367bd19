use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
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
}

impl ClientConfig {
    pub(crate) fn timeout_message(&self) -> String {
        format!(
            "the call to Redis ({}) failed: no reply within the deadline of {:?}, and the cost may have been charged; \
             raise `deadline` or check the server",
            self.health.server.describe(),
            self.deadline
        )
    }
}
