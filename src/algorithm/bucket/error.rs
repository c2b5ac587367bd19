//! Quotas and bursts that no bucket can have.

use super::rate::Rate;
use crate::clock::MAX_PERIOD_MICROS;
use crate::error::Error;
use crate::quota::{MAX_LIMIT, Quota};

/// What can't be: see `explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    BurstZero,
    BurstTooLarge,
    TooSlow,
    TooFine,
}

impl Unfit {
    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::BurstZero => "a burst must be at least 1: a limiter without room for one request refuses them all",
            Self::BurstTooLarge => "a burst must be at most 2^53 (9007199254740992)",
            Self::TooSlow => "a bucket must fill within 200 years: choose a smaller burst or a larger quota",
            Self::TooFine => {
                "this quota can't be counted exactly: in lowest terms limit * period in microseconds must be at most \
                 2^53, and the limit below 2^32; `try_new` names the nearest quota that fits"
            }
        }
    }

    /// The error, with what would be right.
    pub(crate) fn explain(self, quota: Quota) -> Error {
        match self {
            Self::TooSlow => {
                let most =
                    u128::from(MAX_PERIOD_MICROS) * u128::from(quota.limit()) / u128::from(quota.period_micros());
                Error::config(format!("{}: with {quota} a burst of at most {most}", self.message()))
            }
            Self::TooFine => Error::config(format!(
                "{quota} can't be counted exactly: in lowest terms limit * period in microseconds must be at most 2^53, \
                 and the limit below 2^32; the nearest quota that fits is {}",
                nearest_fit(quota),
            )),
            Self::BurstZero | Self::BurstTooLarge => Error::config(self.message()),
        }
    }
}

/// The quota with the nearest limit that [`Rate::of`] takes.
fn nearest_fit(quota: Quota) -> Quota {
    let (limit, period) = (quota.limit(), quota.period_micros());
    let fits = |limit: &u64| Quota::try_new(*limit, quota.period()).is_ok() && Rate::of(*limit, period).is_some();
    // Common periods have so many divisors that a fit is near. Where none is, the largest that fits is, as it is or as so many
    // whole tokens a microsecond.
    let near = (1..500_000).flat_map(|step| [limit.saturating_sub(step), limit.saturating_add(step)]).find(fits);
    let largest = Rate::LARGEST_TOKENS.min(MAX_LIMIT / period);
    let largest_whole = Rate::LARGEST_TOKENS.min(limit / period).saturating_mul(period);
    let far = || [largest, largest_whole].into_iter().filter(fits).min_by_key(|far| limit.abs_diff(*far));
    let limit = near.or_else(far).unwrap_or(1);
    Quota::new(limit, quota.period())
}
