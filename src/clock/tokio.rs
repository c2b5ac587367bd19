use tokio::time::Instant;

use super::{Clock, SystemClock, Timestamp};

/// Tokio's clock: a [`SystemClock`] that follows `tokio::time::pause` and `tokio::time::advance`.
///
/// Use it in tests of requests that wait, which then take no real time.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    anchor: Instant,
    anchor_time: Timestamp,
}

impl TokioClock {
    /// Anchors a clock at the current system time.
    pub fn new() -> Self {
        Self { anchor: Instant::now(), anchor_time: SystemClock::new().now() }
    }
}

impl_default!(TokioClock);

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        self.anchor_time.saturating_add(self.anchor.elapsed())
    }
}
