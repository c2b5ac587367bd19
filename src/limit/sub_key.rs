use std::fmt;
use std::marker::PhantomData;

/// Returns the part of a key by which a limit counts: the sub-key.
#[doc(hidden)]
pub trait SubKeyOf<Key: ?Sized>: sealed::Sealed + Send + Sync + 'static {
    type SubKey: ?Sized;

    /// Calls `f` with the sub-key of `key`.
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&Self::SubKey) -> R) -> R;

    /// Returns whether the type shows that all keys have the same sub-key.
    fn is_constant(&self) -> bool {
        false
    }
}

mod sealed {
    #[allow(unnameable_types, reason = "sealed")]
    pub trait Sealed {}
    impl Sealed for super::WholeKey {}
    impl<F, SubKey> Sealed for super::KeyedBy<F, SubKey> {}
    impl<F, SubKey: ?Sized> Sealed for super::KeyedByRef<F, SubKey> {}
}

/// Counts by the whole key.
#[derive(Clone, Copy, Debug, Default)]
#[doc(hidden)]
pub struct WholeKey;

/// Counts by a value made from the key: see [`Limit::keyed_by`](super::Limit::keyed_by).
#[doc(hidden)]
pub struct KeyedBy<F, SubKey>(F, PhantomData<fn() -> SubKey>);

/// Counts by a part borrowed from the key: see [`Limit::keyed_by_ref`](super::Limit::keyed_by_ref).
#[doc(hidden)]
pub struct KeyedByRef<F, SubKey: ?Sized>(F, PhantomData<fn() -> Box<SubKey>>);

impl<F, SubKey> KeyedBy<F, SubKey> {
    pub(super) const fn new(sub_key: F) -> Self {
        Self(sub_key, PhantomData)
    }
}

impl<F, SubKey: ?Sized> KeyedByRef<F, SubKey> {
    pub(super) const fn new(sub_key: F) -> Self {
        Self(sub_key, PhantomData)
    }
}

impl<Key: ?Sized> SubKeyOf<Key> for WholeKey {
    type SubKey = Key;

    #[inline]
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&Key) -> R) -> R {
        f(key)
    }
}

impl<Key, SubKey, F> SubKeyOf<Key> for KeyedBy<F, SubKey>
where
    Key: ?Sized,
    SubKey: 'static,
    F: Fn(&Key) -> SubKey + Send + Sync + 'static,
{
    type SubKey = SubKey;

    #[inline]
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&SubKey) -> R) -> R {
        f(&(self.0)(key))
    }

    fn is_constant(&self) -> bool {
        // A type of size zero has at most one value.
        size_of::<SubKey>() == 0
    }
}

impl<Key, SubKey, F> SubKeyOf<Key> for KeyedByRef<F, SubKey>
where
    Key: ?Sized,
    SubKey: ?Sized + 'static,
    F: Fn(&Key) -> &SubKey + Send + Sync + 'static,
{
    type SubKey = SubKey;

    #[inline]
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&SubKey) -> R) -> R {
        f((self.0)(key))
    }
}

impl<F: Clone, SubKey> Clone for KeyedBy<F, SubKey> {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl<F: Clone, SubKey: ?Sized> Clone for KeyedByRef<F, SubKey> {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl<F, SubKey> fmt::Debug for KeyedBy<F, SubKey> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedBy").finish_non_exhaustive()
    }
}

impl<F, SubKey: ?Sized> fmt::Debug for KeyedByRef<F, SubKey> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedByRef").finish_non_exhaustive()
    }
}
