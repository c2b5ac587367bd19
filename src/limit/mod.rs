//! Named limits: an algorithm and the part of the key by which it counts.

mod cost;
mod into_limit;
mod per_key;
mod select;
mod sub_key;

use std::borrow::Cow;
use std::fmt;

pub(crate) use self::cost::LimitCost;
pub use self::into_limit::IntoLimit;
pub use self::per_key::{PerKey, per_key};
pub use self::select::{AlgorithmSelector, SelectAlgorithm};
pub use self::sub_key::{KeyedBy, KeyedByRef, SubKeyOf, WholeKey};
use crate::decision::{Name, first_invalid_name_char};
use crate::error::Error;

/// A named limit on a key or on a part of the key.
///
/// An algorithm without a `Limit` is a limit named `default` that counts by the whole key. Several limits in a tuple
/// are one transaction: if every limit allows the request, all are charged; otherwise none is.
///
/// # Waiting for several limits
///
/// If the caller accepts a delay, the limiter schedules a later start only under two conditions:
///
/// - every limit (shadows apart) supports scheduling, and
/// - every limit is in use at least until that start.
///
/// A limit without usage until then would reserve capacity for the whole delay that other requests could use. Where the
/// limiter schedules nothing, it denies the request and returns the exact `retry_after`; the caller may then ask again.
/// Of several such callers the first that asks again gets the capacity. Requests that wait in the
/// [layer](crate::RateLimitLayer::max_wait) are in a queue, and start first come, first served.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, Limit, Memory, Quota};
///
/// struct Caller {
///     user: u64,
///     organisation: String,
/// }
///
/// let limiter = Memory::new((
///     Limit::new("user", Gcra::new(Quota::per_second(10))).keyed_by(|caller: &Caller| caller.user),
///     Limit::new("organisation", FixedWindow::new(Quota::per_hour(1000)))
///         .keyed_by_ref(|caller: &Caller| caller.organisation.as_str()),
///     Limit::new("global", Gcra::new(Quota::per_second(5000))).keyed_by(|_: &Caller| ()),
/// ));
///
/// let caller = Caller { user: 7, organisation: "acme".to_owned() };
/// assert!(limiter.check(&caller, AcquireOptions::default()).is_allowed());
/// ```
#[derive(Clone)]
pub struct Limit<A, P = WholeKey> {
    name: Name,
    algorithm: A,
    sub_key: P,
    /// The sub-key's name in configuration, where the type of `sub_key` does not identify it.
    sub_key_name: Option<Name>,
    cost: LimitCost,
    shadow: bool,
}

impl<A> Limit<A> {
    /// Creates a limit that counts by the whole key.
    ///
    /// `algorithm` is one algorithm for all keys, or [`per_key`].
    ///
    /// The name identifies the limit in header fields, in decisions and in Redis. It must not be empty, and consists
    /// of printable ASCII without `"` and `\`, because header fields and bodies carry those characters unchanged. To
    /// build a limiter with another name is an error. Where layers are stacked, clients distinguish their limits by
    /// the names.
    pub fn new(name: impl Into<Cow<'static, str>>, algorithm: A) -> Self {
        Self::named(name.into().into(), algorithm)
    }

    fn named(name: Name, algorithm: A) -> Self {
        Self { name, algorithm, sub_key: WholeKey, sub_key_name: None, cost: LimitCost::OfRequest, shadow: false }
    }

    /// Counts by the value that `sub_key` returns: a number, an address, or `()` for one count over all keys.
    ///
    /// If `sub_key` returns an `Option`, `None` is a value like others: all keys with `None` share one count.
    pub fn keyed_by<Key: ?Sized, SubKey, F: Fn(&Key) -> SubKey>(self, sub_key: F) -> Limit<A, KeyedBy<F, SubKey>> {
        self.with_sub_key(KeyedBy::new(sub_key))
    }

    /// Counts by a part of the key that `sub_key` borrows.
    pub fn keyed_by_ref<Key: ?Sized, SubKey: ?Sized, F: Fn(&Key) -> &SubKey>(
        self,
        sub_key: F,
    ) -> Limit<A, KeyedByRef<F, SubKey>> {
        self.with_sub_key(KeyedByRef::new(sub_key))
    }

    fn with_sub_key<P>(self, sub_key: P) -> Limit<A, P> {
        let Self { name, algorithm, cost, shadow, .. } = self;
        Limit { name, algorithm, sub_key, sub_key_name: None, cost, shadow }
    }
}

impl<A, P> Limit<A, P> {
    /// Makes the limit a shadow: it decides and counts, and never denies a request.
    ///
    /// Use a shadow to try a limit on real traffic beside the enforced limits.
    /// [`Decision::shadow_denials`](crate::Decision::shadow_denials) lists the shadows that would have denied the
    /// request. A shadow is charged only for requests that both the shadow and all enforced limits allow, at the start
    /// that the shadow would have scheduled. Header fields do not mention shadows.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Charges `cost` for every request, whatever the cost of the request is.
    ///
    /// Use it where the limits of one decision count different things: requests and tokens, for example. The decision
    /// is still one transaction over all limits.
    ///
    /// If the cost of the request is [held](crate::limiter::Held), the fixed cost is charged at once. To settle the
    /// hold does not change it: a request counts as one request, however many tokens it has used.
    ///
    /// ```
    /// use tower_ratelimit::{AcquireOptions, Detail, Limit, Limiter, Memory, Quota, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Memory::new((
    ///     Limit::new("requests", TokenBucket::new(Quota::per_minute(60))).fixed_cost(1),
    ///     Limit::new("tokens", TokenBucket::new(Quota::per_minute(10_000))),
    /// ));
    ///
    /// let estimate = AcquireOptions::cost(900).detail(Detail::All);
    /// let outcome = limiter.hold("alice", estimate).await?;
    /// let remaining: Vec<u64> = outcome.decision.limits().iter().map(|limit| limit.remaining()).collect();
    /// assert_eq!(remaining, [59, 9100]);
    ///
    /// outcome.held.expect("both limits allow the request").settle(650).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn fixed_cost(mut self, cost: u64) -> Self {
        self.cost = LimitCost::Fixed(cost);
        self
    }

    pub(crate) fn cost(&self) -> LimitCost {
        self.cost
    }

    pub(crate) fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Returns the limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(crate) fn name_handle(&self) -> &Name {
        &self.name
    }

    /// Names the sub-key, to distinguish sub-keys of one type such as two function pointers.
    #[cfg(feature = "serde")]
    pub(crate) fn with_sub_key_name(mut self, name: &str) -> Self {
        self.sub_key_name = Some(Cow::<'static, str>::Owned(name.to_owned()).into());
        self
    }

    /// Returns whether both limits count by the sub-key of one name.
    ///
    /// Limits of one type without such a name count by the same closure type, so by the same sub-key.
    pub(crate) fn has_same_sub_key(&self, other: &Self) -> bool {
        self.sub_key_name.as_ref().map(Name::as_str) == other.sub_key_name.as_ref().map(Name::as_str)
    }

    pub(crate) fn algorithm(&self) -> &A {
        &self.algorithm
    }

    pub(crate) fn sub_key(&self) -> &P {
        &self.sub_key
    }
}

impl<A: fmt::Debug, P> fmt::Debug for Limit<A, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit").field("name", &self.name()).field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

/// Checks the names of a limiter's limits.
///
/// # Errors
///
/// Returns an error if there is no limit, if a name is empty or has a character that header fields cannot carry, or if
/// two limits have one name.
pub(crate) fn check_unique_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if name.is_empty() {
            return Err(Error::config("limit name: a limit has an empty name; give it a name that clients may see"));
        }
        if let Some(char) = first_invalid_name_char(name) {
            return Err(Error::config(format!(
                "limit name {name:?}: header fields cannot carry {char:?}; use printable ASCII other than '\"' and '\\'"
            )));
        }
        if !seen.insert(name) {
            return Err(Error::config(format!(
                "limit name: two limits are named {name:?}; give each its own name with `Limit::new`"
            )));
        }
    }
    if seen.is_empty() {
        return Err(Error::config("no limits: a limiter without limits would allow every request; add a limit"));
    }
    Ok(())
}
