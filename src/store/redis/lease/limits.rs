use super::config::Lease;
use super::quota::LeasedQuota;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::escalation::Escalation;
use crate::store::inner::{LimitCost, ShareRole};
use crate::store::redis::script::LimitInfo;

/// Checks that leases support the limits.
pub(crate) fn check_limits(limits: &[LimitInfo], lease: &Lease) -> Result<(), Error> {
    for (index, limit) in limits.iter().enumerate() {
        let problem = if limit.held_until_end {
            "counts requests in flight, which have no quota to lease"
        } else if limit.facts.is_conditional {
            "applies only to some requests"
        } else if limit.facts.keeps_free {
            "keeps units free from some requests"
        } else if limit.facts.share == ShareRole::Share {
            "is a guaranteed share"
        } else if matches!(limit.facts.cost, LimitCost::OfUnit(unit) if Escalation::is_count(limit.facts.name.as_str(), unit.name()))
        {
            "counts the denials of an escalation, which each process must know at once"
        } else if limit.facts.is_queue {
            "is a queue, whose starts are one after the other"
        } else {
            check_fixed_cost(index, limit, lease)?;
            continue;
        };
        return Err(Error::config(format!(
            "invalid lease: the limit {:?} {problem}; remove `lease`, or make the limit a limiter of its own, and combine \
             the two with `limiter::Chained`",
            limit.facts.name.as_str()
        )));
    }
    Ok(())
}

/// Checks that leases can serve a fixed cost, if the quota is the same for all keys.
fn check_fixed_cost(index: usize, limit: &LimitInfo, lease: &Lease) -> Result<(), Error> {
    let (LimitCost::Fixed(cost), Some(fixed)) = (limit.facts.cost, &limit.fixed_algorithm) else { return Ok(()) };
    let max_cost = LeasedQuota::new(index, limit, fixed.algorithm(), lease, Timestamp::EPOCH).figures.max_cost;
    if cost <= max_cost {
        return Ok(());
    }
    Err(Error::config(format!(
        "invalid lease: the fixed cost of the limit {:?} is {cost}, and leases serve at most an eighth of `max_share` of \
         the limit, {max_cost}; remove `lease`, or raise `max_share` or the burst",
        limit.facts.name.as_str()
    )))
}
