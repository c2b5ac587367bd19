use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::{Clock, Timestamp, micros_floor};

/// The system's clock: Unix time, read once when the clock is made, and from then on the monotonic clock.
///
/// Windows that are aligned to the clock, and header fields in epoch seconds, follow Unix time as it was at that
/// moment; no later adjustment of the system's time can lift or lengthen a limit.
///
/// Where the processor's time stamp counter can be trusted it is what is read, as reading it costs a third; every ten
/// seconds it is set by the monotonic clock anew, so that it does not drift. Making the first clock of a process measures
/// the counter's frequency, for up to a fifth of a second. Clones are one clock.
#[derive(Clone)]
pub struct SystemClock {
    counter: quanta::Clock,
    shared: Arc<Shared>,
}

struct Shared {
    /// Even when `counted` and `micros` belong together, odd while they are being set.
    version: AtomicU64,
    counted: AtomicU64,
    micros: AtomicU64,
    started: Instant,
    started_at: Timestamp,
}

/// For how long the counter is believed, in nanoseconds.
const TRUSTED_FOR: u64 = 10_000_000_000;

impl SystemClock {
    /// Anchors a clock at the system's present time.
    ///
    /// A system time before 1970 counts as 1970.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_at = Timestamp::from_micros(micros_floor(unix));
        let shared = Shared {
            version: AtomicU64::new(0),
            counted: AtomicU64::new(counter.raw()),
            micros: AtomicU64::new(started_at.as_micros()),
            started: Instant::now(),
            started_at,
        };
        Self { counter, shared: Arc::new(shared) }
    }

    /// Sets the counter by the monotonic clock, unless somebody else is about to.
    #[cold]
    fn set_anew(&self) -> Timestamp {
        let shared = &*self.shared;
        let now = shared.started_at.saturating_add(shared.started.elapsed());
        let counted = self.counter.raw();
        let version = shared.version.load(Ordering::Acquire);
        let taken = version & 1 == 0
            && shared.version.compare_exchange(version, version + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if taken {
            shared.counted.store(counted, Ordering::Release);
            shared.micros.store(now.as_micros(), Ordering::Release);
            shared.version.store(version + 2, Ordering::Release);
        }
        now
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let shared = &*self.shared;
        let version = shared.version.load(Ordering::Acquire);
        let counted = shared.counted.load(Ordering::Acquire);
        let micros = shared.micros.load(Ordering::Acquire);
        let elapsed = self.counter.delta_as_nanos(counted, self.counter.raw());
        if elapsed > TRUSTED_FOR || version & 1 == 1 || shared.version.load(Ordering::Acquire) != version {
            return self.set_anew();
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
