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

/// The token bucket: tokens refill at a steady rate, and each request spends some.
///
/// ![Decisions with a quota of ten in ten seconds, on four patterns of traffic][picture-bucket]
///
#[doc = include_str!("../../../docs/pictures/bucket.md")]
///
/// In any window of one period at most `burst + limit - 1` are admitted (`2 limit - 1` with the default burst of
/// `limit`), by a client that spends a full bucket together with the tokens that refill. [`strict`](Self::strict) makes
/// it `limit`. In a window of any length `t`: at most `ceil(burst + rate t) - 1`.
///
/// - **Closed form**, with `rate = limit / period`: `tokens = min(burst, tokens + rate elapsed)`; admit if
///   `tokens >= cost`, and then spend them; `retry_after = (cost - tokens) / rate`, `reset = (burst - tokens) / rate`.
///   No fraction of a token is ever lost, however many requests there are.
/// - **State**: four words.
/// - **Source**: J. Turner, "New Directions in Communications", IEEE Communications Magazine 24(10), 1986; RFC 2697
///   names the form used here.
/// - **Choose it** if costs differ, to think in tokens. It decides exactly as [`Gcra`](super::Gcra) and
///   [`LeakyBucket`](super::LeakyBucket) do.
///
/// ```
/// use tower_ratelimit::{Quota, TokenBucket};
///
/// // One token per second, at most ten of them.
/// const EXPORTS: TokenBucket = TokenBucket::new(Quota::per_second(1)).burst(10);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    kernel: Bucket,
}

impl_bucket!(TokenBucket);
