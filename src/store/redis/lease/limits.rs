use crate::error::Error;
use crate::store::redis::script::LimitInfo;

/// Checks that leases support the limits.
pub(crate) fn check_limits(limits: &[LimitInfo]) -> Result<(), Error> {
    for limit in limits {
        let problem = if limit.held_until_end {
            "counts requests in flight, which have no quota to lease"
        } else if limit.is_queue {
            "is a queue, whose starts are one after the other"
        } else {
            continue;
        };
        return Err(Error::config(format!(
            "invalid lease: the limit {:?} {problem}; remove `lease`, or make the limit a limiter of its own, and combine \
             the two with `limiter::Chained`",
            limit.name.as_str()
        )));
    }
    Ok(())
}
