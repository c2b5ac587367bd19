//! The names by which people search for the bucket.

use super::Gcra;

/// The token bucket: tokens refill at a steady rate, and each request spends some.
///
/// ![Decisions with a quota of ten in ten seconds, on four patterns of traffic][picture-bucket]
///
#[doc = include_str!("../../../docs/pictures/bucket.md")]
///
/// In any window of one period at most `burst + limit - 1` are admitted (`2 limit - 1` with the default burst of
/// `limit`), by a client that spends a full bucket together with the tokens that refill. [`strict`](Gcra::strict) makes
/// it `limit`. In a window of any length `t`: at most `ceil(burst + rate t) - 1`.
///
/// - **Closed form**, with `rate = limit / period`: `tokens = min(burst, tokens + rate elapsed)`; admit if
///   `tokens >= cost`, and then spend them; `retry_after = (cost - tokens) / rate`, `reset = (burst - tokens) / rate`.
///   No fraction of a token is ever lost, however many requests there are.
/// - **State**: four words.
/// - **Source**: J. Turner, "New Directions in Communications", IEEE Communications Magazine 24(10), 1986; RFC 2697
///   names the form used here.
/// - **Choose it** if costs differ, to think in tokens. It is another name of [`Gcra`].
///
/// ```
/// use tower_ratelimit::{Quota, TokenBucket};
///
/// // One token per second, at most ten of them.
/// const EXPORTS: TokenBucket = TokenBucket::new(Quota::per_second(1)).burst(10);
/// ```
pub type TokenBucket = Gcra;

/// The leaky bucket as a meter: requests fill it, it drains at a steady rate, an overflow is denied.
///
/// ![Decisions with a quota of ten in ten seconds, on four patterns of traffic][picture-bucket]
///
#[doc = include_str!("../../../docs/pictures/bucket.md")]
///
/// In any window of one period at most `burst + limit - 1` are admitted (`2 limit - 1` with the default burst of
/// `limit`), by a client that fills an empty bucket together with what drains. [`strict`](Gcra::strict) makes it
/// `limit`. In a window of any length `t`: at most `ceil(burst + rate t) - 1`.
///
/// - **Closed form**, with `rate = limit / period` and the burst as the capacity:
///   `level = max(0, level - rate elapsed)`; admit if `level + cost <= burst`, and then add the cost;
///   `retry_after = (level + cost - burst) / rate`, `reset = level / rate`.
/// - **State**: four words.
/// - **Source**: J. Turner, "New Directions in Communications", IEEE Communications Magazine 24(10), 1986; ITU-T I.371
///   has it as the continuous-state leaky bucket.
/// - **Choose it** to think in a capacity and a leak. It is another name of [`Gcra`]. No request waits in it.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{LeakyBucket, Quota};
///
/// // A capacity of fifteen; one drains every two seconds.
/// const REPLIES: LeakyBucket = LeakyBucket::new(Quota::new(1, Duration::from_secs(2))).burst(15);
/// ```
pub type LeakyBucket = Gcra;
