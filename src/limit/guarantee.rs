//! Guaranteed shares: what they demand of the limits of a limiter. [`combine_shares`](crate::decision::combine_shares)
//! decides.

use super::LimitCost;
use super::checks::LimitFacts;
use crate::algorithm::{ShareCapacity, ShareFamily};
use crate::decision::ShareRole;
use crate::error::Error;

/// The guaranteed shares of a limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// The sum of the bursts of all shares.
    kept: u64,
    cost: LimitCost,
}

impl Shares {
    fn is_beside(self, role: ShareRole, cost: LimitCost) -> bool {
        role != ShareRole::Share && cost == self.cost
    }

    /// Sets the role of a limit of this cost, if it is beside the shares, and the units that it keeps free from requests
    /// that borrow.
    pub(crate) fn place_limit(self, cost: LimitCost, role: &mut ShareRole, units: &mut u64) {
        if self.is_beside(*role, cost) {
            (*role, *units) = (ShareRole::Common, self.kept);
        }
    }
}

/// Checks the guaranteed shares of a limiter, if there are any.
///
/// # Errors
///
/// Returns an error if the common limits cannot serve all shares: see
/// [`Limit::guarantee`](super::Limit::guarantee).
pub(super) fn check_shares(limits: &[LimitFacts]) -> Result<Option<Shares>, Error> {
    let mut found = limits.iter().filter(|limit| limit.share == ShareRole::Share);
    let Some(share) = found.next() else { return Ok(None) };
    let refuse = |problem: &str| Err(Error::config(format!("guaranteed share {:?}: {problem}", share.name.as_str())));
    if let Some(second) = found.next() {
        return refuse(&format!(
            "the limit {:?} is a second guaranteed share; make one of the two a limiter of its own, and combine the \
             limiters with `limiter::Chained`",
            second.name.as_str()
        ));
    }
    let sub_keys = share.share_units;
    if sub_keys == 0 {
        return refuse("there are 0 sub-keys; pass the number of sub-keys that have a share");
    }
    if share.is_shadow {
        return refuse("a shadow guarantees nothing; remove `shadow`, or make the common limit the shadow");
    }
    if share.keeps_free {
        return refuse("it keeps units free itself; call `keep_free_by` on the common limit");
    }
    let Some(capacity) = share.capacity else { return refuse(NO_CAPACITY) };
    let Some(kept) = sub_keys.checked_mul(capacity.max) else {
        return refuse("the sum of all bursts is above 2^64; lower the number of sub-keys or the burst");
    };
    let shares = Shares { kept, cost: share.cost };
    let mut commons = limits.iter().filter(|limit| shares.is_beside(limit.share, limit.cost)).peekable();
    if commons.peek().is_none() {
        return refuse(
            "no other limit of the limiter counts the same cost; add the limit from which requests borrow, with the \
             same `cost_of` or `fixed_cost`",
        );
    }
    for common in commons {
        check_common(share.name.as_str(), sub_keys, capacity, common)?;
    }
    Ok(Some(shares))
}

const NO_CAPACITY: &str = "its algorithm cannot guarantee shares; use a bucket, a strict sliding window, a sliding log or a \
                           limit on requests in flight, the same for all keys";

/// Checks that a common limit can serve all shares at once.
fn check_common(share: &str, sub_keys: u64, own: ShareCapacity, common: &LimitFacts) -> Result<(), Error> {
    let refuse = |problem: &str| {
        Err(Error::config(format!("limit {:?} beside the guaranteed share {share:?}: {problem}", common.name.as_str())))
    };
    let Some(capacity) = common.capacity else { return refuse(NO_CAPACITY) };
    if capacity.family != own.family {
        return refuse(match own.family {
            ShareFamily::Bucket => "the share is a bucket; use a bucket for this limit, too",
            ShareFamily::Window { .. } => {
                "the share is a strict sliding window; use one of the same period and number of blocks"
            }
            ShareFamily::Log { .. } => "the share is a sliding log; use one of the same period",
            ShareFamily::Flights { .. } => {
                "the share limits requests in flight; use such a limit with the same `max_duration`"
            }
        });
    }
    let fits = |own: u64, own_factor: u64, whole: u64, whole_factor: u64| {
        let sum = u128::from(sub_keys).checked_mul(u128::from(own));
        let sum = sum.and_then(|sum| sum.checked_mul(u128::from(own_factor)));
        // The right side is below 2^128.
        sum.is_some_and(|sum| sum <= u128::from(whole) * u128::from(whole_factor))
    };
    if !fits(own.limit, capacity.period, capacity.limit, own.period) {
        return refuse("the rates of all shares add up to more than its rate; lower the shares, or raise its quota");
    }
    if !fits(own.max, 1, capacity.max, 1) {
        return refuse("the bursts of all shares add up to more than its burst; lower the shares, or raise its burst");
    }
    Ok(())
}
