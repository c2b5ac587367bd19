use crate::error::Error;
use crate::store::redis::script::LimitInfo;

/// Checks that leases support the limits.
pub(crate) fn check_limits(limits: &[LimitInfo]) -> Result<(), Error> {
    let [limit] = limits else {
        return Err(Error::config(format!(
            "invalid lease: the limiter has {} limits, and leases support one; remove `lease`, or make each limit a \
             limiter of its own, and combine them with `limiter::Chained`",
            limits.len()
        )));
    };
    let unsupported = |problem: &str, advice: &str| {
        Err(Error::config(format!("invalid lease: the limit {:?} {problem}; {advice}", limit.name.as_str())))
    };
    if limit.shadow {
        return unsupported("is a shadow limit", "enforce it, or remove `lease`");
    }
    if limit.held_until_end {
        return unsupported("counts requests in flight, which have no quota to lease", "remove `lease`");
    }
    let Some(algorithm) = &limit.fixed_algorithm else {
        return unsupported("chooses its algorithm by the key", "use one algorithm for all keys, or remove `lease`");
    };
    if algorithm.algorithm().is_queue() {
        return unsupported("is a queue, whose starts are one after the other", "use a bucket, or remove `lease`");
    }
    Ok(())
}
