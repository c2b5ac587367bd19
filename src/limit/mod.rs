//! Named limits: an algorithm and the part of the key by which it counts.

mod checks;
mod condition;
mod cost;
mod guarantee;
mod into_limit;
mod into_limits;
mod keep_free;
pub(crate) mod per_key;
mod select;
mod sub_key;
mod transition;
mod warn_at;

use std::borrow::Cow;
use std::fmt;

pub(crate) use self::checks::{LimitFacts, check_limits};
pub use self::condition::OnlyIf;
pub(crate) use self::cost::LimitCost;
pub(crate) use self::guarantee::{SharePart, Shares};
pub use self::into_limit::IntoLimit;
pub(crate) use self::into_limits::impl_into_limits;
pub use self::keep_free::KeepFree;
pub use self::per_key::PerKey;
pub(crate) use self::per_key::per_key;
pub use self::select::{AlgorithmSelector, SelectAlgorithm};
pub use self::sub_key::{KeyedBy, SubKeyOf, WholeKey};
pub(crate) use self::transition::{ReadMode, Transition};
#[cfg(feature = "redis")]
pub(crate) use self::warn_at::WarnKeys;
use self::warn_at::Warning;
use crate::algorithm::Algorithm;
use crate::decision::{Name, Unit};

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
/// - every limit is in use at least until the start that the other limits demand.
///
/// A limit without usage until then would reserve capacity for the whole delay that other requests could use. A limit
/// is in use as long as the usage that it has charged lasts; [held](crate::limiter::Held) costs do not count. Where the
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
#[must_use]
pub struct Limit<A, P = WholeKey> {
    name: Name,
    algorithm: A,
    sub_key: P,
    /// The sub-key's name in configuration, where the type of `sub_key` does not identify it.
    sub_key_name: Option<Name>,
    cost: LimitCost,
    shadow: bool,
    pub(crate) share: SharePart,
    warning: Option<Warning>,
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
        Self::named(Name::of_limit(name.into()), algorithm)
    }

    fn named(name: Name, algorithm: A) -> Self {
        Self {
            name,
            algorithm,
            sub_key: WholeKey,
            sub_key_name: None,
            cost: LimitCost::OfRequest,
            shadow: false,
            share: SharePart::NONE,
            warning: None,
        }
    }

    /// Counts by the value that `sub_key` returns: a number, an address, or `()` for one count over all keys.
    ///
    /// If `sub_key` returns an `Option`, `None` is a value like others: all keys with `None` share one count. If the
    /// limit should not apply to these keys, use [`keyed_by_some`](Self::keyed_by_some).
    ///
    /// The value owns its data. For a part that the key lends, such as a name, use [`keyed_by_ref`](Self::keyed_by_ref):
    /// with `keyed_by` the compiler reports `lifetime may not live long enough`.
    ///
    /// ```compile_fail
    /// # use tower_ratelimit::{Gcra, Limit, Quota};
    /// # struct Caller { name: String }
    /// let limit = Limit::new("name", Gcra::new(Quota::per_second(5)));
    /// let limit = limit.keyed_by(|caller: &Caller| &caller.name);
    /// ```
    ///
    /// ```
    /// # use tower_ratelimit::{Gcra, Limit, Quota};
    /// # struct Caller { name: String }
    /// let limit = Limit::new("name", Gcra::new(Quota::per_second(5)));
    /// let limit = limit.keyed_by_ref(|caller: &Caller| &caller.name);
    /// ```
    pub fn keyed_by<Key: ?Sized, SubKey, F: Fn(&Key) -> SubKey>(self, sub_key: F) -> Limit<A, KeyedBy<F, (SubKey,)>> {
        self.with_sub_key(KeyedBy::new(sub_key))
    }

    /// Counts by a part of the key that `sub_key` borrows.
    pub fn keyed_by_ref<Key: ?Sized, SubKey: ?Sized + 'static, F: Fn(&Key) -> &SubKey>(
        self,
        sub_key: F,
    ) -> Limit<A, KeyedBy<F, &'static SubKey>> {
        self.with_sub_key(KeyedBy::new(sub_key))
    }

    /// Counts by the value that `sub_key` returns. The limit does not apply to a key for which it returns `None`.
    ///
    /// See [`only_if`](Self::only_if) for what that means, and for what it demands of the other limits of the limiter.
    ///
    /// ```
    /// use tower_ratelimit::{AcquireOptions, Gcra, Limit, Memory, Quota};
    ///
    /// struct Caller {
    ///     address: u32,
    ///     user: Option<u64>,
    /// }
    ///
    /// let limiter = Memory::new((
    ///     Limit::new("address", Gcra::new(Quota::per_second(50))).keyed_by(|caller: &Caller| caller.address),
    ///     Limit::new("user", Gcra::new(Quota::per_second(10))).keyed_by_some(|caller: &Caller| caller.user),
    /// ));
    /// let anonymous = Caller { address: 1, user: None };
    /// assert_eq!(limiter.check(&anonymous, 1).remaining(), Some(49));
    /// let alice = Caller { address: 1, user: Some(7) };
    /// assert_eq!(limiter.check(&alice, 1).remaining(), Some(9));
    /// ```
    pub fn keyed_by_some<Key: ?Sized, SubKey, F: Fn(&Key) -> Option<SubKey>>(
        self,
        sub_key: F,
    ) -> Limit<A, KeyedBy<F, Option<SubKey>>> {
        self.with_sub_key(KeyedBy::new(sub_key))
    }

    fn with_sub_key<P>(self, sub_key: P) -> Limit<A, P> {
        self.replace_sub_key(sub_key).0
    }
}

impl<A, P> Limit<A, P> {
    /// Replaces the sub-key, and returns it.
    pub(crate) fn replace_sub_key<Q>(self, sub_key: Q) -> (Limit<A, Q>, P) {
        let Self { name, algorithm, sub_key: previous, sub_key_name, cost, shadow, share, warning } = self;
        (Limit { name, algorithm, sub_key, sub_key_name, cost, shadow, share, warning }, previous)
    }

    fn map_sub_key<Q>(self, map: impl FnOnce(P) -> Q) -> Limit<A, Q> {
        let (limit, sub_key) = self.replace_sub_key(());
        limit.replace_sub_key(map(sub_key)).0
    }

    /// Applies the limit only to keys for which `condition` returns `true`.
    ///
    /// A limit that does not apply to the key of a request has no part in the decision. The limiter does not read,
    /// charge or hold anything there. The decision, the header fields and the keys in Redis do not contain the limit.
    /// If no limit of the limiter applies, the request is allowed, and
    /// [`Decision::is_exempt`](crate::Decision::is_exempt) returns `true`.
    ///
    /// The condition reads the key. A limit by the whole key would count the requests that satisfy the condition apart
    /// from the others. Therefore each limit of a limiter with a condition needs [`keyed_by`](Limit::keyed_by),
    /// [`keyed_by_ref`](Limit::keyed_by_ref) or [`keyed_by_some`](Limit::keyed_by_some): otherwise the limiter cannot
    /// be built. Call them before this method.
    ///
    /// `condition` must always return the same for the same key. The limiter calls it for every decision, possibly more
    /// than once. `reset` acts on the limits that apply to its key. `set_usage` and `block` return an error if their
    /// limit does not apply to their key.
    ///
    /// ```
    /// use tower_ratelimit::{AcquireOptions, Gcra, Limit, Memory, Quota};
    ///
    /// struct Call {
    ///     user: u64,
    ///     is_write: bool,
    /// }
    ///
    /// let limiter = Memory::new((
    ///     Limit::new("calls", Gcra::new(Quota::per_second(50))).keyed_by(|call: &Call| call.user),
    ///     Limit::new("writes", Gcra::new(Quota::per_second(5)))
    ///         .keyed_by(|call: &Call| call.user)
    ///         .only_if(|call: &Call| call.is_write),
    /// ));
    /// assert_eq!(limiter.check(&Call { user: 7, is_write: false }, 1).remaining(), Some(49));
    /// assert_eq!(limiter.check(&Call { user: 7, is_write: true }, 1).remaining(), Some(4));
    /// ```
    pub fn only_if<Key: ?Sized, F: Fn(&Key) -> bool>(self, condition: F) -> Limit<A, OnlyIf<P, F>> {
        self.map_sub_key(|sub_key| OnlyIf { sub_key, condition: Some(condition) })
    }

    /// Sets the condition of a limit from configuration, if it has one.
    #[cfg(feature = "serde")]
    pub(crate) fn only_if_some<F>(self, condition: Option<F>) -> Limit<A, OnlyIf<P, F>> {
        self.map_sub_key(|sub_key| OnlyIf { sub_key, condition })
    }

    /// Makes the limit a shadow: it decides and counts, and never denies a request.
    ///
    /// Use a shadow to try a limit on real traffic beside the enforced limits.
    /// Each decision lists its shadows, and [`Decision::shadow_denials`](crate::Decision::shadow_denials) those that
    /// would have denied the request. A shadow is charged only for requests that both the shadow and all enforced limits allow, at the start
    /// that the shadow would have scheduled. Header fields do not mention shadows.
    ///
    /// If you enforce the limit later, it applies with the usage that the shadow counted: a key that the shadow would
    /// have denied is denied at once. Limits in Redis, and [replaced](crate::Memory::replace) limits in memory, keep the
    /// usage if the limit keeps its name, algorithm and sub-key.
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
    pub fn fixed_cost(mut self, cost: u64) -> Self {
        self.cost = LimitCost::Fixed(cost);
        self
    }

    /// Charges the cost of the request in a unit: input tokens, for example.
    ///
    /// Callers state the costs of a request in units by [`Costs`](crate::Costs). A request that leaves out the unit
    /// costs 0 on this limit. [`settle`](crate::limiter::Held::settle) charges each limit its own actual cost.
    ///
    /// A limit has one kind of cost: this method replaces a [fixed cost](Self::fixed_cost), and the other way round.
    ///
    /// ```
    /// use tower_ratelimit::{Costs, Detail, AcquireOptions, Limit, Memory, Quota, TokenBucket};
    ///
    /// let limiter = Memory::new((
    ///     Limit::new("requests", TokenBucket::new(Quota::per_minute(60))).fixed_cost(1),
    ///     Limit::new("input", TokenBucket::new(Quota::per_minute(40_000))).cost_of("input"),
    ///     Limit::new("output", TokenBucket::new(Quota::per_minute(8_000))).cost_of("output"),
    /// ));
    ///
    /// let costs = Costs::new().add("input", 1_200).add("output", 4_000);
    /// let decision = limiter.check("alice", AcquireOptions::from(costs).detail(Detail::All));
    /// let remaining: Vec<u64> = decision.limits().iter().map(|limit| limit.remaining()).collect();
    /// assert_eq!(remaining, [59, 38_800, 4_000]);
    /// ```
    pub fn cost_of(mut self, unit: impl Into<Cow<'static, str>>) -> Self {
        self.cost = LimitCost::OfUnit(Unit::named(unit));
        self
    }

    pub(crate) fn cost(&self) -> LimitCost {
        self.cost
    }

    pub(crate) fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Returns the limit's name.
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

    /// Returns the sub-key's name in configuration.
    pub(crate) fn sub_key_name(&self) -> Option<&str> {
        self.sub_key_name.as_ref().map(Name::as_str)
    }

    /// Returns whether both limits count by the sub-key of one name.
    ///
    /// Limits of one type without such a name count by the same closure type, so by the same sub-key.
    pub(crate) fn has_same_sub_key(&self, other: &Self) -> bool {
        self.sub_key_name() == other.sub_key_name()
    }

    /// Returns what the checks of a limiter's limits need.
    pub(crate) fn facts<Key: ?Sized>(&self) -> LimitFacts
    where
        A: AlgorithmSelector,
        P: SubKeyOf<Key>,
    {
        let of_sub_key = self.sub_key.facts();
        LimitFacts {
            name: self.name.clone(),
            #[cfg(feature = "redis")]
            sub_key_name: self.sub_key_name.clone(),
            is_conditional: of_sub_key.is_conditional,
            is_whole_key: of_sub_key.is_whole_key,
            keeps_free: of_sub_key.keeps_free,
            is_queue: A::Algorithm::IS_QUEUE,
            cost: self.cost,
            is_shadow: self.shadow,
            share: self.share,
            capacity: self.algorithm.fixed().and_then(Algorithm::share_capacity),
            warn_at: self.warn_keys().map(|keys| keys.warn_at),
        }
    }

    pub(crate) fn algorithm(&self) -> &A {
        &self.algorithm
    }

    pub(crate) fn sub_key(&self) -> &P {
        &self.sub_key
    }
}

impl_debug!([A: fmt::Debug, P] Limit<A, P> |limit| { name: limit.name(), algorithm: limit.algorithm });
