use std::fmt;
use std::future::Ready;
use std::hash::BuildHasher;
use std::sync::Arc;

use super::builder::MemoryBuilder;
use super::hasher::DefaultHashBuilder;
use super::limits::{Limits, LimitsFor};
use super::row::Asked;
use crate::algorithm::Algorithm;
use crate::clock::{Clock, SystemClock};
use crate::decision::{Ask, Decision};
use crate::error::Error;
use crate::limit::{PerKey, per_key};
use crate::limiter::{Acquire, Limiter, Outcome, Receipt, Reply};

/// A limiter whose states lie in this process's memory.
///
/// Clones share one memory. Any number of threads decide at once, exactly as if one did it alone; a decision waits for
/// nothing but another thread's turn on the same few keys, allocates nothing, and is ready at once.
///
/// Keys are of any type that can be hashed. What is stored of a key is a 64-bit hash under a seed that is random for
/// each limiter: among a million keys, two share a state with a probability of 3 in 10^8, among a hundred million of 3
/// in 10^4.
///
/// The memory is bounded: it has room for a given number of keys ([`max_keys`](MemoryBuilder::max_keys), by default
/// [`DEFAULT_MAX_KEYS`](Self::DEFAULT_MAX_KEYS)) and never grows. A key whose state is as good as new takes no room.
/// There is nothing to clean up, and no background thread.
///
/// ```
/// use tower_ratelimit::{Ask, Gcra, Memory, Quota};
///
/// // Ten a second for each key, bursts of twenty.
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)).burst(20));
///
/// let decision = limiter.decide("alice", Ask::default());
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining(), Some(19));
/// ```
pub struct Memory<L: Limits<S>, C = SystemClock, S = DefaultHashBuilder> {
    shared: Arc<Shared<L::Rows, C, S>>,
}

struct Shared<R, C, S> {
    rows: R,
    clock: C,
    hasher: S,
}

impl<L: Limits<DefaultHashBuilder>> Memory<L> {
    /// For how many keys each limit has room unless [`max_keys`](MemoryBuilder::max_keys) says otherwise: 100 000.
    pub const DEFAULT_MAX_KEYS: usize = 100_000;

    /// How many bytes each limit may take on the heap unless [`max_heap_bytes`](MemoryBuilder::max_heap_bytes) says
    /// otherwise: one gibibyte.
    pub const DEFAULT_MAX_HEAP_BYTES: usize = 1 << 30;

    /// A limiter with the default settings: see [`Limits`] for what it takes.
    ///
    /// # Panics
    ///
    /// If two limits have the same name, one has an empty name, or a sliding log could take more than a gibibyte. [`builder`](Self::builder) never panics.
    #[must_use]
    #[track_caller]
    pub fn new(limits: L) -> Self {
        match Self::builder(limits).build() {
            Ok(memory) => memory,
            Err(error) => panic!("{error}"),
        }
    }

    /// A limiter with other than the default settings.
    pub fn builder(limits: L) -> MemoryBuilder<L> {
        MemoryBuilder::new(limits)
    }
}

impl<F: Send + Sync + 'static, A: Algorithm> Memory<PerKey<F, A>> {
    /// A limiter whose algorithm is chosen by the key: see [`per_key`].
    #[must_use]
    pub fn per_key<Key: ?Sized>(choose: F) -> Self
    where
        F: Fn(&Key) -> A,
    {
        Self::new(per_key(choose))
    }
}

impl<L: Limits<S>, C: Clock, S> Memory<L, C, S> {
    pub(super) fn from_parts(rows: L::Rows, clock: C, hasher: S) -> Self {
        Self { shared: Arc::new(Shared { rows, clock, hasher }) }
    }

    fn asked<'a, Key: ?Sized>(&'a self, key: &'a Key, ask: Ask) -> Asked<'a, Key, S> {
        Asked { hasher: &self.shared.hasher, key, now: self.shared.clock.now(), ask }
    }

    /// Decides, and charges the key if the request is allowed.
    #[inline]
    pub fn decide<Key: ?Sized>(&self, key: &Key, ask: Ask) -> Decision
    where
        L: LimitsFor<Key, S>,
        S: BuildHasher,
    {
        self.acquire_now(key, ask).decision
    }

    /// As [`decide`](Self::decide), with the receipt for what was charged.
    #[inline]
    pub fn acquire_now<Key: ?Sized>(&self, key: &Key, ask: Ask) -> Outcome
    where
        L: LimitsFor<Key, S>,
        S: BuildHasher,
    {
        L::acquire(&self.shared.rows, self.asked(key, ask))
    }
}

impl<Key, L, C, S> Limiter<Key> for Memory<L, C, S>
where
    Key: ?Sized,
    L: LimitsFor<Key, S>,
    C: Clock,
    S: BuildHasher,
{
    type Future = Ready<Result<Outcome, Error>>;

    #[inline]
    fn acquire(&self, key: &Key, ask: Ask) -> Acquire<Self::Future> {
        Acquire::Ready(Ok(self.acquire_now(key, ask)))
    }

    fn peek(&self, key: &Key, ask: Ask) -> Reply<Decision> {
        Reply::ready(Ok(L::peek(&self.shared.rows, self.asked(key, ask))))
    }

    fn settle(&self, key: &Key, receipt: Receipt, actual: u64) -> Reply<()> {
        L::settle(&self.shared.rows, &self.asked(key, Ask::default()), &receipt, actual);
        Reply::ready(Ok(()))
    }

    fn reset(&self, key: &Key) -> Reply<()> {
        let asked = self.asked(key, Ask::default());
        L::each(&self.shared.rows, &mut |row| row.reset(&asked));
        Reply::ready(Ok(()))
    }
}

impl<L: Limits<S>, C, S> Clone for Memory<L, C, S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<L: Limits<S>, C: fmt::Debug, S> fmt::Debug for Memory<L, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("clock", &self.shared.clock).finish_non_exhaustive()
    }
}
