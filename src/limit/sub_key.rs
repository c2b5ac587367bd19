use std::marker::PhantomData;

/// Returns the part of a key by which a limit counts: the sub-key.
#[doc(hidden)]
pub trait SubKeyOf<Key: ?Sized>: sealed::Sealed + Send + Sync + 'static {
    type SubKey: ?Sized;

    /// Calls `f` with the sub-key of `key`. Returns `None` if the limit does not apply to `key`.
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&Self::SubKey) -> R) -> Option<R>;

    /// Returns whether the limit applies to `key`.
    fn applies_to(&self, key: &Key) -> bool {
        self.with_sub_key(key, |_| ()).is_some()
    }

    /// Returns what holds for all keys.
    fn facts(&self) -> SubKeyFacts {
        SubKeyFacts::default()
    }

    /// Returns the units that the limit keeps free from requests of `key`, `None` if it keeps none free from any request.
    #[inline]
    fn kept_free(&self, key: &Key) -> Option<u64> {
        let _ = key;
        None
    }
}

/// What holds for all keys of a limit.
#[derive(Clone, Copy, Debug, Default)]
#[doc(hidden)]
#[non_exhaustive]
pub struct SubKeyFacts {
    /// There may be keys to which the limit does not apply.
    pub(crate) is_conditional: bool,
    /// The sub-key is the whole key.
    pub(crate) is_whole_key: bool,
    /// The type shows that all keys to which the limit applies have the same sub-key.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for Redis"))]
    pub(crate) is_constant: bool,
    /// The limit keeps units free from some requests.
    pub(crate) keeps_free: bool,
}

mod sealed {
    #[allow(unnameable_types, reason = "sealed")]
    pub trait Sealed {}
    impl Sealed for super::WholeKey {}
    impl<F, Returned> Sealed for super::KeyedBy<F, Returned> {}
    impl<P, F> Sealed for crate::limit::OnlyIf<P, F> {}
    impl<P, F> Sealed for crate::limit::KeepFree<P, F> {}
}

/// Counts by the whole key.
#[derive(Clone, Copy, Debug, Default)]
#[doc(hidden)]
pub struct WholeKey;

/// Counts by what a function returns: `(SubKey,)` for a value, `&'static SubKey` for what the key lends, and
/// `Option<SubKey>` for a value that some keys do not have.
#[doc(hidden)]
pub struct KeyedBy<F, Returned>(F, PhantomData<fn() -> Returned>);

impl<F, Returned> KeyedBy<F, Returned> {
    pub(super) const fn new(sub_key: F) -> Self {
        Self(sub_key, PhantomData)
    }
}

impl<F: Clone, Returned> Clone for KeyedBy<F, Returned> {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl_debug!([F, Returned] KeyedBy<F, Returned> {});

impl<Key: ?Sized> SubKeyOf<Key> for WholeKey {
    type SubKey = Key;

    #[inline]
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&Key) -> R) -> Option<R> {
        Some(f(key))
    }

    fn facts(&self) -> SubKeyFacts {
        SubKeyFacts { is_whole_key: true, ..SubKeyFacts::default() }
    }
}

impl<Key, SubKey, F> SubKeyOf<Key> for KeyedBy<F, (SubKey,)>
where
    Key: ?Sized,
    SubKey: 'static,
    F: Fn(&Key) -> SubKey + Send + Sync + 'static,
{
    type SubKey = SubKey;

    #[inline]
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&SubKey) -> R) -> Option<R> {
        Some(f(&(self.0)(key)))
    }

    fn facts(&self) -> SubKeyFacts {
        // A type of size zero has at most one value.
        SubKeyFacts { is_constant: size_of::<SubKey>() == 0, ..SubKeyFacts::default() }
    }
}

impl<Key, SubKey, F> SubKeyOf<Key> for KeyedBy<F, &'static SubKey>
where
    Key: ?Sized,
    SubKey: ?Sized + 'static,
    F: Fn(&Key) -> &SubKey + Send + Sync + 'static,
{
    type SubKey = SubKey;

    #[inline]
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&SubKey) -> R) -> Option<R> {
        Some(f((self.0)(key)))
    }
}

impl<Key, SubKey, F> SubKeyOf<Key> for KeyedBy<F, Option<SubKey>>
where
    Key: ?Sized,
    SubKey: 'static,
    F: Fn(&Key) -> Option<SubKey> + Send + Sync + 'static,
{
    type SubKey = SubKey;

    #[inline]
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&SubKey) -> R) -> Option<R> {
        (self.0)(key).map(|sub_key| f(&sub_key))
    }

    fn facts(&self) -> SubKeyFacts {
        SubKeyFacts { is_conditional: true, is_constant: size_of::<SubKey>() == 0, ..SubKeyFacts::default() }
    }
}
