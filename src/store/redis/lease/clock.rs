use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::clock::{Clock, Timestamp, micros_floor};

/// The monotonic clock by which a process spends, in microseconds since the epoch: the time at its creation, plus the
/// monotonic time since then. No adjustment of the system time changes it.
pub(crate) enum LeaseClock {
    Monotonic { anchor: Instant, anchor_time: Timestamp },
    ForTests(Arc<dyn Clock>),
}

impl LeaseClock {
    pub(crate) fn new(for_tests: Option<Arc<dyn Clock>>) -> Self {
        for_tests.map_or_else(
            || {
                let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let anchor_time = Timestamp::from_micros(micros_floor(unix));
                Self::Monotonic { anchor: Instant::now(), anchor_time }
            },
            Self::ForTests,
        )
    }

    pub(super) fn now(&self) -> u64 {
        match self {
            Self::Monotonic { anchor, anchor_time } => anchor_time.saturating_add(anchor.elapsed()).as_micros(),
            Self::ForTests(clock) => clock.now().as_micros(),
        }
    }
}
