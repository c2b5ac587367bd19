use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Clock, Timestamp, micros_floor};

/// A clock that only the caller advances, for testing limits without sleeping.
///
/// Clones share one time.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{AcquireOptions, FixedWindow, Limiter, ManualClock, Memory, Quota};
///
/// let clock = ManualClock::new();
/// let limiter = Memory::builder(FixedWindow::new(Quota::per_minute(1))).clock(clock.clone()).build()?;
///
/// let mut allowed = || limiter.check("a key", AcquireOptions::default()).is_allowed();
/// assert!(allowed());
/// assert!(!allowed());
/// clock.advance(Duration::from_secs(60));
/// assert!(allowed());
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: Arc<AtomicU64>,
}

impl ManualClock {
    /// The time of a new manual clock: 2020-01-01T00:00:00Z, when windows aligned to the clock start.
    pub const START: Timestamp = Timestamp(1_577_836_800_000_000);

    /// Creates a clock at [`START`](Self::START).
    pub fn new() -> Self {
        Self::at(Self::START)
    }

    /// Creates a clock at `now`.
    pub fn at(now: Timestamp) -> Self {
        Self { now: Arc::new(AtomicU64::new(now.0)) }
    }

    /// Advances the clock. A fraction of a microsecond is dropped.
    pub fn advance(&self, span: Duration) {
        let micros = micros_floor(span);
        // The update cannot fail, because the closure always returns `Some`.
        let _ = self.now.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| Some(now.saturating_add(micros)));
    }

    /// Sets the clock to `now`, which may be earlier than the current time.
    pub fn set(&self, now: Timestamp) {
        self.now.store(now.0, Ordering::Release);
    }
}

impl_default!(ManualClock);

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::Acquire))
    }
}
