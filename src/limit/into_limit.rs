use super::select::sealed;
use super::{AlgorithmSelector, Limit, PerKey, WholeKey};
use crate::algorithm::Algorithm;
use crate::decision::Name;

/// Conversion into a [`Limit`]: from an algorithm, from [`per_key`](super::per_key), or from a `Limit`.
///
/// The trait is sealed. Use it as a bound in functions that build limiters.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither an algorithm nor a limit",
    note = "a quota needs an algorithm: for example `Gcra::new(quota)`",
    note = "several limits are a tuple `(limit, limit)`; a `Vec` for `Memory` has `DynLimit::new(limit)` as elements"
)]
pub trait IntoLimit: sealed::Sealed {
    #[doc(hidden)]
    type Selector: AlgorithmSelector;
    #[doc(hidden)]
    type SubKeyFn;

    /// Converts into a limit; one without a name is named `default`.
    fn into_limit(self) -> Limit<Self::Selector, Self::SubKeyFn>;
}

// Without the attribute the compiler would suggest to implement `Algorithm` for a quota.
#[diagnostic::do_not_recommend]
impl<A: Algorithm> IntoLimit for A {
    type Selector = A;
    type SubKeyFn = WholeKey;

    fn into_limit(self) -> Limit<A> {
        Limit::named(Name::DEFAULT, self)
    }
}

impl<F: Send + Sync + 'static, A: Algorithm> IntoLimit for PerKey<F, A> {
    type Selector = Self;
    type SubKeyFn = WholeKey;

    fn into_limit(self) -> Limit<Self> {
        Limit::named(Name::DEFAULT, self)
    }
}

impl<S: AlgorithmSelector, P> IntoLimit for Limit<S, P> {
    type Selector = S;
    type SubKeyFn = P;

    fn into_limit(self) -> Self {
        self
    }
}
