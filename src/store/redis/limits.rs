use std::borrow::Borrow as _;
use std::cell::Cell;
use std::hash::Hasher;
use std::sync::Arc;

use super::script::{DynLuaAlgorithm, FixedAlgorithm, LimitInfo, OwnAlgorithm};
use crate::algorithm::{Algorithm, LuaAlgorithm};
use crate::encode::{EncodeKey, KeyWriter};
use crate::limit::{AlgorithmSelector, IntoLimit, Limit, SelectAlgorithm, SubKeyOf};
use crate::store::inner::{impl_into_limits, with_scratch};

/// A limit on keys of type `Key`, of any algorithm and sub-key: for limits that are known only at run time, in a `Vec`.
///
/// A [`DynLimit`](crate::DynLimit) of `Memory` is another type, because its algorithm needs no Lua implementation, and its
/// sub-key no encoding.
///
/// ```
/// use tower_ratelimit::store::RedisLimit;
/// use tower_ratelimit::{FixedWindow, Gcra, Limit, Quota};
///
/// let limits: Vec<RedisLimit<u64>> = vec![
///     RedisLimit::new(Limit::new("second", Gcra::new(Quota::per_second(10)))),
///     RedisLimit::new(Limit::new("day", FixedWindow::new(Quota::per_day(1000)))),
/// ];
/// ```
pub struct RedisLimit<Key: ?Sized>(pub(crate) Box<dyn RedisBoundLimit<Key>>);

impl<Key: ?Sized> RedisLimit<Key> {
    /// Wraps an algorithm, `per_key(..)` or a `Limit`.
    pub fn new<L>(limit: L) -> Self
    where
        L: IntoLimit,
        L::Selector: SelectAlgorithm<Key>,
        <L::Selector as AlgorithmSelector>::Algorithm: LuaAlgorithm,
        L::SubKeyFn: SubKeyOf<Key>,
        <L::SubKeyFn as SubKeyOf<Key>>::SubKey: EncodeKey,
    {
        Self(Box::new(Arc::new(limit.into_limit())))
    }
}

impl_debug!([Key: ?Sized] RedisLimit<Key> |limit| { name: limit.0.info().facts.name.as_str() });

/// The limits of a [`Redis`](super::Redis) limiter for keys of type `Key`: an algorithm, [`per_key`](crate::per_key), a
/// [`Limit`](crate::Limit), a tuple of up to eight of these, or a `Vec` of [`RedisLimit`]s.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limit that `Redis` can apply to keys of type `{Key}`",
    note = "use an algorithm, `per_key(..)`, a `Limit`, a tuple of up to eight of these, or a \
    `Vec<RedisLimit<Key>>`; their \
            sub-keys must be `EncodeKey`, and their algorithms `LuaAlgorithm`"
)]
pub trait IntoRedisLimits<Key: ?Sized> {
    /// Returns the limits in their order.
    fn into_limits(self) -> Vec<RedisLimit<Key>>;
}

impl_into_limits!(IntoRedisLimits, RedisLimit, LuaAlgorithm);

/// A limit on a part of keys of type `Key`.
pub(crate) trait RedisBoundLimit<Key: ?Sized>: Send + Sync {
    fn info(&self) -> LimitInfo;

    /// Returns whether the limit applies to a key. The other methods are for keys to which it does.
    fn applies_to(&self, key: &Key) -> bool;

    /// Returns the units that the limit keeps free from requests of a key, `None` if it keeps none free from any request.
    fn kept_free(&self, key: &Key) -> Option<u64>;

    /// Writes the sub-key by which the limit counts.
    fn encode(&self, key: &Key, writer: &mut KeyWriter);

    /// Returns the algorithm for a key, if the limit chooses it by the key.
    fn own_algorithm(&self, key: &Key) -> OwnAlgorithm;

    /// Feeds the sub-key to a hasher, and the parameters of the algorithm if the key chooses it.
    fn hash(&self, key: &Key, hasher: &mut dyn Hasher);

    /// Returns how many requests may wait, if the limit bounds that.
    fn max_waiting(&self, key: &Key) -> Option<u64>;
}

impl<Key, C, P> RedisBoundLimit<Key> for Arc<Limit<C, P>>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key>,
    C::Algorithm: LuaAlgorithm,
    P: SubKeyOf<Key>,
    P::SubKey: EncodeKey,
{
    fn info(&self) -> LimitInfo {
        let fixed_algorithm = || Arc::<Limit<C, P>>::clone(self) as Arc<dyn FixedAlgorithm>;
        LimitInfo {
            facts: self.facts::<Key>(),
            script: <C::Algorithm as LuaAlgorithm>::SCRIPT,
            held_until_end: C::Algorithm::HELD_UNTIL_END,
            is_global: self.sub_key().facts().is_constant,
            warn_keys: self.warn_keys().cloned(),
            fixed_algorithm: self.algorithm().fixed().is_some().then(fixed_algorithm),
        }
    }

    fn applies_to(&self, key: &Key) -> bool {
        self.sub_key().applies_to(key)
    }

    fn kept_free(&self, key: &Key) -> Option<u64> {
        self.sub_key().kept_free(key)
    }

    fn encode(&self, key: &Key, writer: &mut KeyWriter) {
        self.sub_key().with_sub_key(key, |part| part.encode(writer));
    }

    fn own_algorithm(&self, key: &Key) -> OwnAlgorithm {
        self.algorithm().select_owned(key).map(|algorithm| Arc::new(algorithm) as Arc<dyn DynLuaAlgorithm>)
    }

    fn hash(&self, key: &Key, hasher: &mut dyn Hasher) {
        self.sub_key().with_sub_key(key, |part| part.hash_key(hasher));
        if self.algorithm().fixed().is_none() {
            thread_local! {
                static PARAMS: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
            }
            with_scratch(&PARAMS, |params| {
                params.clear();
                LuaAlgorithm::params(self.algorithm().select(key).borrow(), 0, params);
                for param in params {
                    hasher.write_u64(*param);
                }
            });
        }
    }

    fn max_waiting(&self, key: &Key) -> Option<u64> {
        self.algorithm().select(key).borrow().max_waiting()
    }
}

impl<C, P> FixedAlgorithm for Limit<C, P>
where
    C: AlgorithmSelector,
    C::Algorithm: LuaAlgorithm,
    P: Send + Sync,
{
    fn fixed_algorithm(&self) -> &dyn DynLuaAlgorithm {
        self.algorithm().fixed().expect("`info` names only limits with a fixed algorithm")
    }
}
