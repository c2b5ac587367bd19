//! The time: whole microseconds since the Unix epoch.

mod coarse;
mod manual;
mod system;
#[cfg(feature = "timer")]
mod tokio;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::coarse::CoarseClock;
pub use self::manual::ManualClock;
pub use self::system::SystemClock;
#[cfg(feature = "timer")]
pub use self::tokio::TokioClock;

/// The longest period, and the longest time that anything is remembered: 200 years.
pub(crate) const MAX_PERIOD_MICROS: u64 = 73_050 * 86_400_000_000;

/// A moment: whole microseconds since the Unix epoch.
///
/// One microsecond is the crate's tick. Every algorithm counts in it, in memory as in Redis, so that "one tick
/// earlier fails" means the same everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// The last moment that limiters in memory tell from others, in the year 2340: 200 years, the longest time that anything is
    /// remembered for, before 2^54 microseconds. For a clock that is beyond it time stands still, and limits hold on.
    pub const MAX: Self = Self((1 << 54) - 1 - MAX_PERIOD_MICROS);

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
    pub fn saturating_add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros_floor(span)))
    }

    /// The time from `earlier` to `self`, zero if `earlier` is the later one.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A duration in whole microseconds, a fraction dropped, saturating.
#[inline]
pub(crate) fn micros_floor(span: Duration) -> u64 {
    let seconds = span.as_secs().checked_mul(1_000_000);
    seconds.map_or(u64::MAX, |micros| micros.saturating_add(span.subsec_micros().into()))
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
