//! What [`Chained`](super::Chained) and [`Fallback`](super::Fallback) have in common.

use std::borrow::Borrow;

use super::{Limiter, LimiterFuture, LimitsOfKey};
use crate::decision::AcquireOptions;
use crate::error::Error;

/// Goes on with the result of a future: at once if it is ready, else in a future that owns the limiter and the key.
#[inline]
pub(super) fn then<L, Key, T, U>(
    future: LimiterFuture<T>,
    limiter: &L,
    key: &Key,
    next: impl FnOnce(&L, &Key, Result<T, Error>) -> LimiterFuture<U> + Send + 'static,
) -> LimiterFuture<U>
where
    L: Clone + Send + Sync + 'static,
    Key: ToOwned + ?Sized + 'static,
    Key::Owned: Send + 'static,
    T: Send + 'static,
    U: Send + 'static,
{
    match future.try_ready() {
        Ok(result) => next(limiter, key, result),
        Err(pending) => {
            let (limiter, key) = (limiter.clone(), key.to_owned());
            LimiterFuture::pending(async move {
                let result = pending.await;
                let future = next(&limiter, key.borrow(), result);
                future.await
            })
        }
    }
}

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
