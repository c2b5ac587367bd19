//! Errors of invalid quotas and bursts.

use super::rate::Rate;
use crate::clock::MAX_PERIOD_MICROS;
use crate::error::Error;
use crate::quota::{MAX_LIMIT, Quota};

/// Why a bucket cannot have a quota or a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketError {
    BurstZero,
    BurstTooLarge,
    FillsTooSlowly,
    NotRepresentable,
}

impl BucketError {
    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::BurstZero => "invalid burst: 0 would deny every request; use at least 1",
            Self::BurstTooLarge => "invalid burst: the maximum is 2^53 (9007199254740992); use a smaller burst",
            Self::FillsTooSlowly => {
                "invalid burst: the bucket would take over 200 years to fill; use a smaller burst or a larger quota"
            }
            Self::NotRepresentable => {
                "invalid quota: in lowest terms, limit * period in microseconds must be at most 2^53 and the limit \
                 below 2^32; use the nearest valid quota, which the error of `try_new` contains"
            }
        }
    }

    /// Returns the error with the nearest valid value.
    pub(crate) fn into_error(self, quota: Quota) -> Error {
        match self {
            Self::FillsTooSlowly => {
                let max_burst =
                    u128::from(MAX_PERIOD_MICROS) * u128::from(quota.limit()) / u128::from(quota.period_micros());
                Error::config(format!("{}; with {quota} a burst of at most {max_burst}", self.message()))
            }
            Self::NotRepresentable => Error::config(format!(
                "invalid quota {quota}: in lowest terms, limit * period in microseconds must be at most 2^53 and the \
                 limit below 2^32; the nearest valid quota is {}",
                nearest_fit(quota),
            )),
            Self::BurstZero | Self::BurstTooLarge => Error::config(self.message()),
        }
    }
}

/// Returns the quota with the nearest limit that [`Rate::new`] accepts.
fn nearest_fit(quota: Quota) -> Quota {
    let (limit, period) = (quota.limit(), quota.period_micros());
    let fits = |limit: &u64| {
        *limit > 0 && Quota::try_new(*limit, quota.period()).is_ok() && Rate::new(*limit, period).is_some()
    };
    // Common periods have so many divisors that a valid limit is near. Otherwise use the largest valid limit, or the
    // largest multiple of whole tokens a microsecond.
    let near = (1..500_000).flat_map(|step| [limit.saturating_sub(step), limit.saturating_add(step)]).find(fits);
    let largest = Rate::MAX_TOKENS.min(MAX_LIMIT / period);
    let largest_whole = Rate::MAX_TOKENS.min(limit / period).saturating_mul(period);
    let far = || [largest, largest_whole].into_iter().filter(fits).min_by_key(|far| limit.abs_diff(*far));
    let limit = near.or_else(far).unwrap_or(1);
    Quota::new(limit, quota.period())
}
