use std::marker::PhantomData;

use crate::algorithm::Algorithm;

/// Chooses the algorithm by the key: for tiers, and for limits that change at run time.
///
/// The limiter calls `select` for every decision, possibly more than once; in Redis also for keys to which the limit does
/// not apply. `select` should only look up an algorithm that was built beforehand, in a `const` for instance. If a quota
/// comes from a database, build its algorithm when you load it, by [`try_new`](crate::Gcra::try_new):
/// [`Gcra::new`](crate::Gcra::new) in `select` would panic in the request for a quota that it cannot represent. A key keeps
/// its usage when its algorithm's quota changes.
///
/// ```
/// use tower_ratelimit::{AcquireOptions, FixedWindow, Limit, Memory, Quota, per_key};
///
/// struct Caller {
///     user: u64,
///     paid: bool,
/// }
///
/// const FREE: FixedWindow = FixedWindow::new(Quota::per_hour(60));
/// const PAID: FixedWindow = FixedWindow::new(Quota::per_hour(5000));
///
/// let tier = per_key(|caller: &Caller| if caller.paid { PAID } else { FREE });
/// let limiter = Memory::new(Limit::new("user", tier).keyed_by(|caller: &Caller| caller.user));
///
/// let free = limiter.check(&Caller { user: 1, paid: false }, AcquireOptions::cost(60));
/// assert_eq!(free.remaining(), Some(0));
/// let upgraded = limiter.check(&Caller { user: 1, paid: true }, AcquireOptions::default());
/// assert_eq!(upgraded.remaining(), Some(5000 - 61));
/// ```
pub fn per_key<Key: ?Sized, A: Algorithm, F: Fn(&Key) -> A>(select: F) -> PerKey<F, A> {
    PerKey(select, PhantomData)
}

/// An algorithm for each key: the return type of [`per_key`].
#[derive(Clone)]
#[doc(hidden)]
pub struct PerKey<F, A>(pub(super) F, PhantomData<fn() -> A>);

impl_debug!([F, A] PerKey<F, A> {});
