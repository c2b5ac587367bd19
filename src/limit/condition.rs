use std::fmt;

use super::sub_key::{SubKeyFacts, SubKeyOf};

/// Applies to the keys that satisfy a condition: see [`Limit::only_if`](super::Limit::only_if).
#[derive(Clone)]
#[doc(hidden)]
pub struct OnlyIf<P, F> {
    pub(super) sub_key: P,
    /// `None` if the limit applies to every key. With and without a condition, limits from configuration have one type,
    /// so a limit that is replaced keeps its usage.
    pub(super) condition: Option<F>,
}

impl<Key, P, F> SubKeyOf<Key> for OnlyIf<P, F>
where
    Key: ?Sized,
    P: SubKeyOf<Key>,
    F: Fn(&Key) -> bool + Send + Sync + 'static,
{
    type SubKey = P::SubKey;

    #[inline]
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&P::SubKey) -> R) -> Option<R> {
        if self.condition.as_ref().is_none_or(|condition| condition(key)) {
            self.sub_key.with_sub_key(key, f)
        } else {
            None
        }
    }

    fn facts(&self) -> SubKeyFacts {
        let facts = self.sub_key.facts();
        SubKeyFacts { is_conditional: self.condition.is_some() || facts.is_conditional, ..facts }
    }

    fn kept_free(&self, key: &Key) -> Option<u64> {
        self.sub_key.kept_free(key)
    }
}

impl_debug!([P: fmt::Debug, F] OnlyIf<P, F> { sub_key });
