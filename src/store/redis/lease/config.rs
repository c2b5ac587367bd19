use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::error::Error;
use crate::store::inner::micros_floor;

/// The leases of a [`Redis`](crate::Redis) limiter: a process holds a part of the quota, and decides by it without a
/// round trip.
///
/// Pass it to [`RedisBuilder::lease`](crate::RedisBuilder::lease). The page "Leases" of the guide describes when that
/// pays, and what is guaranteed.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::store::Lease;
/// use tower_ratelimit::{Gcra, Quota, Redis, RedisServer};
///
/// # fn main() -> Result<(), tower_ratelimit::Error> {
/// let server = RedisServer::open("redis://127.0.0.1")?;
/// let limit = Gcra::new(Quota::per_second(10_000));
/// let limiter = Redis::<str>::builder(server, "api", limit).lease(Lease::new(Duration::from_millis(100))).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lease {
    duration: Duration,
    max_share: f64,
    margin: Option<Duration>,
    pub(super) max_keys: usize,
}

impl Lease {
    /// The default [`max_share`](Self::max_share).
    pub const DEFAULT_MAX_SHARE: f64 = 0.25;

    /// The default [`max_keys`](Self::max_keys).
    pub const DEFAULT_MAX_KEYS: usize = 16_384;

    const MIN_DURATION: Duration = Duration::from_millis(10);
    const MAX_DURATION: Duration = Duration::from_secs(60);
    const MIN_MARGIN: Duration = Duration::from_millis(1);
    const MAX_KEYS: usize = 1 << 24;

    /// Leases of this duration, from 10 ms to 60 s. 50 to 500 ms suit most servers.
    ///
    /// After the duration without a renewal, Redis charges a lease whole. Blocks, resets and changes of a quota take
    /// effect in all processes within it.
    #[must_use]
    pub const fn new(duration: Duration) -> Self {
        Self { duration, max_share: Self::DEFAULT_MAX_SHARE, margin: None, max_keys: Self::DEFAULT_MAX_KEYS }
    }

    /// Sets the part of the burst, or of the limit of a window, that all leases on a key hold together at most: above 0,
    /// at most 1. Default: [`DEFAULT_MAX_SHARE`](Self::DEFAULT_MAX_SHARE).
    ///
    /// A process cannot use units that others hold. So after traffic has moved, this part may be missing for one
    /// duration.
    #[must_use]
    pub const fn max_share(mut self, share: f64) -> Self {
        self.max_share = share;
        self
    }

    /// Sets how long before the expiry a process stops spending: at least 1 ms, and less than half of the duration.
    /// Default: a tenth of the duration, at least 1 ms.
    ///
    /// It must exceed the drift between the clocks of process and server during one lease.
    #[must_use]
    pub const fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Sets the maximum number of keys that are leased or watched for demand. Default:
    /// [`DEFAULT_MAX_KEYS`](Self::DEFAULT_MAX_KEYS).
    ///
    /// With several limits, each sub-key of each limit is such a key. Each takes about 150 bytes. Further keys are decided
    /// in Redis.
    #[must_use]
    pub const fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let (duration, share, margin, keys) = (self.duration, self.max_share, self.margin_or_default(), self.max_keys);
        let problem = if duration < Self::MIN_DURATION || duration > Self::MAX_DURATION {
            format!("its duration is {duration:?}; use at least 10 ms and at most 60 s")
        } else if !(share > 0.0 && share <= 1.0) {
            format!("`max_share` is {share}; use a number above 0 and at most 1")
        } else if margin < Self::MIN_MARGIN || margin >= duration / 2 {
            format!("its margin is {margin:?}; use at least 1 ms and less than half of the duration")
        } else if keys == 0 || keys > Self::MAX_KEYS {
            format!("`max_keys` is {keys}; use at least 1 and at most {}", Self::MAX_KEYS)
        } else {
            return Ok(());
        };
        Err(Error::config(format!("invalid lease: {problem}")))
    }

    fn margin_or_default(&self) -> Duration {
        self.margin.unwrap_or_else(|| (self.duration / 10).max(Self::MIN_MARGIN))
    }

    /// The time after which Redis charges a lease that is not renewed, in microseconds.
    pub(super) fn duration_micros(&self) -> u64 {
        micros_floor(self.duration)
    }

    /// The time from sending a report until the process stops spending, in microseconds.
    pub(super) fn usable_micros(&self) -> u64 {
        micros_floor(self.duration.saturating_sub(self.margin_or_default()))
    }

    /// The interval in which the renewal task looks at all leases, in microseconds.
    pub(super) fn tick_micros(&self) -> u64 {
        (self.duration_micros() / 16).max(1_000)
    }

    /// The units that all leases on a key hold together at most.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a bound")]
    pub(super) fn max_held(&self, limit: u64) -> u64 {
        ((limit as f64 * self.max_share) as u64).min(limit)
    }
}

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
