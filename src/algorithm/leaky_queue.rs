use std::fmt;
use std::time::Duration;

use super::bucket::Bucket;
use super::{Algorithm, ChargeOptions, InLine, Step};
use crate::clock::Timestamp;
use crate::decision::LazySnapshot;
use crate::error::Error;
use crate::quota::Quota;

/// The leaky bucket as a queue: requests start at a constant spacing, and wait until then.
///
/// ![Decisions with a quota of ten starts in ten seconds, and five waiting requests, on four patterns of traffic][picture-leaky-queue]
///
#[doc = include_str!("../../docs/pictures/leaky-queue.md")]
///
/// With the spacing `T = period / limit`, at most `floor(W / T) + 1` requests start in any closed interval of length
/// `W` (to within a microsecond, by which a start is rounded up). At most [`max_waiting`](Self::max_waiting) requests
/// wait. If the queue is full, or a request would wait for longer than it accepts, it is denied immediately.
///
/// - **Closed form**, with `delay = max(0, next_free - now)` and a capacity of `Q`: admit after `delay` if
///   `delay + (cost - 1) T <= Q T`, and then `next_free = max(next_free, now) + cost T`;
///   `retry_after = delay + (cost - 1) T - Q T`, `reset = delay`. It is the bucket with a burst of `Q + 1` that delays
///   each request until usage has drained.
/// - **State**: four words.
/// - **Order**: first come, first served. A scheduled start remains scheduled if the caller does not come.
/// - **Holds**: a hold starts now or is denied, and the next start is one spacing after it is settled. So only one
///   request at a time runs under a layer that settles.
/// - **Among several limits**: a later start is scheduled only if no other limit is idle before it. Otherwise a caller
///   that accepts a delay must retry. See [`Limit`](crate::Limit).
/// - **Source**: J. Turner, "New Directions in Communications", IEEE Communications Magazine 24(10), 1986; the leaky
///   bucket as a shaper.
/// - **Choose it** before a resource that must not receive bursts, if callers would rather wait than be denied. The
///   layer waits by itself (feature `timer`). Elsewhere wait for [`Decision::delay`](crate::Decision::delay).
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{AcquireOptions, LeakyQueue, Memory, Quota};
///
/// // One start every 100 ms; up to five requests wait.
/// let limiter = Memory::new(LeakyQueue::new(Quota::per_second(10)).max_waiting(5));
/// assert_eq!(limiter.check("printer", AcquireOptions::default()).delay(), Duration::ZERO);
/// let second = limiter.check("printer", AcquireOptions::default());
/// assert!(second.is_allowed() && second.delay() > Duration::from_millis(90));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct LeakyQueue {
    kernel: Bucket,
}

impl LeakyQueue {
    /// Creates a queue of `quota.limit()` starts in each period, evenly spaced. The same number of requests may wait.
    ///
    /// # Panics
    ///
    /// Panics if the quota cannot be represented exactly: in lowest terms, the limit times the period in microseconds
    /// must be at most 2^53 and the limit below 2^32. In a `const` the compiler reports the panic.
    /// [`try_new`](Self::try_new) never panics.
    #[track_caller]
    pub const fn new(quota: Quota) -> Self {
        Self { kernel: Bucket::unwrap_or_panic(Bucket::new(quota, quota.limit().saturating_add(1))) }
    }

    /// Creates the same queue as [`new`](Self::new), and never panics.
    ///
    /// # Errors
    ///
    /// Returns an error if the quota cannot be represented exactly. The error contains the nearest valid quota.
    pub fn try_new(quota: Quota) -> Result<Self, Error> {
        Self::try_with(quota, quota.limit())
    }

    /// Sets how many requests may wait. With 0, a request before the next start is denied.
    ///
    /// # Panics
    ///
    /// Panics if `waiting` is 2^53 or more, or the last request would wait for over 200 years. In a `const` the
    /// compiler reports the panic. [`try_max_waiting`](Self::try_max_waiting) never panics.
    #[track_caller]
    pub const fn max_waiting(self, waiting: u64) -> Self {
        Self { kernel: Bucket::unwrap_or_panic(Bucket::new(self.kernel.quota(), waiting.saturating_add(1))) }
    }

    /// Sets the same number as [`max_waiting`](Self::max_waiting), and never panics.
    ///
    /// # Errors
    ///
    /// Returns an error if `waiting` is 2^53 or more, or the last request would wait for over 200 years.
    pub fn try_max_waiting(self, waiting: u64) -> Result<Self, Error> {
        Self::try_with(self.kernel.quota(), waiting)
    }

    fn try_with(quota: Quota, waiting: u64) -> Result<Self, Error> {
        Ok(Self { kernel: Bucket::try_new(quota, waiting.saturating_add(1))? })
    }

    /// Returns the quota. The spacing of starts is its period divided by its limit.
    pub const fn quota(&self) -> Quota {
        self.kernel.quota()
    }
}

impl Algorithm for LeakyQueue {
    const IS_QUEUE: bool = true;

    super::bucket::bucket_types::bucket_algorithm!();

    fn max_waiting(&self) -> Option<u64> {
        Some(self.kernel.burst().saturating_sub(1))
    }

    #[inline]
    fn decide(&self, state: &[u64; 4], now: Timestamp, options: ChargeOptions) -> Step<[u64; 4]> {
        self.kernel.decide(state, now, options, true)
    }

    // In line is the case of an idle queue, as for the other bucket types: row "memory algorithms" of
    // benches/figures.md.
    #[inline(always)]
    fn decide_in_line(
        &self,
        state: &[u64; 4],
        now: Timestamp,
        options: ChargeOptions,
        _: InLine,
    ) -> Option<Step<[u64; 4]>> {
        self.kernel.decide_in_line(state, now, options, true)
    }
}

#[cfg(feature = "redis")]
impl super::LuaAlgorithm for LeakyQueue {
    const SCRIPT: super::LuaScript = super::bucket::SCRIPT;

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        self.kernel.params(true, cost, params);
    }

    fn decode_state(&self, numbers: &[u64]) -> [u64; 4] {
        Bucket::decode_state(numbers)
    }

    fn encode_state(&self, state: &[u64; 4], numbers: &mut Vec<u64>) {
        Bucket::encode_state(state, numbers);
    }
}

impl fmt::Debug for LeakyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeakyQueue")
            .field("quota", &self.kernel.quota())
            .field("max_waiting", &self.kernel.burst().saturating_sub(1))
            .finish()
    }
}
