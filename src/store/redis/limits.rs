use std::sync::Arc;

use super::bound_limit::{BoundLimit, RedisBoundLimit};
use crate::algorithm::LuaAlgorithm;
use crate::encode::EncodeKey;
use crate::limit::{AlgorithmSelector, IntoLimit, SelectAlgorithm, SubKeyOf};
use crate::store::inner::impl_into_limits;

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
        Self(Box::new(BoundLimit(Arc::new(limit.into_limit()))))
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
