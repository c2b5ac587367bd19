use std::fmt;
use std::sync::Arc;

use super::bound::AnyLimit;
use super::transaction::StoreTransaction;
use crate::decision::AcquireOptions;
use crate::encode::EncodeKey;
use crate::error::Error;
use crate::limit::{IntoLimit, SelectAlgorithm, SubKeyOf};
use crate::limiter::LimitsOfKey;
use crate::store::inner::{LimitFacts, check_limits, impl_into_limits};

/// The limits of a store of your own, such as a table of a database.
///
/// A [`Limiter`](crate::Limiter) of your own gets all of the crate's limits from this type: several limits in one
/// decision, tiers, shadows, fixed costs, delays, blocks. The store keeps one value for each key: see
/// [`StoreTransaction`]. It needs to know nothing of the values but the time at which each expires.
///
/// The limits are the same as in [`Memory`](crate::Memory): an algorithm, [`per_key`](crate::per_key), a
/// [`Limit`](crate::Limit), a tuple of up to eight of these, or a `Vec` of [`StoreLimit`]s. Their sub-keys are
/// [`EncodeKey`](crate::key::EncodeKey). Three kinds of limits are errors when they are built:
///
/// | Limit | Because | Instead |
/// |---|---|---|
/// | [`InFlight`](crate::InFlight) | a store of your own holds no costs | `Memory` or `Redis`, with [`Chained`](crate::limiter::Chained) |
/// | a [`SlidingLog`](crate::SlidingLog) with a limit above [`MAX_HITS`](StoreLimits::MAX_HITS) | a decision reads and writes the whole log | [`SlidingWindow`](crate::SlidingWindow) |
/// | an algorithm of your own without [`STATE_NAME`](crate::algorithm::Algorithm::STATE_NAME) | another algorithm would misread its states | set the name |
///
/// A decision that must [hold](crate::limiter::Held) its cost is an error for which
/// [`is_unsupported`](Error::is_unsupported) returns true. The documentation of [`Limiter`](crate::Limiter) has a table of
/// what each limiter supports.
///
/// # Example
///
/// A store in a map. `examples/postgres` in the repository is a store in a database, for many processes.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Mutex;
///
/// use tower_ratelimit::limiter::{LimiterFuture, Outcome};
/// use tower_ratelimit::store::StoreLimits;
/// use tower_ratelimit::{AcquireOptions, Clock, Decision, Error, FixedWindow, Gcra, Limit, Limiter, Quota, SystemClock};
///
/// struct MapStore<Key: ?Sized> {
///     limits: StoreLimits<Key>,
///     values: Mutex<HashMap<String, Vec<u8>>>,
///     clock: SystemClock,
/// }
///
/// impl<Key: ?Sized> MapStore<Key> {
///     fn decide(&self, key: &Key, options: AcquireOptions) -> Result<Decision, Error> {
///         let transaction = self.limits.transaction(key, options)?;
///         // Nothing may change the values between reading and writing.
///         let mut values = self.values.lock().unwrap();
///         let states: Vec<_> = transaction.keys().iter().map(|key| values.get(key)).collect();
///         let (decision, writes) = transaction.decide(&states, self.clock.now())?;
///         for (key, write) in transaction.keys().iter().zip(writes) {
///             if let Some(write) = write {
///                 values.insert(key.clone(), write.state);
///             }
///         }
///         Ok(decision)
///     }
/// }
///
/// impl<Key: ?Sized + 'static> Limiter<Key> for MapStore<Key> {
///     fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
///         LimiterFuture::ready(self.decide(key, options).map(Outcome::from))
///     }
/// }
///
/// let limits = StoreLimits::<str>::new((
///     Limit::new("smooth", Gcra::new(Quota::per_second(10))),
///     Limit::new("daily", FixedWindow::new(Quota::per_day(2))),
/// ))?;
/// let store = MapStore { limits, values: Mutex::default(), clock: SystemClock::new() };
/// assert!(store.decide("alice", AcquireOptions::default())?.is_allowed());
/// assert!(store.decide("alice", AcquireOptions::default())?.is_allowed());
/// let denied = store.decide("alice", AcquireOptions::default())?;
/// assert_eq!(denied.most_restrictive().map(|limit| limit.name()), Some("daily"));
/// # Ok::<(), Error>(())
/// ```
pub struct StoreLimits<Key: ?Sized> {
    limits: Vec<StoreLimit<Key>>,
}

impl<Key: ?Sized> StoreLimits<Key> {
    /// The maximum limit of a [`SlidingLog`](crate::SlidingLog): a thousand hits, which take 16 kilobytes.
    pub const MAX_HITS: usize = super::layout::MAX_HITS;

    /// The maximum length of a state, in bytes. All states but logs are shorter than 1100 bytes.
    pub const MAX_STATE_BYTES: usize = super::layout::MAX_STATE_BYTES;

    /// Creates the limits.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot keep the states of a limit (see the table above), if there is no limit, or if
    /// a limit's name is empty or not unique.
    pub fn new(limits: impl IntoStoreLimits<Key>) -> Result<Self, Error> {
        let mut limits = limits.into_limits();
        let shares = check_limits(&limits.iter().map(|limit| limit.facts.clone()).collect::<Vec<_>>())?;
        for StoreLimit { limit, .. } in &mut limits {
            limit.set_shares(shares);
            limit.check()?;
        }
        Ok(Self { limits })
    }

    /// Returns the transaction of one acquire call.
    ///
    /// It selects the algorithm of each limit for the key, and borrows nothing: a future may contain it.
    ///
    /// # Errors
    ///
    /// Returns an error if the cost must be held, if no limit names a unit of the costs, or if the algorithm that is selected for the key has too large states.
    pub fn transaction(&self, key: &Key, options: AcquireOptions) -> Result<StoreTransaction, Error> {
        if options.hold {
            return Err(Error::unsupported(
                "holding a cost failed: a store of your own charges at once and holds nothing; charge without \
                 `settle`, or use `Memory` or `Redis`",
            ));
        }
        options.check_no_id("a store of your own")?;
        options.check_units(|visit| self.limits.iter().filter_map(|limit| limit.facts.cost.unit()).for_each(visit))?;
        let (mut keys, mut limits, mut not_applying) = (Vec::new(), Vec::new(), Vec::new());
        for limit in &self.limits {
            if let Some(state_key) = limit.limit.state_key(key) {
                keys.push(state_key);
                limits.push(limit.limit.bind(key)?);
            } else {
                not_applying.push(limit.name().to_owned());
            }
        }
        Ok(StoreTransaction { keys, limits, not_applying, options })
    }

    /// Names the limits that apply to a key and the units of all limits, for [`Limiter::limits_of`](crate::Limiter::limits_of).
    pub fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        if !limits.add_all(|visit| self.limits.iter().for_each(|limit| limit.facts.describe(visit))) {
            self.limits.iter().for_each(|limit| limit.limit.name_limit(key, limits));
        }
    }
}

impl<Key: ?Sized> fmt::Debug for StoreLimits<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreLimits").field("limits", &self.limits).finish()
    }
}

/// A limit on keys of type `Key`, of any algorithm and sub-key: for [`StoreLimits`] that are known only at run time, in a
/// `Vec`.
///
/// It is no [`DynLimit`](crate::DynLimit), because its sub-key needs an encoding, and no `RedisLimit`, because its algorithm
/// needs no Lua implementation.
pub struct StoreLimit<Key: ?Sized> {
    facts: LimitFacts,
    limit: Box<dyn AnyLimit<Key>>,
}

impl<Key: ?Sized> StoreLimit<Key> {
    /// Wraps an algorithm, `per_key(..)` or a `Limit`.
    pub fn new<L>(limit: L) -> Self
    where
        L: IntoLimit,
        L::Selector: SelectAlgorithm<Key>,
        L::SubKeyFn: SubKeyOf<Key>,
        <L::SubKeyFn as SubKeyOf<Key>>::SubKey: EncodeKey,
    {
        let limit = limit.into_limit();
        Self { facts: limit.facts::<Key>(), limit: Box::new(Arc::new(limit)) }
    }

    /// Returns the limit's name.
    pub fn name(&self) -> &str {
        self.facts.name.as_str()
    }
}

impl_debug!([Key: ?Sized] StoreLimit<Key> |limit| { name: limit.name() });

/// The limits of a [`StoreLimits`] for keys of type `Key`.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limit that `StoreLimits` can apply to keys of type `{Key}`",
    note = "use an algorithm, `per_key(..)`, a `Limit`, a tuple of up to eight of these, or a `Vec<StoreLimit<Key>>`; \
            their sub-keys must be `EncodeKey`"
)]
pub trait IntoStoreLimits<Key: ?Sized> {
    /// Returns the limits in their order.
    fn into_limits(self) -> Vec<StoreLimit<Key>>;
}

impl_into_limits!(IntoStoreLimits, StoreLimit, crate::algorithm::Algorithm);
