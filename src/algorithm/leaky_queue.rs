use std::fmt;
use std::time::Duration;

use super::bucket::Bucket;
use super::{Algorithm, AtOnce};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, LazySnapshot, Verdict};
use crate::error::Error;
use crate::quota::Quota;

/// The leaky bucket as a queue: requests are let through at a constant spacing, and wait for their turn.
///
/// With the spacing `T = period / limit`, at most `floor(W / T) + 1` requests depart in any closed interval of length `W`
/// (to within a microsecond, by which a departure is rounded up). At most [`max_waiting`](Self::max_waiting) wait; who finds
/// the queue full, or would have to wait for longer than it accepts, is refused at once.
///
/// - **Closed form**, with `delay = max(0, next_free - now)` and room for `Q`: admit after `delay` if `delay + (cost - 1) T
///   <= Q T`, and then `next_free = max(next_free, now) + cost T`; `retry_after = delay + (cost - 1) T - Q T`, `reset =
///   delay`. It is the bucket with a burst of `Q + 1` whose admissions wait for their turn.
/// - **State**: four words.
/// - **Order**: first come, first served. A scheduled start stays as it was scheduled, also if the caller does not come.
/// - **Holds**: a hold starts now or is denied, and the next start is one spacing after it is settled. So only one request at
///   a time runs under a layer that settles.
/// - **Among several limits**: a turn is promised only if the others owe at least until then as well; else who accepts to wait
///   asks again. See [`Limit`](crate::Limit).
/// - **Source**: J. Turner, "New Directions in Communications", IEEE Communications Magazine 24(10), 1986; the leaky bucket
///   as a shaper.
/// - **Choose it** before something that must not see bursts, where callers would rather wait than be refused. The layer waits
///   by itself (feature `timer`); elsewhere wait for [`Decision::delay`](crate::Decision::delay).
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{AcquireOptions, LeakyQueue, Memory, Quota};
///
/// // One each 100 ms, and up to five that wait.
/// let limiter = Memory::new(LeakyQueue::new(Quota::per_second(10)).max_waiting(5));
/// assert_eq!(limiter.decide("printer", AcquireOptions::default()).delay(), Duration::ZERO);
/// let second = limiter.decide("printer", AcquireOptions::default());
/// assert!(second.is_allowed() && second.delay() > Duration::from_millis(90));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LeakyQueue {
    kernel: Bucket,
}

impl LeakyQueue {
    /// `quota.limit()` in each period, evenly spaced; as many may wait.
    ///
    /// # Panics
    ///
    /// If the quota can't be counted exactly: in lowest terms, the limit times the period in microseconds must be at most
    /// 2^53, and the limit below 2^32. In a `const` the compiler shows the panic; [`try_new`](Self::try_new) never panics.
    #[must_use]
    #[track_caller]
    pub const fn new(quota: Quota) -> Self {
        Self { kernel: Bucket::expect(Bucket::new(quota, quota.limit().saturating_add(1))) }
    }

    /// As [`new`](Self::new), never panicking.
    ///
    /// # Errors
    ///
    /// If the quota can't be counted exactly; the error names the nearest one that can.
    pub fn try_new(quota: Quota) -> Result<Self, Error> {
        Self::built(quota, quota.limit())
    }

    /// Sets how many may wait. With 0 nobody waits: what comes before its turn is refused.
    ///
    /// # Panics
    ///
    /// If `waiting` is 2^53 or more, or the last of them would wait for over 200 years. In a `const` the compiler shows the
    /// panic; [`try_max_waiting`](Self::try_max_waiting) never panics.
    #[must_use]
    #[track_caller]
    pub const fn max_waiting(self, waiting: u64) -> Self {
        Self { kernel: Bucket::expect(Bucket::new(self.kernel.quota(), waiting.saturating_add(1))) }
    }

    /// As [`max_waiting`](Self::max_waiting), never panicking.
    ///
    /// # Errors
    ///
    /// If `waiting` is 2^53 or more, or the last of them would wait for over 200 years.
    pub fn try_max_waiting(self, waiting: u64) -> Result<Self, Error> {
        Self::built(self.kernel.quota(), waiting)
    }

    fn built(quota: Quota, waiting: u64) -> Result<Self, Error> {
        match Bucket::new(quota, waiting.saturating_add(1)) {
            Ok(kernel) => Ok(Self { kernel }),
            Err(unfit) => Err(unfit.explain(quota)),
        }
    }

    /// The quota: the spacing of departures is its period over its limit.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.kernel.quota()
    }
}

impl Algorithm for LeakyQueue {
    super::bucket::types::bucket_state!();

    #[inline]
    fn peek(&self, state: &[u64; 4], now: Timestamp, ask: AcquireOptions) -> Verdict {
        self.kernel.peek_in_turn(state, now, ask)
    }

    /// Where nobody is before it.
    #[inline(always)]
    fn try_at_once(&self, state: &[u64; 4], now: Timestamp, ask: AcquireOptions) -> AtOnce<[u64; 4]> {
        let &[whole, .., written_at] = state;
        if whole > written_at.max(now.as_micros()) {
            return AtOnce::Unsaid;
        }
        self.kernel.try_at_once(state, now, ask)
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
            .field("max_waiting", &(self.kernel.burst() - 1))
            .finish()
    }
}
