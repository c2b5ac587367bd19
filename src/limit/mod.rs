//! A named limit, and what it counts by.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::marker::PhantomData;

use crate::algorithm::Algorithm;
use crate::decision::{Name, unfit_for_name};
use crate::error::Error;

/// A named limit on a part of the key.
///
/// An algorithm by itself is a limit named `default` that counts by the whole key. Several limits in a tuple decide
/// together, all or nothing: a request passes if every limit allows it, and only then is anything charged.
///
/// A later turn is promised to one who accepts a delay only if all of them (shadows apart) can promise turns, and each owes
/// at least until then already. A limit that owes less has room before; charged for that turn, it would keep its room from
/// everybody else until then. Where no turn is promised the request is refused for as long as it must wait, and may ask again.
/// So waiting for one limit alone is first come, first served; for one among others it is so where the others owe as long,
/// and else goes to whoever asks first.
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
///     Limit::new("everybody", Gcra::new(Quota::per_second(5000))).keyed_by(|_: &Caller| ()),
/// ));
///
/// let caller = Caller { user: 7, organisation: "acme".to_owned() };
/// assert!(limiter.decide(&caller, AcquireOptions::default()).is_allowed());
/// ```
#[derive(Clone)]
pub struct Limit<A, P = WholeKey> {
    name: Name,
    algorithm: A,
    part: P,
    /// What the part is called, where that is its identity and not its type.
    part_name: Option<Name>,
    shadow: bool,
}

impl<A> Limit<A> {
    /// A limit that counts by the whole key. `algorithm` is one for all keys, or [`per_key`].
    ///
    /// The name is the limit's identity: in header fields, in decisions, in a shared store. It must not be empty, and
    /// consists of printable ASCII without `"` and `\`, which header fields and bodies carry alike: to build a limiter
    /// of any other name is an error. Where layers are stacked, clients tell their limits apart by the names.
    pub fn new(name: impl Into<Cow<'static, str>>, algorithm: A) -> Self {
        Self { name: name.into().into(), algorithm, part: WholeKey, part_name: None, shadow: false }
    }

    /// Counts by what `part` makes of the key: a number, an address, `()` for one count over all keys.
    pub fn keyed_by<Key: ?Sized, Part, F: Fn(&Key) -> Part>(self, part: F) -> Limit<A, KeyedBy<F, Part>> {
        self.with_sub_key(KeyedBy(part, PhantomData))
    }

    /// Counts by a part of the key that `part` borrows from it.
    pub fn keyed_by_ref<Key: ?Sized, Part: ?Sized, F: Fn(&Key) -> &Part>(
        self,
        part: F,
    ) -> Limit<A, KeyedByRef<F, Part>> {
        self.with_sub_key(KeyedByRef(part, PhantomData))
    }

    fn with_sub_key<P>(self, part: P) -> Limit<A, P> {
        let Self { name, algorithm, shadow, .. } = self;
        Limit { name, algorithm, part, part_name: None, shadow }
    }
}

impl<A, P> Limit<A, P> {
    /// Makes it a shadow: it decides, counts and tells, and never refuses. To try a limit on real traffic, beside those that
    /// are enforced.
    ///
    /// What it would refuse is in [`Decision::shadow_refusals`](crate::Decision::shadow_refusals). It is charged for what it
    /// would have let through, and only if the enforced limits let it through too. Header fields don't mention it.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    pub(crate) fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// The limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(crate) fn name_handle(&self) -> &Name {
        &self.name
    }

    /// Tells parts of one type apart: two function pointers, for instance.
    #[cfg(feature = "serde")]
    pub(crate) fn with_sub_key_name(mut self, name: &str) -> Self {
        self.part_name = Some(Cow::<'static, str>::Owned(name.to_owned()).into());
        self
    }

    /// Whether both count by the same part of the key, as far as that can be known.
    pub(crate) fn counts_as(&self, other: &Self) -> bool {
        self.part_name.as_ref().map(Name::as_str) == other.part_name.as_ref().map(Name::as_str)
    }

    pub(crate) fn algorithm(&self) -> &A {
        &self.algorithm
    }

    pub(crate) fn part(&self) -> &P {
        &self.part
    }
}

impl<A: fmt::Debug, P> fmt::Debug for Limit<A, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit").field("name", &self.name()).field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

/// An algorithm chosen by the key, for tiers and for limits that change while they are used.
///
/// `choose` is called for every decision, possibly more than once, and should do no more than look up: make the
/// algorithms beforehand, in `const`s for instance. What a key owes stays owed when its algorithm's quota changes.
///
/// ```
/// use tower_ratelimit::{AcquireOptions, FixedWindow, Limit, Memory, Quota, per_key};
///
/// struct Caller {
///     user: u64,
///     paid: bool,
/// }
///
/// const FREE: FixedWindow = FixedWindow::new(Quota::per_hour(60));
/// const PAID: FixedWindow = FixedWindow::new(Quota::per_hour(5000));
///
/// let tier = per_key(|caller: &Caller| if caller.paid { PAID } else { FREE });
/// let limiter = Memory::new(Limit::new("user", tier).keyed_by(|caller: &Caller| caller.user));
///
/// let free = limiter.decide(&Caller { user: 1, paid: false }, AcquireOptions::cost(60));
/// assert_eq!(free.remaining(), Some(0));
/// let upgraded = limiter.decide(&Caller { user: 1, paid: true }, AcquireOptions::default());
/// assert_eq!(upgraded.remaining(), Some(5000 - 61));
/// ```
pub fn per_key<Key: ?Sized, A: Algorithm, F: Fn(&Key) -> A>(choose: F) -> PerKey<F, A> {
    PerKey(choose, PhantomData)
}

/// What [`per_key`] makes.
#[derive(Clone)]
pub struct PerKey<F, A>(F, PhantomData<fn() -> A>);

impl<F, A> fmt::Debug for PerKey<F, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerKey").finish_non_exhaustive()
    }
}

/// Counts by the whole key.
#[derive(Clone, Copy, Debug, Default)]
pub struct WholeKey;

/// Counts by a value made from the key: see [`Limit::keyed_by`].
pub struct KeyedBy<F, Part>(F, PhantomData<fn() -> Part>);

/// Counts by a part borrowed from the key: see [`Limit::keyed_by_ref`].
pub struct KeyedByRef<F, Part: ?Sized>(F, PhantomData<fn() -> Box<Part>>);

impl<F: Clone, Part> Clone for KeyedBy<F, Part> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<F: Clone, Part: ?Sized> Clone for KeyedByRef<F, Part> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<F, Part> fmt::Debug for KeyedBy<F, Part> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedBy").finish_non_exhaustive()
    }
}

impl<F, Part: ?Sized> fmt::Debug for KeyedByRef<F, Part> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedByRef").finish_non_exhaustive()
    }
}

/// Something that holds each key to an algorithm: an algorithm itself, or [`per_key`].
pub trait Chooser {
    /// The type of algorithm that every key is held to.
    type Algorithm: Algorithm;

    /// The algorithm, if it is the same one for all keys.
    fn fixed(&self) -> Option<&Self::Algorithm> {
        None
    }
}

/// A [`Chooser`] for keys of type `Key`.
pub trait Choose<Key: ?Sized>: Chooser {
    /// An algorithm, kept or made.
    type Chosen<'a>: Borrow<Self::Algorithm>
    where
        Self: 'a;

    /// The algorithm for `key`.
    fn choose(&self, key: &Key) -> Self::Chosen<'_>;

    /// The algorithm for `key` to be kept, if it is not the same one for all keys.
    #[doc(hidden)]
    fn select_owned(&self, key: &Key) -> Option<Self::Algorithm> {
        let _ = key;
        None
    }
}

impl<A: Algorithm> Chooser for A {
    type Algorithm = A;

    fn fixed(&self) -> Option<&A> {
        Some(self)
    }
}

impl<Key: ?Sized, A: Algorithm> Choose<Key> for A {
    type Chosen<'a> = &'a A;

    #[inline(always)]
    fn choose(&self, _key: &Key) -> &A {
        self
    }
}

impl<F, A: Algorithm> Chooser for PerKey<F, A> {
    type Algorithm = A;
}

impl<Key: ?Sized, A: Algorithm, F: Fn(&Key) -> A> Choose<Key> for PerKey<F, A> {
    type Chosen<'a>
        = A
    where
        F: 'a;

    #[inline(always)]
    fn choose(&self, key: &Key) -> A {
        (self.0)(key)
    }

    fn select_owned(&self, key: &Key) -> Option<A> {
        Some((self.0)(key))
    }
}

/// The part of a key that a limit counts by.
pub trait SubKeyOf<Key: ?Sized> {
    /// The part's type.
    type Part: ?Sized;

    /// Runs `f` with the part of `key`.
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&Self::Part) -> R) -> R;

    /// Whether it can be told beforehand that it is the same for all keys.
    #[doc(hidden)]
    fn is_constant(&self) -> bool {
        false
    }
}

impl<Key: ?Sized> SubKeyOf<Key> for WholeKey {
    type Part = Key;

    #[inline(always)]
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&Key) -> R) -> R {
        f(key)
    }
}

impl<Key: ?Sized, Part, F: Fn(&Key) -> Part> SubKeyOf<Key> for KeyedBy<F, Part> {
    type Part = Part;

    #[inline(always)]
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&Part) -> R) -> R {
        f(&(self.0)(key))
    }

    fn is_constant(&self) -> bool {
        // Such a type has one value at most.
        size_of::<Part>() == 0
    }
}

impl<Key: ?Sized, Part: ?Sized, F: Fn(&Key) -> &Part> SubKeyOf<Key> for KeyedByRef<F, Part> {
    type Part = Part;

    #[inline(always)]
    fn with_sub_key<R>(&self, key: &Key, f: impl FnOnce(&Part) -> R) -> R {
        f((self.0)(key))
    }
}

/// What stands for one limit: an algorithm, [`per_key`], or a [`Limit`].
pub trait IntoLimit {
    /// What chooses the algorithm.
    type Chooser: Chooser;
    /// What it counts by.
    type Part;

    /// The limit, named `default` if it has no name yet.
    fn into_limit(self) -> Limit<Self::Chooser, Self::Part>;
}

impl<A: Algorithm> IntoLimit for A {
    type Chooser = A;
    type Part = WholeKey;

    fn into_limit(self) -> Limit<A> {
        Limit { name: Name::DEFAULT, algorithm: self, part: WholeKey, part_name: None, shadow: false }
    }
}

impl<F, A: Algorithm> IntoLimit for PerKey<F, A> {
    type Chooser = Self;
    type Part = WholeKey;

    fn into_limit(self) -> Limit<Self> {
        Limit { name: Name::DEFAULT, algorithm: self, part: WholeKey, part_name: None, shadow: false }
    }
}

impl<C: Chooser, P> IntoLimit for Limit<C, P> {
    type Chooser = C;
    type Part = P;

    fn into_limit(self) -> Self {
        self
    }
}

/// Returns an error if two limits have one name, which clients could not tell apart, or if a name cannot be sent as it
/// is.
pub(crate) fn check_unique_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if name.is_empty() {
            return Err(Error::config("a limit has an empty name: give it one that clients may see"));
        }
        if let Some(char) = unfit_for_name(name) {
            return Err(Error::config(format!(
                "limit name {name:?}: header fields cannot carry {char:?}; use printable ASCII other than '\"' and '\\'"
            )));
        }
        if !seen.insert(name) {
            return Err(Error::config(format!("two limits are named {name:?}: give each its own with `Limit::new`")));
        }
    }
    if seen.is_empty() {
        return Err(Error::config("no limits: a limiter without limits would allow everything; add a limit"));
    }
    Ok(())
}
