use std::fmt;
use std::time::Duration;

use super::Bucket;
use super::bucket_types::impl_bucket;
use crate::algorithm::Algorithm;
use crate::clock::Timestamp;
#[cfg(feature = "redis")]
use crate::decision::AcquireOptions;
use crate::decision::LazySnapshot;
use crate::error::Error;
use crate::quota::Quota;

/// The leaky bucket as a meter: requests fill it, it drains at a steady rate, an overflow is denied.
///
/// ![Decisions with a quota of ten in ten seconds, on four patterns of traffic][picture-bucket]
///
#[doc = include_str!("../../../docs/pictures/bucket.md")]
///
/// In any window of one period at most `burst + limit - 1` are admitted (`2 limit - 1` with the default burst of
/// `limit`), by a client that fills an empty bucket together with what drains. [`strict`](Self::strict) makes it
/// `limit`. In a window of any length `t`: at most `ceil(burst + rate t) - 1`.
///
/// - **Closed form**, with `rate = limit / period` and the burst as the capacity:
///   `level = max(0, level - rate elapsed)`; admit if `level + cost <= burst`, and then add the cost;
///   `retry_after = (level + cost - burst) / rate`, `reset = level / rate`.
/// - **State**: four words.
/// - **Source**: J. Turner, "New Directions in Communications", IEEE Communications Magazine 24(10), 1986; ITU-T I.371
///   has it as the continuous-state leaky bucket.
/// - **Choose it** to think in a capacity and a leak. It decides exactly as [`Gcra`](super::Gcra) and
///   [`TokenBucket`](super::TokenBucket) do. No request waits in it.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{LeakyBucket, Quota};
///
/// // A capacity of fifteen; one drains every two seconds.
/// const REPLIES: LeakyBucket = LeakyBucket::new(Quota::new(1, Duration::from_secs(2))).burst(15);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LeakyBucket {
    kernel: Bucket,
}

impl_bucket!(LeakyBucket);
