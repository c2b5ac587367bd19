use std::borrow::Borrow;

use super::PerKey;
use crate::algorithm::Algorithm;

/// The algorithm of a limit, or [`per_key`](super::per_key): the half of [`SelectAlgorithm`] that needs no key type.
///
/// A store is generic over this trait where it has no key, for instance in the type of its table.
#[doc(hidden)]
pub trait AlgorithmSelector: sealed::Sealed + Send + Sync + 'static {
    type Algorithm: Algorithm;

    /// Returns the algorithm if it is the same for all keys.
    fn fixed(&self) -> Option<&Self::Algorithm> {
        None
    }
}

/// Returns the algorithm for a key.
#[doc(hidden)]
pub trait SelectAlgorithm<Key: ?Sized>: AlgorithmSelector {
    /// A reference to an algorithm, or an algorithm.
    type Selected<'a>: Borrow<Self::Algorithm>
    where
        Self: 'a;

    fn select(&self, key: &Key) -> Self::Selected<'_>;

    /// Returns an owned algorithm for `key`, `None` if [`fixed`](AlgorithmSelector::fixed) returns one.
    fn select_owned(&self, key: &Key) -> Option<Self::Algorithm> {
        let _ = key;
        None
    }
}

pub(super) mod sealed {
    use crate::algorithm::Algorithm;

    #[allow(unnameable_types, reason = "sealed")]
    pub trait Sealed {}

    impl<A: Algorithm> Sealed for A {}
    impl<F, A: Algorithm> Sealed for crate::limit::PerKey<F, A> {}
    impl<S, P> Sealed for crate::limit::Limit<S, P> {}
}

impl<A: Algorithm> AlgorithmSelector for A {
    type Algorithm = A;

    fn fixed(&self) -> Option<&A> {
        Some(self)
    }
}

impl<Key: ?Sized, A: Algorithm> SelectAlgorithm<Key> for A {
    type Selected<'a> = &'a A;

    #[inline]
    fn select(&self, _key: &Key) -> &A {
        self
    }
}

impl<F: Send + Sync + 'static, A: Algorithm> AlgorithmSelector for PerKey<F, A> {
    type Algorithm = A;
}

impl<Key: ?Sized, A: Algorithm, F: Fn(&Key) -> A + Send + Sync + 'static> SelectAlgorithm<Key> for PerKey<F, A> {
    type Selected<'a>
        = A
    where
        F: 'a;

    #[inline]
    fn select(&self, key: &Key) -> A {
        (self.0)(key)
    }

    fn select_owned(&self, key: &Key) -> Option<A> {
        Some((self.0)(key))
    }
}
