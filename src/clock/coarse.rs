use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::{Clock, SystemClock, Timestamp};

/// A clock that advances about once a millisecond; reading it is one atomic load.
///
/// A background thread reads a [`SystemClock`] each millisecond. The thread ends after the last clone of the clock is
/// dropped. The time is usually late by up to a millisecond, and by more if the operating system does not schedule the
/// thread. The time never steps back.
///
/// Limits hold in this clock's time. `retry_after` and `reset` are exact in this clock's time too, so they differ by
/// the clock's lateness from the time that another clock measures. Choose this clock for tens of millions of
/// decisions a second, with limits whose periods are much longer than a millisecond.
///
/// ```
/// use tower_ratelimit::{CoarseClock, Gcra, Memory, Quota};
///
/// let limiter = Memory::<u64, _>::builder(Gcra::new(Quota::per_second(10))).clock(CoarseClock::start()?).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CoarseClock {
    micros: Arc<AtomicU64>,
}

const UPDATE_EVERY: Duration = Duration::from_millis(1);

impl CoarseClock {
    /// Starts a clock at the current system time.
    ///
    /// # Errors
    ///
    /// Returns the operating system's error if the background thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let clock = SystemClock::new();
        let micros = Arc::new(AtomicU64::new(clock.now().as_micros()));
        let weak = Arc::downgrade(&micros);
        let update_loop = move || {
            loop {
                thread::sleep(UPDATE_EVERY);
                let Some(micros) = weak.upgrade() else { return };
                micros.fetch_max(clock.now().as_micros(), Ordering::Relaxed);
            }
        };
        let thread = thread::Builder::new().name("coarse clock".to_owned());
        thread.spawn(update_loop)?;
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
    fn coarse_clock_follows_the_system_clock_and_never_steps_back() {
        let (coarse, system) = (CoarseClock::start().expect("a thread"), SystemClock::new());
        let (first, mut last) = (coarse.now(), coarse.now());
        while last.saturating_since(first) < Duration::from_millis(20) {
            let now = coarse.now();
            assert!(now >= last);
            last = now;
        }
        // On a busy machine the thread may be late. It cannot be ahead, apart from the difference of both clocks'
        // anchors.
        assert!(coarse.now().saturating_since(system.now()) < Duration::from_millis(5));
        assert!(system.now().saturating_since(coarse.now()) < Duration::from_secs(5));
    }

    #[test]
    fn coarse_clock_thread_ends_after_the_last_clone_is_dropped() {
        let clock = CoarseClock::start().expect("a thread");
        let micros = Arc::downgrade(&clock.micros);
        drop(clock.clone());
        assert!(micros.upgrade().is_some());
        drop(clock);
        // The thread holds a strong reference during each update.
        while micros.upgrade().is_some() {
            thread::yield_now();
        }
    }
}
