//! What [`Chained`](super::Chained) and [`Fallback`](super::Fallback) have in common.

use super::{Limiter, LimitsOfKey};
use crate::decision::AcquireOptions;
use crate::error::Error;

/// Returns the options for two limiters inside of the limiter `name`, which supports no reservation ids. Each of the two
/// charges the units of its limits.
///
/// # Errors
///
/// Returns an error if neither has a limit that names a unit of the costs, or if there is an id.
#[inline]
pub(super) fn options_for_both<Key, A, B>(
    name: &str,
    first: &A,
    second: &B,
    key: &Key,
    options: AcquireOptions,
) -> Result<AcquireOptions, Error>
where
    Key: ?Sized,
    A: Limiter<Key>,
    B: Limiter<Key>,
{
    options.check_no_id(name)?;
    options.check_units(|visit| {
        let units = &mut LimitsOfKey::units(visit);
        first.limits_of(key, units);
        second.limits_of(key, units);
    })?;
    Ok(options.with_known_units())
}
