//! The time: whole microseconds since the Unix epoch.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment: whole microseconds since the Unix epoch.
///
/// One microsecond is the crate's tick. Every algorithm counts in it, in memory as in Redis, so that "one tick
/// earlier fails" means the same everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// The moment `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The moment `span` later. A fraction of a microsecond is dropped; what can't be represented is the last
    /// moment there is.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(whole_micros(span)))
    }

    /// The time from `earlier` to `self`, zero if `earlier` is the later one.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A duration in whole microseconds, a fraction dropped, saturating.
pub(crate) fn whole_micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Where a limiter reads the time.
///
/// A clock may be read from many threads at once. It should not step back; every algorithm holds if it does (it
/// decides at the newest time that it has seen, unless that lies further ahead than a limit remembers anything).
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// The system's clock: Unix time, read once when the clock is made, and from then on the monotonic clock.
///
/// Windows that are aligned to the clock, and header fields in epoch seconds, follow Unix time as it was at that
/// moment; no later adjustment of the system's time can lift or lengthen a limit.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    anchor: Instant,
    anchored_at: Timestamp,
}

impl SystemClock {
    /// Anchors a clock at the system's present time.
    ///
    /// A system time before 1970 counts as 1970.
    #[must_use]
    pub fn new() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { anchor: Instant::now(), anchored_at: Timestamp(whole_micros(unix)) }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let elapsed = self.anchor.elapsed();
        // `Duration::as_micros` works in 128 bits; seconds and microseconds apart need none.
        Timestamp(self.anchored_at.0 + elapsed.as_secs() * 1_000_000 + u64::from(elapsed.subsec_micros()))
    }
}

/// A clock that stands still until it is moved by hand: for testing your own limits without sleeping.
///
/// Clones share one time.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Ask, FixedWindow, Limiter, ManualClock, Memory, Quota};
///
/// let clock = ManualClock::new();
/// let limiter = Memory::builder(FixedWindow::new(Quota::per_minute(1))).clock(clock.clone()).build()?;
///
/// let mut allowed = || limiter.decide("a key", Ask::default()).is_allowed();
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
    /// Where a new manual clock stands: 2020-01-01T00:00:00Z, so that windows aligned to the clock start there.
    pub const START: Timestamp = Timestamp(1_577_836_800_000_000);

    /// A clock that stands at [`START`](Self::START).
    #[must_use]
    pub fn new() -> Self {
        Self::at(Self::START)
    }

    /// A clock that stands at `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self { now: Arc::new(AtomicU64::new(now.0)) }
    }

    /// Moves the clock forward. A fraction of a microsecond is dropped.
    pub fn advance(&self, span: Duration) {
        let micros = whole_micros(span);
        // The closure always returns `Some`, so the update can't fail.
        let _ = self.now.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| Some(now.saturating_add(micros)));
    }

    /// Sets the clock, to an earlier time too.
    pub fn set(&self, now: Timestamp) {
        self.now.store(now.0, Ordering::Release);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::Acquire))
    }
}

/// Tokio's clock: as [`SystemClock`], but it stands still and is advanced as tokio's time is in tests
/// (`tokio::time::pause`), so that waiting can be tested without waiting.
#[cfg(feature = "timer")]
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    anchor: tokio::time::Instant,
    anchored_at: Timestamp,
}

#[cfg(feature = "timer")]
impl TokioClock {
    /// Anchors a clock at the system's present time.
    #[must_use]
    pub fn new() -> Self {
        Self { anchor: tokio::time::Instant::now(), anchored_at: SystemClock::new().anchored_at }
    }
}

#[cfg(feature = "timer")]
impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "timer")]
impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        self.anchored_at.after(self.anchor.elapsed())
    }
}
