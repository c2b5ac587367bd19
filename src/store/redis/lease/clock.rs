use std::sync::Arc;

use crate::clock::{Clock, SystemClock};

/// The clock by which a process spends, in microseconds since the epoch.
///
/// No adjustment of the system time changes a [`SystemClock`]. It reads a hardware counter, and is within microseconds of
/// the monotonic clock. The processor may read the counter some instructions early or late, beside the atomic operations
/// of a slot. Both are far below the margin, which is at least 1 ms.
#[derive(Clone)]
pub(crate) enum LeaseClock {
    System(SystemClock),
    ForTests(Arc<dyn Clock>),
}

impl LeaseClock {
    pub(crate) fn new(for_tests: Option<Arc<dyn Clock>>) -> Self {
        for_tests.map_or_else(|| Self::System(SystemClock::new()), Self::ForTests)
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        match self {
            Self::System(clock) => clock.now().as_micros(),
            Self::ForTests(clock) => clock.now().as_micros(),
        }
    }
}
