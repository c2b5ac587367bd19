use std::time::Duration;

use tower_ratelimit::config::{AlgorithmName, Policy};

/// Returns the maximum cost that the policy's algorithm admits for one key in any half-open interval of this length.
///
/// Returns `None` for `in-flight`, which bounds the requests at one time and not the requests of an interval, and for
/// algorithms that this version does not know. Admissions count at their starts, and `max_cost` is the largest cost of
/// one request. With the limit `L`, the period `W`, the burst `B` and the length `t`, all times in whole microseconds:
///
/// | Algorithm | Maximum |
/// |---|---|
/// | `gcra`, `token-bucket`, `leaky-bucket` | `ceil(B + t L / W) - 1` |
/// | `leaky-queue` | `ceil(t L / W) - 1 + max_cost` |
/// | `fixed-window` | the larger of `ceil(t / W) L` and `ceil((t - 1) / W) L + L - 1` |
/// | `fixed-window`, aligned to the clock | `(ceil((t - 1) / W) + 1) L` |
/// | `fixed-window` of a calendar | the same, with three quarters of the longest window as `W` |
/// | `sliding-window`, with blocks of length `b = W / N` | `ceil(m / (N + 1)) L` with `m = ceil((t - 1) / b) + 1` |
/// | `sliding-window`, weighted | `ceil(t / W) (2 L - 1)` |
/// | `sliding-log` | `ceil(t / W) L` |
///
/// For `t = W` these are the maxima that the algorithms' documentation states. An interval contains parts of at most `m`
/// blocks of a sliding window, and `N + 1` successive blocks admit at most `L`. If an interval contains parts of two
/// windows that start at a hit, the first hit of the earlier one may be before the interval.
#[must_use]
pub fn max_admitted(policy: &Policy, interval: Duration, max_cost: u64) -> Option<u64> {
    let quota = policy.quota()?;
    let (limit, period) = (u128::from(quota.limit()), quota.period().as_micros());
    let length = interval.as_micros();
    if length == 0 || limit == 0 {
        return Some(0);
    }
    let max = match policy.algorithm() {
        AlgorithmName::Gcra | AlgorithmName::TokenBucket | AlgorithmName::LeakyBucket => {
            let burst = u128::from(policy.burst().unwrap_or(quota.limit()));
            burst + (length * limit).div_ceil(period) - 1
        }
        AlgorithmName::LeakyQueue => (length * limit).div_ceil(period) - 1 + u128::from(max_cost),
        // No month, and no day where the clocks change, is shorter.
        AlgorithmName::FixedWindow if policy.calendar().is_some() => {
            ((length - 1).div_ceil(period * 3 / 4) + 1) * limit
        }
        AlgorithmName::FixedWindow if policy.is_aligned_to_clock() => ((length - 1).div_ceil(period) + 1) * limit,
        AlgorithmName::FixedWindow => {
            let from_first_hit = length.div_ceil(period) * limit;
            from_first_hit.max((length - 1).div_ceil(period) * limit + limit - 1)
        }
        AlgorithmName::SlidingWindow if policy.is_weighted() => length.div_ceil(period) * (2 * limit - 1),
        AlgorithmName::SlidingWindow => {
            // Without the setting it is the largest divisor of the period up to ten.
            let default = || (1..=10).rev().find(|blocks| period.is_multiple_of(*blocks)).unwrap_or(1);
            let blocks = policy.blocks().map_or_else(default, u128::from);
            let touched = (length - 1).div_ceil(period / blocks) + 1;
            touched.div_ceil(blocks + 1) * limit
        }
        AlgorithmName::SlidingLog => length.div_ceil(period) * limit,
        _ => return None,
    };
    Some(u64::try_from(max).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn max(policy: &str, interval: Duration) -> u64 {
        let policy = format!(r#"{{ "name": "a", "by": "user", {policy} }}"#);
        max_admitted(&serde_json::from_str(&policy).expect("a policy"), interval, 1).expect("a rate")
    }

    /// The table of `docs/choosing.md`.
    #[test]
    fn maximum_in_one_period_is_the_documented_one() {
        let in_period = |policy: &str| max(policy, Duration::from_secs(10));
        for bucket in ["gcra", "token-bucket", "leaky-bucket"] {
            assert_eq!(in_period(&format!(r#""algorithm": "{bucket}", "quota": "10 per 10s""#)), 19);
            assert_eq!(in_period(&format!(r#""algorithm": "{bucket}", "quota": "10 per 10s", "burst": 1"#)), 10);
        }
        assert_eq!(in_period(r#""algorithm": "fixed-window", "quota": "10 per 10s""#), 19);
        assert_eq!(in_period(r#""algorithm": "fixed-window", "quota": "10 per 10s", "aligned_to_clock": true"#), 20);
        assert_eq!(in_period(r#""algorithm": "sliding-window", "quota": "10 per 10s""#), 10);
        assert_eq!(in_period(r#""algorithm": "sliding-window", "quota": "10 per 10s", "weighted": true"#), 19);
        assert_eq!(in_period(r#""algorithm": "sliding-log", "quota": "10 per 10s""#), 10);
        assert_eq!(in_period(r#""algorithm": "leaky-queue", "quota": "10 per 10s""#), 10);
    }

    #[test]
    fn maximum_in_other_intervals_counts_whole_and_partial_periods() {
        let log = |seconds| max(r#""algorithm": "sliding-log", "quota": "10 per 10s""#, Duration::from_secs(seconds));
        assert_eq!((log(0), log(1), log(60), log(61)), (0, 10, 60, 70));
        let fixed =
            |seconds| max(r#""algorithm": "fixed-window", "quota": "10 per 10s""#, Duration::from_secs(seconds));
        assert_eq!((fixed(1), fixed(11), fixed(60)), (19, 29, 69));
        // Blocks of two seconds: 60 seconds touch 31 of them, and no six in a row admit more than ten.
        let blocks = r#""algorithm": "sliding-window", "quota": "10 per 10s", "blocks": 5"#;
        assert_eq!(max(blocks, Duration::from_secs(60)), 60);
        let bucket = r#""algorithm": "gcra", "quota": "10 per 10s", "burst": 5"#;
        assert_eq!(max(bucket, Duration::from_secs(60)), 64);
    }
}
