use tokio::time::Instant;

use super::{Clock, SystemClock, Timestamp};

/// Tokio's clock: as [`SystemClock`], but it stands still and is advanced as tokio's time is in tests
/// (`tokio::time::pause`), so that waiting can be tested without waiting.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    anchor: Instant,
    anchored_at: Timestamp,
}

impl TokioClock {
    /// Anchors a clock at the system's present time.
    #[must_use]
    pub fn new() -> Self {
        Self { anchor: Instant::now(), anchored_at: SystemClock::new().now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        self.anchored_at.saturating_add(self.anchor.elapsed())
    }
}
