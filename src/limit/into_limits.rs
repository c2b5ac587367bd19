/// Implements a trait `Trait<Key>` with the method `into_limits(self) -> Vec<Wrapper<Key>>` for all that a shared store
/// accepts as limits: one limit, a tuple of up to eight, or a `Vec` of wrapped ones.
///
/// Their sub-keys must be [`EncodeKey`](crate::encode::EncodeKey), and their algorithms implement `Bound`. `Memory` has
/// an implementation of its own: a tuple there keeps the types of its limits (row "three limits" of benches/figures.md).
macro_rules! impl_into_limits {
    ($Trait:ident, $Wrapper:ident, $Bound:path) => {
        impl<Key: ?Sized> $Trait<Key> for Vec<$Wrapper<Key>> {
            fn into_limits(self) -> Self {
                self
            }
        }

        impl<Key, L> $Trait<Key> for L
        where
            Key: ?Sized,
            L: $crate::limit::IntoLimit,
            L::Selector: $crate::limit::SelectAlgorithm<Key>,
            <L::Selector as $crate::limit::AlgorithmSelector>::Algorithm: $Bound,
            L::SubKeyFn: $crate::limit::SubKeyOf<Key>,
            <L::SubKeyFn as $crate::limit::SubKeyOf<Key>>::SubKey: $crate::encode::EncodeKey,
        {
            fn into_limits(self) -> Vec<$Wrapper<Key>> {
                vec![$Wrapper::new(self)]
            }
        }

        $crate::limit::impl_into_limits! { @tuples $Trait, $Wrapper, $Bound:
            (A 0)
            (A 0, B 1)
            (A 0, B 1, C 2)
            (A 0, B 1, C 2, D 3)
            (A 0, B 1, C 2, D 3, E 4)
            (A 0, B 1, C 2, D 3, E 4, F 5)
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
        }
    };
    (@tuples $Trait:ident, $Wrapper:ident, $Bound:path: $(($($L:ident $index:tt),+))+) => {$(
        impl<Key, $($L: $crate::limit::IntoLimit),+> $Trait<Key> for ($($L,)+)
        where
            Key: ?Sized,
            $(
                $L::Selector: $crate::limit::SelectAlgorithm<Key>,
                <$L::Selector as $crate::limit::AlgorithmSelector>::Algorithm: $Bound,
                $L::SubKeyFn: $crate::limit::SubKeyOf<Key>,
                <$L::SubKeyFn as $crate::limit::SubKeyOf<Key>>::SubKey: $crate::encode::EncodeKey,
            )+
        {
            fn into_limits(self) -> Vec<$Wrapper<Key>> {
                vec![$($Wrapper::new(self.$index)),+]
            }
        }
    )+};
}

pub(crate) use impl_into_limits;
