use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use crate::clock::Clock;
use crate::store::redis::health::ServerHealth;
use crate::store::redis::holds::HoldRegistry;
use crate::store::redis::script::Script;

/// The configuration and state that all worker tasks of a limiter share. They outlive a replacement of the limits.
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

/// The command that loads a script into the server's cache. Probes send it.
pub(crate) fn script_load(script: &Script) -> Cmd {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(script.text());
    load
}
