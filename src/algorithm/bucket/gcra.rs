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
/// - **Choose it** by default. It decides exactly as
///   [`TokenBucket`](super::TokenBucket) and [`LeakyBucket`](super::LeakyBucket) do.
///
/// ```
/// use tower_ratelimit::{Gcra, Quota};
///
/// // Ten per second, and up to twenty at once after a pause of two seconds.
/// const API: Gcra = Gcra::new(Quota::per_second(10)).burst(20);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Gcra {
    kernel: Bucket,
}

impl_bucket!(Gcra);
