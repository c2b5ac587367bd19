use std::fmt;
use std::time::Duration;

use super::Bucket;
use super::bucket_types::bucket_algorithm;
use crate::algorithm::{Algorithm, ChargeOptions, InLine, ShareCapacity, ShareFamily, Step};
#[cfg(feature = "redis")]
use crate::algorithm::{LuaAlgorithm, LuaScript};
use crate::clock::Timestamp;
#[cfg(feature = "redis")]
use crate::decision::AcquireOptions;
use crate::decision::LazySnapshot;
use crate::error::Error;
use crate::quota::Quota;

/// The generic cell rate algorithm: smooth, with bursts, in four words a key.
///
/// ![Decisions with a quota of ten in ten seconds, on four patterns of traffic][picture-bucket]
///
#[doc = include_str!("../../../docs/pictures/bucket.md")]
///
/// In any window of one period at most `burst + limit - 1` are admitted (`2 limit - 1` with the default burst of
/// `limit`), by a client that spends a full burst together with the tokens that refill. [`strict`](Self::strict) makes
/// it `limit`. In a window of any length `t`: at most `ceil(burst + rate t) - 1`.
///
/// - **Closed form**, with the emission interval `T = period / limit` and the theoretical arrival time `tat`: admit if
///   `max(tat, now) + cost T - now <= burst T`, and then `tat = max(tat, now) + cost T`; `retry_after = tat - now -
///   (burst - cost) T`, `reset = tat - now`. Computed in exact integers: no drift, whatever the quota.
/// - **State**: four words (`tat` in two parts, the rate, the time of the last charge).
/// - **Source**: ITU-T I.371, annex A (ATM Forum, Traffic Management 4.0), the virtual scheduling algorithm.
/// - **Choose it** by default. [`TokenBucket`](super::TokenBucket) and [`LeakyBucket`](super::LeakyBucket) are other names
///   of this type.
///
/// ```
/// use tower_ratelimit::{Gcra, Quota};
///
/// // Ten per second, and up to twenty at once after a pause of two seconds.
/// const API: Gcra = Gcra::new(Quota::per_second(10)).burst(20);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Gcra {
    kernel: Bucket,
}

impl Gcra {
    /// Creates a bucket that refills `quota.limit()` in each period, with a burst of the same size.
    ///
    /// # Panics
    ///
    /// Panics if the quota cannot be represented exactly: in lowest terms, the limit times the period in
    /// microseconds must be at most 2^53 and the limit below 2^32. In a `const` the compiler reports the panic.
    /// [`try_new`](Self::try_new) never panics.
    #[track_caller]
    pub const fn new(quota: Quota) -> Self {
        Self { kernel: Bucket::unwrap_or_panic(Bucket::new(quota, quota.limit())) }
    }

    /// Creates the same bucket as [`new`](Self::new), and never panics.
    ///
    /// # Errors
    ///
    /// Returns an error if the quota cannot be represented exactly. The error contains the nearest valid quota.
    pub fn try_new(quota: Quota) -> Result<Self, Error> {
        Ok(Self { kernel: Bucket::try_new(quota, quota.limit())? })
    }

    /// Sets the burst: the maximum that an idle key can take at once. With a quota of zero the burst is zero.
    ///
    /// # Panics
    ///
    /// Panics if `burst` is zero or over 2^53, or would take over 200 years to fill. In a `const` the compiler
    /// reports the panic. [`try_burst`](Self::try_burst) never panics.
    #[track_caller]
    pub const fn burst(self, burst: u64) -> Self {
        Self { kernel: Bucket::unwrap_or_panic(Bucket::new(self.kernel.quota(), burst)) }
    }

    /// Sets the same burst as [`burst`](Self::burst), and never panics.
    ///
    /// # Errors
    ///
    /// Returns an error if `burst` is zero or over 2^53, or would take over 200 years to fill.
    pub fn try_burst(self, burst: u64) -> Result<Self, Error> {
        Ok(Self { kernel: Bucket::try_new(self.kernel.quota(), burst)? })
    }

    /// Sets the burst to 1, so that no window of one period admits more than `quota.limit()`. Requests are then
    /// spaced evenly.
    ///
    /// A bucket admits up to `burst + limit - 1` in a window of one period. For the strict bound with bursts,
    /// choose a sliding log or a strict sliding window.
    pub const fn strict(self) -> Self {
        self.burst(1)
    }

    /// Returns the quota.
    pub const fn quota(&self) -> Quota {
        self.kernel.quota()
    }

    /// Returns the burst.
    pub const fn max_burst(&self) -> u64 {
        self.kernel.burst()
    }
}

impl Algorithm for Gcra {
    bucket_algorithm!();

    #[inline]
    fn decide(&self, state: &[u64; 4], now: Timestamp, options: ChargeOptions) -> Step<[u64; 4]> {
        self.kernel.decide(state, now, options, false)
    }

    fn share_capacity(&self) -> Option<ShareCapacity> {
        let quota = self.kernel.quota();
        Some(ShareCapacity {
            family: ShareFamily::Bucket,
            limit: quota.limit(),
            period: quota.period_micros(),
            max: self.kernel.burst(),
        })
    }

    // Row "hot key" of benches/figures.md: see `Bucket::decide_in_line`.
    #[inline(always)]
    fn decide_in_line(
        &self,
        state: &[u64; 4],
        now: Timestamp,
        options: ChargeOptions,
        _: InLine,
    ) -> Option<Step<[u64; 4]>> {
        self.kernel.decide_in_line(state, now, options, false)
    }
}

#[cfg(feature = "redis")]
impl LuaAlgorithm for Gcra {
    const SCRIPT: LuaScript = super::SCRIPT;

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        self.kernel.params(false, cost, params);
    }

    fn uses_fast_path(&self, options: AcquireOptions) -> bool {
        self.kernel.uses_fast_path(options)
    }

    fn decode_state(&self, numbers: &[u64]) -> [u64; 4] {
        Bucket::decode_state(numbers)
    }

    fn encode_state(&self, state: &[u64; 4], numbers: &mut Vec<u64>) {
        Bucket::encode_state(state, numbers);
    }
}

impl fmt::Debug for Gcra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gcra").field("quota", &self.kernel.quota()).field("burst", &self.kernel.burst()).finish()
    }
}
