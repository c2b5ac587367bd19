use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::{Clock, SystemClock, Timestamp};

/// A clock that moves on once in about a millisecond, and costs nothing to read.
///
/// A thread of its own reads a [`SystemClock`] each millisecond, and ends when the last clone of the clock is dropped. Where
/// that thread gets no turn the clock stands still meanwhile: times are late by a millisecond in general, and by as much as the
/// system's scheduler is late in the worst case. They never step back.
///
/// Limits hold as they do under any clock, in this clock's time. What is told of times (`retry_after`, `reset`) is exact in it
/// too, so it may be that much too long or too short for one who measures by another clock. Choose it where decisions are made
/// by the ten million a second, and for limits that don't count in milliseconds.
///
/// ```
/// use tower_ratelimit::{CoarseClock, Gcra, Memory, Quota};
///
/// let limiter = Memory::builder(Gcra::new(Quota::per_second(10))).clock(CoarseClock::start()?).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CoarseClock {
    micros: Arc<AtomicU64>,
}

const STEP: Duration = Duration::from_millis(1);

impl CoarseClock {
    /// Starts a clock at the system's present time.
    ///
    /// # Errors
    ///
    /// If the system starts no thread for it.
    pub fn start() -> io::Result<Self> {
        let clock = SystemClock::new();
        let micros = Arc::new(AtomicU64::new(clock.now().as_micros()));
        let read_by = Arc::downgrade(&micros);
        let keep_up = move || {
            loop {
                thread::sleep(STEP);
                let Some(micros) = read_by.upgrade() else { return };
                micros.fetch_max(clock.now().as_micros(), Ordering::Relaxed);
            }
        };
        let thread = thread::Builder::new().name("coarse clock".to_owned());
        thread.spawn(keep_up)?;
        Ok(Self { micros })
    }
}

impl Clock for CoarseClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for CoarseClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoarseClock").field("now", &self.now()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn it_follows_the_system_and_never_steps_back() {
        let (coarse, system) = (CoarseClock::start().expect("a thread"), SystemClock::new());
        let (first, mut last) = (coarse.now(), coarse.now());
        while last.saturating_since(first) < Duration::from_millis(20) {
            let now = coarse.now();
            assert!(now >= last);
            last = now;
        }
        // The thread may be late on a busy machine, but it can't be ahead (two clocks' anchors differ by some microseconds).
        assert!(coarse.now().saturating_since(system.now()) < Duration::from_millis(5));
        assert!(system.now().saturating_since(coarse.now()) < Duration::from_secs(5));
    }

    #[test]
    fn its_thread_ends_with_the_last_clone() {
        let clock = CoarseClock::start().expect("a thread");
        let micros = Arc::downgrade(&clock.micros);
        drop(clock.clone());
        assert!(micros.upgrade().is_some());
        drop(clock);
        // The thread holds it for a moment each time.
        while micros.upgrade().is_some() {
            thread::yield_now();
        }
    }
}
