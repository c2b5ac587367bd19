use std::fmt;

use super::SubKeyOf;

/// Keeps units free from some requests: see [`Limit::keep_free_by`](super::Limit::keep_free_by).
#[derive(Clone)]
#[doc(hidden)]
pub struct KeepFree<P, F> {
    sub_key: P,
    /// `None` if the limit keeps nothing free. As for a condition, limits from configuration have one type.
    units: Option<F>,
}

impl<P, F> KeepFree<P, F> {
    pub(super) const fn new(sub_key: P, units: Option<F>) -> Self {
        Self { sub_key, units }
    }
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

    fn is_conditional(&self) -> bool {
        self.sub_key.is_conditional()
    }

    fn is_whole_key(&self) -> bool {
        self.sub_key.is_whole_key()
    }

    fn is_constant(&self) -> bool {
        self.sub_key.is_constant()
    }

    fn keeps_free(&self) -> bool {
        self.units.is_some()
    }

    fn kept_free(&self, key: &Key) -> Option<u64> {
        self.units.as_ref().map(|units| units(key))
    }
}

impl<P: fmt::Debug, F> fmt::Debug for KeepFree<P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepFree").field("sub_key", &self.sub_key).finish_non_exhaustive()
    }
}
