use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::calibration::Calibration;
use super::{Clock, Timestamp, micros_floor};

/// The system's clock: Unix time at its creation, plus the monotonic time since then.
///
/// Later adjustments of the system time do not change this clock, so they cannot lift or lengthen a limit. Windows
/// aligned to the clock, and header fields in epoch seconds, follow the Unix time that the clock read at its
/// creation.
///
/// On processors with a reliable time stamp counter the clock reads that counter, at a third of the cost of the
/// monotonic clock. About once a second a reading compares both clocks, and the counter continues at the monotonic
/// time. So the distance between them is what the counter drifts in a second: microseconds, if the first clock of the
/// process measured the frequency undisturbed. The time never steps back. If the counter was ahead, the time stands
/// still until the monotonic clock has caught up; after a suspension of the machine, for up to a second.
///
/// The first clock of a process measures the counter's frequency, which takes up to a fifth of a second. Clones share
/// one calibration.
#[derive(Clone)]
pub struct SystemClock {
    counter: quanta::Clock,
    state: Arc<ClockState>,
}

struct ClockState {
    calibration: Calibration,
    anchor: Instant,
    /// The time at `anchor`.
    anchor_time: Timestamp,
}

/// One for the process: to ask the processor for a reliable counter takes 50 us in a virtual machine. The rest of a new
/// clock takes 0.15 us.
static COUNTER: LazyLock<quanta::Clock> = LazyLock::new(quanta::Clock::new);

impl SystemClock {
    /// Creates a clock at the current system time; a time before 1970 counts as 1970.
    pub fn new() -> Self {
        /// The number of ticks whose time the calibration takes as exact: at a gigahertz, some twenty minutes.
        const TICKS: u64 = 1 << 40;
        /// A thread that is suspended between the three readings would make this clock late.
        const MAX_APART: Duration = Duration::from_micros(20);
        let counter = COUNTER.clone();
        let mut tries = 0;
        let (anchor, raw, unix) = loop {
            let (anchor, raw, unix) = (Instant::now(), counter.raw(), SystemTime::now());
            tries += 1;
            if anchor.elapsed() <= MAX_APART || tries == 20 {
                break (anchor, raw, unix);
            }
        };
        let anchor_time = Timestamp::from_micros(micros_floor(unix.duration_since(UNIX_EPOCH).unwrap_or_default()));
        let nanos = counter.delta_as_nanos(0, TICKS);
        let calibration = Calibration::new(nanos, TICKS, raw, anchor_time.as_micros());
        Self { counter, state: Arc::new(ClockState { calibration, anchor, anchor_time }) }
    }

    /// Reads the monotonic clock, and the counter after it.
    fn sample(&self) -> (u64, u64) {
        /// In microseconds. A thread that is suspended between the two readings would make this clock late.
        const MAX_APART: u64 = 5;
        let state = &*self.state;
        let mut before = self.counter.raw();
        let mut tries = 0;
        loop {
            let time = state.anchor_time.saturating_add(state.anchor.elapsed());
            let raw = self.counter.raw();
            let apart = state.calibration.counted(raw).saturating_sub(state.calibration.counted(before));
            tries += 1;
            if apart <= MAX_APART || tries == 8 {
                return (time.as_micros(), raw);
            }
            before = raw;
        }
    }

    #[cold]
    #[inline(never)]
    fn recalibrate(&self) -> u64 {
        self.state.calibration.recalibrate(|| self.sample())
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let time = self.state.calibration.time(self.counter.raw());
        Timestamp::from_micros(match time {
            Some(time) => time,
            None => self.recalibrate(),
        })
    }
}

impl_default!(SystemClock);

impl fmt::Debug for SystemClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemClock").field("now", &self.now()).finish()
    }
}
