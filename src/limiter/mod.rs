//! The trait between the middleware and the stores, and limiters built from limiters.
//!
//! | Limiter | Purpose |
//! |---|---|
//! | [`BoxLimiter`] | a limiter whose type is chosen at run time |
//! | [`DeniedCache`] | caches denials in front of a remote store |
//! | [`FailOpen`] | allows requests while the store is unavailable |
//! | [`Fallback`] | uses another limiter while the store is unavailable |
//! | [`Chained`] | combines limits that one store cannot decide together |
//! | [`Escalating`] | blocks keys that are denied again and again, for longer each time |
//! | [`Observed`] | emits the events of decisions, for code without the layer |
//!
//! The stores and all of these have the methods `check`, `hold`, `set_usage`, `block`, `unblock` and `reset`. `usage`,
//! `report_usage`, `key_id` and `top_keys` read the tables of [`Memory`](crate::Memory), so only it has them: keep a clone
//! of it. Redis has no list of a limiter's keys.
//!
//! [`Held`] is the guard of a held cost, and [`Reservation`] a hold that counts what is spent. The module `waiting`
//! (feature `timer`) waits for a limiter without the middleware.

mod admin;
mod boxed;
mod capacity;
mod chained;
mod denied_cache;
mod escalating;
mod fail_open;
mod fallback;
mod future;
mod held;
mod limits_of_key;
mod methods;
mod observed;
mod outcome;
mod reservation;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;

pub use self::admin::AdminOperation;
pub use self::boxed::BoxLimiter;
pub(crate) use self::capacity::{
    CapacityListener, Released, capacity_added, capacity_released, hashers, limit_id, listen, queue_created,
    queues_removed,
};
pub use self::chained::Chained;
pub use self::denied_cache::DeniedCache;
pub use self::escalating::Escalating;
pub use self::fail_open::FailOpen;
pub use self::fallback::Fallback;
pub(crate) use self::future::BoxFuture;
pub use self::future::LimiterFuture;
pub use self::held::Held;
pub(crate) use self::held::{HeldCharge, HeldEntry, HoldStore, ReleaseOnDrop};
pub(crate) use self::limits_of_key::LimitOfKey;
pub use self::limits_of_key::LimitsOfKey;
use self::methods::options_for_both;
pub(crate) use self::methods::{check, limiter_methods};
pub use self::observed::Observed;
pub use self::outcome::Outcome;
pub use self::reservation::Reservation;
use crate::decision::{AcquireOptions, Decision};
pub use crate::escalation::Escalation;
use std::sync::Arc;

/// Decides whether a key may pass, and charges it.
///
/// The stores ([`Memory`](crate::Memory), `Redis`) implement this trait, and the middleware depends on nothing else of
/// them. A custom limiter must implement [`acquire`](Self::acquire) only. The other methods return an error for which
/// [`is_unsupported`](Error::is_unsupported) holds, unless the limiter implements them.
///
/// The stores and the combinators have the methods `hold`, `check`, `set_usage`, `block`, `unblock` and `reset` of their
/// own, so callers need not import the trait.
///
/// # What limiters support
///
/// | | several limits, tiers, shadows | [`hold`](AcquireOptions::hold), `settle`, [`Reservation`] | [requests in flight](crate::InFlight) | leases |
/// |---|---|---|---|---|
/// | [`Memory`](crate::Memory) | yes | yes | yes | not needed |
/// | `Redis` | yes | yes | yes | yes |
/// | `RedisCell` | one limit | no | no | no |
/// | your own, with [`StoreLimits`](crate::store::StoreLimits) | yes | no | no: an error when it is built | no |
/// | your own, without it | what you implement | by [`Held::new`] | by [`Held::until_end`] | no |
///
/// [Reservation ids](AcquireOptions::id), and requests that are charged [once](AcquireOptions::once), need a store that
/// remembers ids:
///
/// | | holds with an id, `settle`, `release`; `once` |
/// |---|---|
/// | [`Memory`](crate::Memory), `Redis` | yes |
/// | [`BoxLimiter`], [`Observed`], [`DeniedCache`] | as the limiter inside |
/// | [`FailOpen`] | as the limiter inside; what it allows during an outage has no id: settling returns `is_unknown_id`, and a repeat is charged |
/// | [`Chained`], [`Fallback`], `RedisCell`, [`Reservation`] | no |
/// | your own | what you implement: see [`AcquireOptions::get_id`] and [`AdminOperation::Settle`] |
///
/// "No" is an error for which [`is_unsupported`](Error::is_unsupported) holds. To count requests in flight beside limits that
/// cannot hold, combine both limiters with [`Chained`], the one with requests in flight first.
///
/// # Futures and cancellation
///
/// A limiter that decides immediately returns [`LimiterFuture::ready`], which needs no allocation. Another limiter
/// returns [`LimiterFuture::pending`], whose future must not borrow from the limiter or the key. If the caller drops the future, the
/// limiter may or may not charge the key: a limiter must document which. A cost that is held for a dropped future must
/// be released.
///
/// # Example
///
/// A limiter that denies requests during maintenance.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
///
/// use tower_ratelimit::limiter::{Limiter, LimiterFuture, Outcome};
/// use tower_ratelimit::{AcquireOptions, Clock, Decision, Error, SystemClock, Verdict};
///
/// struct Maintenance {
///     is_active: AtomicBool,
///     clock: SystemClock,
/// }
///
/// impl<Key: ?Sized> Limiter<Key> for Maintenance {
///     fn acquire(&self, _key: &Key, _options: AcquireOptions) -> LimiterFuture<Outcome> {
///         let verdict = if self.is_active.load(Ordering::Relaxed) {
///             Verdict::Denied { retry_after: Duration::from_secs(60) }
///         } else {
///             Verdict::Allowed
///         };
///         LimiterFuture::ready(Ok(Decision::by_policy(self.clock.now(), verdict).into()))
///     }
/// }
///
/// let limiter = Maintenance { is_active: AtomicBool::new(true), clock: SystemClock::new() };
/// let outcome = limiter.acquire("alice", AcquireOptions::default()).try_ready().expect("an immediate decision");
/// assert!(!outcome?.decision.is_allowed());
/// # Ok::<(), Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter for keys of type `{Key}`",
    note = "wrap an algorithm or limits in a store: `Memory::new(..)` or `Redis::new(..)`",
    note = "the key extractor returns the key type `{Key}`: the limiter, `Memory<Key, ..>` or `Redis<Key>`, must have \
            the same in its sub-keys (`keyed_by`) and operations (`check`, `block`)"
)]
pub trait Limiter<Key: ?Sized>: Send + Sync + 'static {
    /// Decides, and charges the key if the request is allowed. A denial charges nothing.
    ///
    /// With [`AcquireOptions::hold`] the limiter holds the cost instead of charging it, and returns the guard in
    /// [`Outcome::held`]. A limiter that cannot hold returns an error for which
    /// [`is_unsupported`](Error::is_unsupported) holds.
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome>;

    /// Returns the decision that [`acquire`](Self::acquire) would return, without charging.
    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        let _ = (key, options);
        LimiterFuture::unsupported("peek failed: this limiter does not support it")
    }

    /// Names the limits that apply to a key, with the part of the key by which each counts.
    ///
    /// The layer lets requests that one limit denies wait in one queue, also if their keys differ. By default the
    /// requests of each key wait in a queue of their own. A limiter around another one should forward the call.
    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        let _ = (key, limits);
    }

    /// Names the units in which the limits of this limiter charge: see [`Limit::cost_of`](crate::Limit::cost_of).
    ///
    /// A limiter that decides alone returns an error for costs in any other unit. A limiter around others
    /// ([`Chained`], [`Fallback`]) accepts the units of all of them, and forwards this call. By default there are none.
    fn visit_units(&self, visit: &mut dyn FnMut(&'static str)) {
        let _ = visit;
    }

    /// Runs an administrative operation on a key, or settles a hold by its id.
    ///
    /// The stores and the combinators have the methods `set_usage`, `block`, `unblock`, `reset`, `settle` and `release` for
    /// it.
    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        let _ = key;
        LimiterFuture::unsupported(match operation {
            AdminOperation::SetUsage { .. } => "set usage failed: this limiter does not support it",
            AdminOperation::Block { .. } => "block failed: this limiter does not support it",
            AdminOperation::Reset => "reset failed: this limiter does not support it",
            AdminOperation::Settle { .. } => "settling failed: this limiter does not support reservation ids",
        })
    }
}

impl<Key: ?Sized, L: Limiter<Key> + ?Sized> Limiter<Key> for Arc<L> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        (**self).acquire(key, options)
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        (**self).peek(key, options)
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        (**self).limits_of(key, limits);
    }

    fn visit_units(&self, visit: &mut dyn FnMut(&'static str)) {
        (**self).visit_units(visit);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        (**self).administer(key, operation)
    }
}
