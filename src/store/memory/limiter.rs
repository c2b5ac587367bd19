use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use super::builder::MemoryBuilder;
use super::clock::MemoryClock;
use super::hasher::KeyHasher;
use super::limits::MemoryLimits;
use super::part::Part;
use super::replace::DynLimit;
use super::reservations::Reservations;
use super::transaction_limit::{AcquireContext, Capacity, TransactionLimit, read_clock};
use super::usage::{KeyId, TopKey, Usage};
use crate::algorithm::Algorithm;
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, Decision, Verdict};
use crate::error::Error;
use crate::limit::{PerKey, per_key};
#[cfg(doc)]
use crate::limiter::Limiter;
use crate::observe::{Event, Observer};
use crate::store::inner::capacity_added;

/// A limiter that stores its states in this process's memory.
///
/// Clones share the states. Concurrent decisions are linearizable: together they admit exactly what one thread would
/// admit. A decision returns immediately, and on a key that has a slot it allocates nothing. It waits only while another
/// thread decides on a key of the same shard, one of about a hundred. An [algorithm](crate::algorithm::Algorithm) and a
/// [`Clock`](crate::Clock) of your own run under a lock: they must not call a limiter.
///
/// The memory is bounded: the table grows with its keys up to a capacity ([`max_keys`](MemoryBuilder::max_keys), by default
/// [`DEFAULT_MAX_KEYS`](Self::DEFAULT_MAX_KEYS)). An idle key's slot is free for another key.
/// There is no clean-up, and no background thread.
///
/// ```
/// use tower_ratelimit::{AcquireOptions, Gcra, Memory, Quota};
///
/// // Ten requests per second for each key, bursts of twenty.
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)).burst(20));
///
/// let decision = limiter.check("alice", AcquireOptions::default());
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining(), Some(19));
/// ```
///
/// # Keys
///
/// `Key` is the type of the keys: any type that can be hashed, also an unsized one such as `str`. The compiler infers
/// `Key` from the extractor of the layer, or from the first call; otherwise write `Memory::<Key, _>::new(..)`. A key
/// should not contain a reference, because all keys of a limiter then need one lifetime.
///
/// The table stores a 64-bit hash of the key, under a seed that is random for each limiter. Among a million keys, two
/// share a state with a probability of 3 in 10^8, among a hundred million of 3 in 10^4.
///
/// All operations on a key take the key that the extractor of the layer returns. The extractor's `key_of` creates it:
///
/// ```
/// use std::net::IpAddr;
/// use std::time::Duration;
/// use tower_ratelimit::{Gcra, Limiter, Memory, PeerIp, Quota, RateLimitLayer};
///
/// const CLIENT: PeerIp = PeerIp::new();
///
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// let address: IpAddr = "192.0.2.1".parse()?;
/// let _ = limiter.block("default", &CLIENT.key_of(address), Duration::from_secs(3600));
/// let app: axum::Router = axum::Router::new().layer(RateLimitLayer::new(CLIENT, limiter));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
///
/// A key of another type is a compile error:
///
/// ```compile_fail,E0277
/// # use std::time::Duration;
/// # use tower_ratelimit::{Gcra, Limiter, Memory, PeerIp, Quota, RateLimitLayer};
/// # const CLIENT: PeerIp = PeerIp::new();
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// let _ = limiter.block("default", "192.0.2.1", Duration::from_secs(3600));
/// // `Memory<str, Gcra>` is not a limiter for keys of type `IpAddr`
/// let app: axum::Router = axum::Router::new().layer(RateLimitLayer::new(CLIENT, limiter));
/// ```
///
/// # The type of a limiter
///
/// `Memory<Key, Gcra>` is a limiter with one algorithm, and `Memory<Key>` one with a `Vec` of [`DynLimit`]s. Use the
/// latter where the type of the limits cannot be written because it contains closures:
///
/// ```
/// use std::net::IpAddr;
/// use tower_ratelimit::{DynLimit, Gcra, Limit, Memory, Quota};
///
/// struct Caller {
///     user: u64,
/// }
///
/// struct Limiters {
///     by_address: Memory<IpAddr, Gcra>,
///     by_user: Memory<Caller>,
/// }
///
/// fn limiters() -> Limiters {
///     let user = Limit::new("user", Gcra::new(Quota::per_second(5))).keyed_by(|caller: &Caller| caller.user);
///     Limiters {
///         by_address: Memory::new(Gcra::new(Quota::per_second(10))),
///         by_user: Memory::new(vec![DynLimit::new(user)]),
///     }
/// }
/// # let _ = limiters();
/// ```
pub struct Memory<Key, L = Vec<DynLimit<Key>>>
where
    Key: ?Sized,
    L: MemoryLimits<Key>,
{
    pub(super) shared: Arc<Shared<Key, L>>,
}

pub(super) struct Shared<Key: ?Sized, L: MemoryLimits<Key>> {
    pub(super) tables: L::Tables,
    pub(super) clock: MemoryClock,
    pub(super) hasher: KeyHasher,
    pub(super) reservations: Reservations,
    key: PhantomData<fn(&Key)>,
}

impl<Key: ?Sized, L: MemoryLimits<Key>> Memory<Key, L> {
    /// For how many keys each limit has capacity unless [`max_keys`](MemoryBuilder::max_keys) says otherwise: 100 000.
    pub const DEFAULT_MAX_KEYS: usize = Capacity::DEFAULT.max_keys;

    /// How many bytes each limit may take on the heap unless [`max_heap_bytes`](MemoryBuilder::max_heap_bytes) says
    /// otherwise: one gibibyte.
    pub const DEFAULT_MAX_HEAP_BYTES: usize = Capacity::DEFAULT.max_heap_bytes;

    /// Creates a limiter with the default settings.
    ///
    /// `limits` is an algorithm, [`per_key`], a [`Limit`](crate::Limit), a tuple of up to eight of these, or a `Vec` of
    /// [`DynLimit`]s.
    ///
    /// # Panics
    ///
    /// Panics if two limits have the same name, a limit has an empty name, or a sliding log could take more than a
    /// gibibyte. [`builder`](Self::builder) never panics.
    #[must_use]
    #[track_caller]
    pub fn new(limits: L) -> Self {
        match Self::builder(limits).build() {
            Ok(memory) => memory,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a builder of a limiter with other settings.
    pub fn builder(limits: L) -> MemoryBuilder<Key, L> {
        MemoryBuilder::new(limits)
    }
}

impl<Key, F, A> Memory<Key, PerKey<F, A>>
where
    Key: Hash + ?Sized,
    F: Fn(&Key) -> A + Send + Sync + 'static,
    A: Algorithm,
{
    /// Creates a limiter whose algorithm is chosen by the key: see [`per_key`].
    #[must_use]
    pub fn per_key(choose: F) -> Self {
        Self::new(per_key(choose))
    }
}

impl<Key: ?Sized, L: MemoryLimits<Key>> Memory<Key, L> {
    pub(super) fn from_parts(tables: L::Tables, clock: MemoryClock, hasher: KeyHasher, max_ids: usize) -> Self {
        let reservations = Reservations::new(max_ids);
        Self { shared: Arc::new(Shared { tables, clock, hasher, reservations, key: PhantomData }) }
    }

    #[inline]
    pub(super) fn now(&self) -> Timestamp {
        read_clock(&self.shared.clock)
    }

    #[inline]
    pub(super) fn context<'a>(&'a self, key: &'a Key, options: AcquireOptions) -> AcquireContext<'a, Key> {
        self.context_at(key, options, self.now())
    }

    #[inline]
    pub(super) fn context_at<'a>(
        &'a self,
        key: &'a Key,
        options: AcquireOptions,
        now: Timestamp,
    ) -> AcquireContext<'a, Key> {
        let Shared { hasher, clock, .. } = &*self.shared;
        AcquireContext { hasher, key, now, options, clock, charge_before: None }
    }

    /// Decides, and charges the key if the request is allowed. An integer is the cost of the request.
    ///
    /// This method charges, also if the options ask for a hold: to hold a cost, call [`hold`](Self::hold). A limit on
    /// requests [in flight](crate::InFlight) decides here, and does not count the request, not even for a moment.
    ///
    /// For costs in a [unit](crate::Limit::cost_of) that no limit names, the decision denies by policy that the cost
    /// exceeds the limit. [`acquire`](Limiter::acquire) returns the error.
    ///
    /// ```
    /// use tower_ratelimit::{Gcra, Memory, Quota};
    ///
    /// let limiter = Memory::new(Gcra::new(Quota::per_second(10)).burst(20));
    /// assert_eq!(limiter.check("alice", 5).remaining(), Some(15));
    /// ```
    // In line, so that the compiler drops what the caller does not use of the decision: row "hot key" of
    // benches/figures.md.
    #[inline(always)]
    pub fn check(&self, key: &Key, options: impl Into<AcquireOptions>) -> Decision {
        let options = options.into().without_guard();
        if let Some(once) = options.charged_once() {
            return self.check_once(key, options, once);
        }
        let context = self.context(key, options);
        #[allow(clippy::single_match_else, reason = "two cases of equal rank")]
        match L::try_acquire(&self.shared.tables, &context) {
            Ok(decision) => decision,
            Err(_) => {
                // Moved out of the tuple: written in place, the decision of the fast path would have to be in memory
                // too. Row "hot key" of benches/figures.md.
                let (decision, holds) = self.check_slow(key, options, context.now);
                debug_assert_eq!(holds, 0, "without a guard, nothing is held");
                decision
            }
        }
    }

    /// Decides what the fast path does not handle.
    #[inline(never)]
    fn check_slow(&self, key: &Key, options: AcquireOptions, now: Timestamp) -> (Decision, usize) {
        if self.check_units(&options).is_err() {
            return (Decision::without_limit(now, Verdict::ExceedsLimit), 0);
        }
        let context = self.context_at(key, options, now);
        if let Some(decision) = L::try_complete(&self.shared.tables, &context, None) {
            return (decision, 0);
        }
        self.shared.end_due();
        let (decision, held) = self.shared.acquire(&context);
        (decision, held.len())
    }

    /// Returns the id of a key in the limit with this name, as [`top_keys`](Self::top_keys) returns it.
    ///
    /// # Errors
    ///
    /// Returns an error if no limit has this name, or if the limit does not apply to the key.
    pub fn key_id(&self, limit: &str, key: &Key) -> Result<KeyId, Error> {
        let context = self.context(key, AcquireOptions::default());
        self.in_limit_of(limit, &context, |part| KeyId::new(part.key_hash()))
    }

    /// Runs `f` on the limit with this name.
    fn in_limit<T>(&self, limit: &str, f: impl FnOnce(&dyn TransactionLimit<Key>) -> T) -> Result<T, Error> {
        let (mut f, mut result) = (Some(f), None);
        L::for_each(&self.shared.tables, &mut |table| {
            if table.info().name().as_str() == limit {
                result = f.take().map(|f| f(table));
            }
        });
        result.ok_or_else(|| Error::no_such_limit(limit))
    }

    /// Runs `f` on the limit with this name, which must apply to the key.
    pub(super) fn in_limit_of<T>(
        &self,
        limit: &str,
        context: &AcquireContext<'_, Key>,
        f: impl FnOnce(&dyn Part) -> T,
    ) -> Result<T, Error> {
        let (mut f, mut result) = (Some(f), None);
        self.in_limit(limit, |table| table.with_part(context, &mut |part| result = f.take().map(|f| f(part))))?;
        result.ok_or_else(|| Error::does_not_apply(limit))
    }

    /// Returns up to `max` keys with the most usage of the limit with this name, in descending order. The order is by
    /// the used part of the limit. If the algorithm is chosen by the key, it is by the time until the key is idle.
    ///
    /// Reads the whole table, one part after the other: a decision waits for the part of its key.
    ///
    /// # Errors
    ///
    /// Returns an error if no limit has this name.
    pub fn top_keys(&self, limit: &str, max: usize) -> Result<Vec<TopKey>, Error> {
        self.shared.end_due();
        let now = self.now();
        self.in_limit(limit, |table| table.info().top_keys(max, now))
    }

    /// Returns the memory usage of each limit. Reads all tables.
    #[must_use]
    pub fn usage(&self) -> Vec<Usage> {
        let mut usage = Vec::new();
        self.shared.end_due();
        L::for_each(&self.shared.tables, &mut |table| usage.push(table.info().usage(&self.shared.clock)));
        usage
    }

    /// Emits an [`Event::Usage`] for each limit to an observer. Reads all tables: call it when a page of metrics is
    /// requested, or every few seconds.
    pub fn report_usage(&self, observer: &(impl Observer + ?Sized)) {
        for Usage { limit, live_keys, capacity, bytes, evicted, held_keys, held } in self.usage() {
            let limit = &limit;
            observer.observe(&Event::Usage { limit, live_keys, capacity, bytes, evicted, held_keys, held });
        }
    }
}

impl<Key: ?Sized + 'static> Memory<Key, Vec<DynLimit<Key>>> {
    /// Replaces the limits. Every decision that starts after the call uses the new limits.
    ///
    /// A limit takes over the table of a previous one if the name, the type of the algorithm and the type of the
    /// sub-key are equal: usage and blocks are kept. A key in a limit that can be replaced takes the space of any
    /// setting of its algorithm. With a [`SlidingWindow`](crate::SlidingWindow) this is some 1,100 bytes.
    /// Any other new limit starts empty, and the keys of any other previous limit are dropped. Each algorithm documents
    /// how it carries usage over.
    ///
    /// A cost that is [held](crate::limiter::Held) meanwhile is settled by the limit that took over the table.
    /// Concurrent replacements run one after another.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`MemoryBuilder::build`]. The limits then stay unchanged.
    pub fn replace(&self, limits: Vec<DynLimit<Key>>) -> Result<(), Error> {
        self.shared.tables.replace(limits)?;
        capacity_added();
        Ok(())
    }
}

impl<Key: ?Sized, L: MemoryLimits<Key>> Clone for Memory<Key, L> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<Key: ?Sized, L: MemoryLimits<Key>> fmt::Debug for Memory<Key, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}
