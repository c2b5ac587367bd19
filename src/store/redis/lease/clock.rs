use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::clock::{Clock, Timestamp, micros_floor};

/// The monotonic clock by which a process spends, in microseconds since the epoch: the time at its creation, plus the
/// monotonic time since then. No adjustment of the system time changes it.
pub(crate) enum LeaseClock {
    Monotonic { anchor: Instant, anchor_time: Timestamp },
    ForTests(Arc<dyn Clock>),
}

impl LeaseClock {
    pub(crate) fn new(for_tests: Option<Arc<dyn Clock>>) -> Self {
        for_tests.map_or_else(Self::monotonic, Self::ForTests)
    }

    /// Reads both clocks. If the thread is suspended between the readings, it tries again.
    fn monotonic() -> Self {
        const MAX_APART: Duration = Duration::from_micros(20);
        let mut tries = 0;
        loop {
            let anchor = Instant::now();
            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            tries += 1;
            if anchor.elapsed() <= MAX_APART || tries == 20 {
                return Self::Monotonic { anchor, anchor_time: Timestamp::from_micros(micros_floor(unix)) };
            }
        }
    }

    pub(super) fn now(&self) -> u64 {
        match self {
            Self::Monotonic { anchor, anchor_time } => anchor_time.saturating_add(anchor.elapsed()).as_micros(),
            Self::ForTests(clock) => clock.now().as_micros(),
        }
    }
}
