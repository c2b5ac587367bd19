use std::fmt;

use super::Limit;
use super::sub_key::{SubKeyFacts, SubKeyOf};

impl<A, P> Limit<A, P> {
    /// Keeps units of the limit free from some requests: priority classes.
    ///
    /// `units` returns for a key how many units its requests must leave to others. The limit allows such a request only
    /// if the units are free besides the cost of the request and all held costs, and then charges the cost alone. 0 is
    /// the highest priority: such a request may use the whole limit. For a request, the numbers of the limit are those
    /// without the units that are kept free from it, and its `retry_after` is exact. A cost that exceeds the limit less
    /// these units is never allowed.
    ///
    /// The units are free again as the limit drains, so a class with few units kept free is admitted at the rate of the
    /// limit, if requests of other classes leave that rate. Surcharges can use units that are kept free.
    ///
    /// A limit that keeps units free schedules no later starts, so [`LeakyQueue`](crate::LeakyQueue) cannot keep any:
    /// the limiter cannot be built. `units` reads the key, so each limit of the limiter needs a sub-key, as beside
    /// [`only_if`](Self::only_if): call this method after `keyed_by`. `units` must always return the same for the same
    /// key. A limiter with [leases](crate::store) and such a limit cannot be built.
    ///
    /// ```
    /// use tower_ratelimit::{Gcra, Limit, Memory, Quota};
    ///
    /// struct Call {
    ///     is_bulk: bool,
    /// }
    ///
    /// let all = Limit::new("all", Gcra::new(Quota::per_second(80)).burst(40))
    ///     .keyed_by(|_: &Call| ())
    ///     .keep_free_by(|call: &Call| if call.is_bulk { 30 } else { 0 });
    /// let limiter = Memory::new(all);
    /// assert_eq!(limiter.check(&Call { is_bulk: true }, 10).remaining(), Some(0));
    /// assert!(!limiter.check(&Call { is_bulk: true }, 1).is_allowed());
    /// assert!(limiter.check(&Call { is_bulk: false }, 30).is_allowed());
    /// ```
    pub fn keep_free_by<Key: ?Sized, F: Fn(&Key) -> u64>(self, units: F) -> Limit<A, KeepFree<P, F>> {
        self.map_sub_key(|sub_key| KeepFree { sub_key, units: Some(units) })
    }

    /// Sets the units that a limit from configuration keeps free, if it keeps any.
    #[cfg(feature = "serde")]
    pub(crate) fn keep_free_by_some<F>(self, units: Option<F>) -> Limit<A, KeepFree<P, F>> {
        self.map_sub_key(|sub_key| KeepFree { sub_key, units })
    }

    /// Returns the units that the limit keeps free from requests of `key` that borrow, if it keeps any free.
    #[inline]
    pub(crate) fn kept_free<Key: ?Sized>(&self, key: &Key) -> Option<u64>
    where
        P: SubKeyOf<Key>,
    {
        self.share.kept_free(self.sub_key.kept_free(key))
    }
}

/// Keeps units free from some requests: see [`Limit::keep_free_by`].
#[derive(Clone)]
#[doc(hidden)]
pub struct KeepFree<P, F> {
    sub_key: P,
    /// `None` if the limit keeps nothing free. As for a condition, limits from configuration have one type.
    units: Option<F>,
}

impl<Key, P, F> SubKeyOf<Key> for KeepFree<P, F>
where
    Key: ?Sized,
    P: SubKeyOf<Key>,
    F: Fn(&Key) -> u64 + Send + Sync + 'static,
{
    type SubKey = P::SubKey;

    #[inline]
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&P::SubKey) -> R) -> Option<R> {
        self.sub_key.with_sub_key(key, f)
    }

    fn facts(&self) -> SubKeyFacts {
        SubKeyFacts { keeps_free: self.units.is_some(), ..self.sub_key.facts() }
    }

    fn kept_free(&self, key: &Key) -> Option<u64> {
        self.units.as_ref().map(|units| units(key))
    }
}

impl_debug!([P: fmt::Debug, F] KeepFree<P, F> { sub_key });
