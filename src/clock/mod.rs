//! Clocks and timestamps: whole microseconds since the Unix epoch.

mod calibration;
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

/// The longest period, and the longest time for which a state counts: 200 years.
pub(crate) const MAX_PERIOD_MICROS: u64 = 73_050 * 86_400_000_000;

/// A point in time: whole microseconds since the Unix epoch.
///
/// All algorithms count in whole microseconds, in memory and in Redis.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// The latest time at which limiters in memory decide, in the year 2340: 200 years before 2^54 microseconds.
    ///
    /// A limiter whose clock returns a later time decides at this time: no usage expires any more.
    pub const MAX: Self = Self((1 << 54) - 1 - MAX_PERIOD_MICROS);

    /// Returns the time `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the time `span` later, at most `u64::MAX` microseconds after the epoch.
    ///
    /// A fraction of a microsecond is dropped.
    pub fn saturating_add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros_floor(span)))
    }

    /// Returns the time from `earlier` to `self`, zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// Returns the latest end, at `now`, of anything that is stored for `span` microseconds by a clock that has not stepped
/// back by more than `span`.
///
/// All that is stored follows one rule: if the clock has stepped back by more than the time for which it is stored, it
/// does not count. Otherwise a wrong time would lock a key for as long as the clock was ahead.
pub(crate) fn latest_end(now: Timestamp, span: u64) -> Timestamp {
    Timestamp(now.0.saturating_add(span.saturating_mul(2)))
}

/// Returns a duration in whole microseconds, rounded down, at most `u64::MAX`.
#[inline]
pub(crate) fn micros_floor(span: Duration) -> u64 {
    let seconds = span.as_secs().checked_mul(1_000_000);
    seconds.map_or(u64::MAX, |micros| micros.saturating_add(span.subsec_micros().into()))
}

/// The source of a limiter's time.
///
/// Many threads may read a clock at the same time. A clock should not step back. If it does, an algorithm decides at
/// the latest time that the key's state contains, unless that time is further ahead than the algorithm's
/// [`max_reset`](crate::algorithm::Algorithm::max_reset). [`Memory`](crate::Memory) decides a key without a state at the
/// time at which the key that had its slot before was idle, within the same bound.
///
/// A clock must not call a limiter: in memory it can be read under a lock.
///
/// The same rule applies to all that is stored for a time: blocks, the denials of a
/// [`DeniedCache`](crate::limiter::DeniedCache), and the [maximum durations](crate::InFlight::max_duration) of requests in
/// flight. What was stored does not count if the clock has stepped back by more than that time since.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}
