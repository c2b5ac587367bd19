use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::{Clock, Timestamp, micros_floor};

/// The system's clock: Unix time at its creation, plus the monotonic time since then.
///
/// Later adjustments of the system time do not change this clock, so they cannot lift or lengthen a limit. Windows
/// aligned to the clock, and header fields in epoch seconds, follow the Unix time that the clock read at its
/// creation.
///
/// On processors with a reliable time stamp counter the clock reads that counter, at a third of the cost of the
/// monotonic clock. It recalibrates against the monotonic clock every ten seconds, so that it does not drift. The
/// first clock of a process measures the counter's frequency, which takes up to a fifth of a second. Clones share one
/// calibration.
#[derive(Clone)]
pub struct SystemClock {
    counter: quanta::Clock,
    state: Arc<ClockState>,
}

/// The calibration, protected by a sequence lock.
///
/// A reader that finds an odd or changed version may have read a counter and a time of two calibrations, which would be
/// wrong by up to [`RECALIBRATE_EVERY`]. Such a reader takes the slow path.
struct ClockState {
    /// Odd while a thread writes `counter_anchor` and `micros`.
    version: AtomicU64,
    counter_anchor: AtomicU64,
    /// The time at `counter_anchor`.
    micros: AtomicU64,
    anchor: Instant,
    /// The time at `anchor`.
    anchor_time: Timestamp,
}

/// In nanoseconds.
const RECALIBRATE_EVERY: u64 = 10_000_000_000;

impl SystemClock {
    /// Creates a clock at the current system time; a time before 1970 counts as 1970.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let anchor_time = Timestamp::from_micros(micros_floor(unix));
        let state = ClockState {
            version: AtomicU64::new(0),
            counter_anchor: AtomicU64::new(counter.raw()),
            micros: AtomicU64::new(anchor_time.as_micros()),
            anchor: Instant::now(),
            anchor_time,
        };
        Self { counter, state: Arc::new(state) }
    }

    /// Reads the monotonic clock, and stores it as the new calibration unless another thread is doing so.
    #[cold]
    fn recalibrate(&self) -> Timestamp {
        let state = &*self.state;
        let now = state.anchor_time.saturating_add(state.anchor.elapsed());
        let counter = self.counter.raw();
        let version = state.version.load(Ordering::Acquire);
        let is_locked = version & 1 == 0
            && state.version.compare_exchange(version, version + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_locked {
            state.counter_anchor.store(counter, Ordering::Release);
            state.micros.store(now.as_micros(), Ordering::Release);
            state.version.store(version + 2, Ordering::Release);
        }
        now
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let state = &*self.state;
        let version = state.version.load(Ordering::Acquire);
        let counter_anchor = state.counter_anchor.load(Ordering::Acquire);
        let micros = state.micros.load(Ordering::Acquire);
        let elapsed = self.counter.delta_as_nanos(counter_anchor, self.counter.raw());
        if elapsed > RECALIBRATE_EVERY || version & 1 == 1 || state.version.load(Ordering::Acquire) != version {
            return self.recalibrate();
        }
        Timestamp::from_micros(micros + elapsed / 1_000)
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SystemClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemClock").field("now", &self.now()).finish()
    }
}
