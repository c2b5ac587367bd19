//! The trait between the middleware and the stores.

use std::sync::Arc;
use std::time::Duration;

use super::{AdminOperation, LimiterFuture, LimitsOfKey, Outcome};
#[cfg(doc)]
use super::{Chained, DeniedCache, FailOpen, Fallback, Held, Observed, Reservation};
use crate::decision::{AcquireOptions, BlockReason, Costs, Decision, ReservationId};
#[cfg(doc)]
use crate::error::Error;

/// Decides whether a key may pass, and charges it.
///
/// The stores ([`Memory`](crate::Memory), `Redis`) implement this trait, and the middleware depends on nothing else of
/// them. A custom limiter must implement [`acquire`](Self::acquire) only. The other methods return an error for which
/// [`is_unsupported`](Error::is_unsupported) holds, unless the limiter implements them.
///
/// Callers import the trait for its methods. [`Memory::check`](crate::Memory::check) needs no import, and returns the
/// decision itself.
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
/// | [`BoxLimiter`](crate::BoxLimiter), [`Observed`], [`DeniedCache`], [`Escalating`](super::Escalating) | as the limiter inside |
/// | [`FailOpen`] | as the limiter inside; what it allows during an outage has no id: settling returns `is_unknown_id`, and a repeat is charged |
/// | [`Chained`], [`Fallback`], `RedisCell`, [`Reservation`] | no |
/// | your own | what you implement: see [`AcquireOptions::reservation_id`] and [`AdminOperation::Settle`] |
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
/// use tower_ratelimit::limiter::{LimiterFuture, Outcome};
/// use tower_ratelimit::{AcquireOptions, Clock, Decision, Error, Limiter, SystemClock, Verdict};
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
///         LimiterFuture::ready(Ok(Decision::without_limit(self.clock.now(), verdict).into()))
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

    /// Decides, and charges the key if the request is allowed. An integer is the cost of the request.
    ///
    /// This method charges, also if the options ask for a hold: to hold a cost, call [`hold`](Self::hold).
    ///
    /// # Errors
    ///
    /// If the store cannot decide. An error for which [`is_config`](Error::is_config) holds if a limit counts requests
    /// [in flight](crate::InFlight): call `hold`, and keep its guard until the request has ended.
    fn check(&self, key: &Key, options: impl Into<AcquireOptions>) -> LimiterFuture<Decision>
    where
        Self: Sized,
    {
        self.acquire(key, options.into().without_guard()).map_result(|result| Ok(result?.check_guard(false)?.decision))
    }

    /// Holds the cost instead of charging it, if the request is allowed. An integer is the cost of the request.
    ///
    /// A held cost counts like a charged one, until the guard in [`Outcome::held`] settles or releases it. Keep the guard
    /// until the request has ended, as [`AcquireOptions::hold`] declares.
    ///
    /// # Errors
    ///
    /// If the store cannot decide, or the limiter cannot hold a cost.
    fn hold(&self, key: &Key, options: impl Into<AcquireOptions>) -> LimiterFuture<Outcome>
    where
        Self: Sized,
    {
        self.acquire(key, options.into().hold())
    }

    /// Ends the hold with this [id](AcquireOptions::id) on the key, and charges `actual`: a number, or
    /// [`Costs`](crate::Costs). Any process that shares the store can call it.
    ///
    /// The first call takes effect. Each later one succeeds and changes nothing. After the hold's expiry only what
    /// exceeds the held cost is charged. Each limit charges its own actual cost, as [`Held::settle`] says.
    ///
    /// # Errors
    ///
    /// - [`is_unknown_id`](Error::is_unknown_id): the key has no remembered hold with this id. Nothing is charged.
    /// - No limit names one of the units, or the id is empty.
    /// - The store cannot record the charge, or the limiter does not support ids.
    ///
    /// # Cancellation
    ///
    /// The settlement takes effect even if the future is dropped. After an error of the store, call it again.
    fn settle(&self, key: &Key, id: impl Into<ReservationId>, actual: impl Into<Costs>) -> LimiterFuture<()>
    where
        Self: Sized,
    {
        self.administer(key, AdminOperation::Settle { id: id.into(), actual: actual.into() })
    }

    /// Ends the hold with this [id](AcquireOptions::id) on the key, and charges nothing.
    ///
    /// # Errors
    ///
    /// As for [`settle`](Self::settle).
    fn release(&self, key: &Key, id: impl Into<ReservationId>) -> LimiterFuture<()>
    where
        Self: Sized,
    {
        self.settle(key, id, 0)
    }

    /// Returns the decision that [`acquire`](Self::acquire) would return, without charging. It ignores an id.
    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        let _ = (key, options);
        LimiterFuture::unsupported("peek failed: this limiter does not support it")
    }

    /// Names the limits that apply to a key, with the part of the key by which each counts, and the
    /// [units](crate::Limit::cost_of) of all limits.
    ///
    /// The layer lets requests that one limit denies wait in one queue, also if their keys differ. By default the requests
    /// of each key wait in a queue of their own. A limiter around others ([`Chained`], [`Fallback`]) accepts costs in the
    /// units of all of them. A limiter around another one should forward the call.
    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        let _ = (key, limits);
    }

    /// Runs an administrative operation on a key, or settles a hold by its id.
    ///
    /// Callers call `set_usage`, `block`, `reset`, `settle` and `release`, which call this method.
    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        let _ = key;
        LimiterFuture::unsupported(match operation {
            AdminOperation::SetUsage { .. } => "set usage failed: this limiter does not support it",
            AdminOperation::Block { .. } => "block failed: this limiter does not support it",
            AdminOperation::Reset => "reset failed: this limiter does not support it",
            AdminOperation::Settle { .. } => "settling failed: this limiter does not support reservation ids",
        })
    }

    /// Sets the usage of a key under one limit, as if the key had used `used` just now.
    ///
    /// A limit that was not named has the name `default`. `key` is the key that the layer's extractor returns: see
    /// [`PeerIp::key_of`](crate::PeerIp::key_of), [`ClientIp::key_of`](crate::ClientIp::key_of),
    /// [`Credential::key_of`](crate::key::Credential::key_of) and [`KeyText`](crate::key::KeyText).
    ///
    /// # Errors
    ///
    /// If there is no limit with this name, or the store cannot record the usage.
    fn set_usage(&self, limit: &str, key: &Key, used: u64) -> LimiterFuture<()> {
        self.administer(key, AdminOperation::SetUsage { limit, used })
    }

    /// Blocks a key under one limit: the limit denies the key for `duration`, whatever its usage.
    ///
    /// A block applies to the sub-key by which the limit counts. A later block replaces an earlier one, and a block of
    /// [`Duration::ZERO`] unblocks the key. The usage of the key does not change. `limit` and `key` are as in
    /// [`set_usage`](Self::set_usage).
    ///
    /// [`Memory`](crate::Memory) keeps as many blocks for each part of its table as the part has slots, which is at least
    /// [`max_keys`](crate::MemoryBuilder::max_keys) in total. Of more blocks, the one that ends first is dropped.
    ///
    /// # Errors
    ///
    /// If there is no limit with this name, or the store cannot record the block.
    fn block(&self, limit: &str, key: &Key, duration: Duration) -> LimiterFuture<()> {
        self.administer(key, AdminOperation::Block { limit, duration, reason: BlockReason::Administrator })
    }

    /// Resets the usage of a key under all limits to the usage of a never-seen key. Blocks stay.
    ///
    /// # Errors
    ///
    /// If the store cannot be changed.
    fn reset(&self, key: &Key) -> LimiterFuture<()> {
        self.administer(key, AdminOperation::Reset)
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

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        (**self).administer(key, operation)
    }
}
