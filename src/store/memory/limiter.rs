use std::fmt;
use std::future::Ready;
use std::hash::BuildHasher;
use std::sync::Arc;

use super::builder::MemoryBuilder;
use super::dynamic::DynLimit;
use super::hasher::DefaultHashBuilder;
use super::limits::{MemoryLimits, MemoryLimitsFor};
use super::share::{Asked, HeldLimit, Room, Share, read};
use super::usage::{KeyId, TopKey, Usage};
use crate::algorithm::Algorithm;
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;
use crate::limit::{PerKey, per_key};
use crate::limiter::{Acquisition, AdminOperation, Held, Limiter, LimiterFuture, Outcome, admin_methods};
use crate::observe::{Event, Observer};
use crate::table::Missed;

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
/// use tower_ratelimit::{AcquireOptions, Gcra, Memory, Quota};
///
/// // Ten a second for each key, bursts of twenty.
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)).burst(20));
///
/// let decision = limiter.check("alice", AcquireOptions::default());
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining(), Some(19));
/// ```
pub struct Memory<L: MemoryLimits<S>, C = SystemClock, S = DefaultHashBuilder> {
    shared: Arc<Shared<L::Rows, C, S>>,
}

struct Shared<R, C, S> {
    rows: R,
    clock: C,
    hasher: S,
}

impl<L: MemoryLimits<DefaultHashBuilder>> Memory<L> {
    /// For how many keys each limit has room unless [`max_keys`](MemoryBuilder::max_keys) says otherwise: 100 000.
    pub const DEFAULT_MAX_KEYS: usize = Room::DEFAULT.max_keys;

    /// How many bytes each limit may take on the heap unless [`max_heap_bytes`](MemoryBuilder::max_heap_bytes) says
    /// otherwise: one gibibyte.
    pub const DEFAULT_MAX_HEAP_BYTES: usize = Room::DEFAULT.max_heap_bytes;

    /// A limiter with the default settings: see [`MemoryLimits`] for what it takes.
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

impl<L: MemoryLimits<S>, C: Clock, S> Memory<L, C, S> {
    pub(super) fn from_parts(rows: L::Rows, clock: C, hasher: S) -> Self {
        Self { shared: Arc::new(Shared { rows, clock, hasher }) }
    }

    #[inline(always)]
    fn now(&self) -> Timestamp {
        read(&self.shared.clock)
    }

    #[inline(always)]
    fn asked<'a, Key: ?Sized>(&'a self, key: &'a Key, ask: AcquireOptions) -> Asked<'a, Key, S> {
        Asked { hasher: &self.shared.hasher, key, now: self.now(), ask, clock: &self.shared.clock }
    }

    /// Decides, and charges the key if the request is allowed. [`AcquireOptions::hold`] does not count here: to hold a cost, call
    /// [`hold`](Limiter::hold).
    // In line: what the caller does not ask of the decision is then not even put together.
    #[inline(always)]
    pub fn check<Key: ?Sized>(&self, key: &Key, ask: AcquireOptions) -> Decision
    where
        L: MemoryLimitsFor<Key, S>,
        S: BuildHasher,
    {
        let asked = self.asked(key, AcquireOptions { hold: false, ..ask });
        match L::at_once(&self.shared.rows, &asked) {
            Ok(decision) => decision,
            // Moved out of what it comes with: written in place, also the decision of the fast path would lie in memory.
            Err(missed) => L::at_length(&self.shared.rows, asked, missed).0,
        }
    }

    /// What stands for a key in the limit with this name, in [`top_keys`](Self::top_keys).
    ///
    /// # Errors
    ///
    /// If there is no limit with this name.
    pub fn key_id<Key: ?Sized>(&self, limit: &str, key: &Key) -> Result<KeyId, Error>
    where
        L: MemoryLimitsFor<Key, S>,
        S: BuildHasher,
    {
        let asked = self.asked(key, AcquireOptions::default());
        self.in_limit(limit, |row| row.key_id(&asked))
    }

    /// Runs `f` on the limit with this name.
    fn in_limit<Key: ?Sized, T>(&self, limit: &str, f: impl FnOnce(&dyn Share<Key, S>) -> T) -> Result<T, Error>
    where
        L: MemoryLimitsFor<Key, S>,
        S: BuildHasher,
    {
        let (mut f, mut result) = (Some(f), None);
        L::each(&self.shared.rows, &mut |row| {
            if row.name().as_str() == limit {
                result = f.take().map(|f| f(row));
            }
        });
        result.ok_or_else(|| no_such_limit(limit))
    }

    /// The keys that use most of the limit with this name, at most `most` of them, largest first: by the share of the
    /// limit that they use, or where the algorithm is chosen by the key, by the time until they are as good as new.
    ///
    /// Reads the whole table, and waits for nobody: keys that are being decided at that moment may be left out.
    ///
    /// # Errors
    ///
    /// If there is no limit with this name.
    pub fn top_keys(&self, limit: &str, most: usize) -> Result<Vec<TopKey>, Error> {
        let mut top_keys = None;
        let now = self.now();
        L::holdings(&self.shared.rows, &mut |row| {
            if row.name().as_str() == limit {
                top_keys = Some(row.top_keys(most, now));
            }
        });
        top_keys.ok_or_else(|| no_such_limit(limit))
    }

    /// What each limit takes in memory. Reads the whole of each table.
    #[must_use]
    pub fn usage(&self) -> Vec<Usage> {
        let (mut usage, now) = (Vec::new(), self.now());
        L::holdings(&self.shared.rows, &mut |row| usage.push(row.usage(now)));
        usage
    }

    /// Tells an observer [how full each limit is](Event::Usage). Reads the whole of each table: call it when figures are
    /// asked for, as when a page of metrics is, or every few seconds.
    pub fn report_usage(&self, observer: &(impl Observer + ?Sized)) {
        for Usage { limit, live_keys, capacity: room, bytes, evicted: forgotten, held_keys, held } in self.usage() {
            let limit = &limit;
            observer.observe(&Event::Usage {
                limit,
                live_keys,
                capacity: room,
                bytes,
                evicted: forgotten,
                held_keys,
                held,
            });
        }
    }

    admin_methods!();

    /// What the fast path leaves: everything that is held, for instance.
    #[inline(never)]
    fn acquire_slow<Key: ?Sized>(&self, key: &Key, ask: AcquireOptions, missed: Missed) -> Outcome
    where
        L: MemoryLimitsFor<Key, S>,
        S: BuildHasher + Send + Sync + 'static,
    {
        let (decision, limits) = L::at_length(&self.shared.rows, self.asked(key, ask), missed);
        let held = (ask.hold && decision.is_allowed()).then(|| {
            let shared = Arc::clone(&self.shared);
            Held::new(ask.cost, move |actual| LimiterFuture::ready(shared.settle::<L>(&limits, ask.cost, actual)))
        });
        Outcome { decision, held }
    }
}

impl<R, C: Clock, S> Shared<R, C, S> {
    /// Ends a hold on each limit that is still there: also on one that was replaced and has taken over its keys.
    fn settle<L: MemoryLimits<S, Rows = R>>(&self, limits: &[HeldLimit], held: u64, actual: u64) -> Result<(), Error> {
        let mut settled = Ok(());
        L::holdings(&self.rows, &mut |row| {
            for limit in limits.iter().filter(|limit| limit.table == row.table_id()) {
                settled = settled.and(row.settle(limit, held, actual, &self.clock));
            }
        });
        settled.map_err(|_| table_full())
    }
}

impl<Key: ?Sized + 'static, C, S: BuildHasher + 'static> Memory<Vec<DynLimit<Key, S>>, C, S> {
    /// Replaces the limits, at once for every decision that begins after it.
    ///
    /// A limit that has the name of a former one, an algorithm of the same type and counts by the same type of part takes
    /// over its keys: what they owe stays owed, and no more, and who is blocked stays blocked. For that, keys in limits that
    /// can be replaced take the room of any setting of their algorithm: of a [`SlidingWindow`](crate::SlidingWindow) that of
    /// 60 blocks, some 600 bytes. Any other limit begins anew, without blocks, and one that is not named any more is
    /// forgotten. Each algorithm says what it makes of states and charges from before.
    ///
    /// A cost that is [held](crate::limiter::Held) meanwhile is settled by the limit that has taken over. Of two replacements at
    /// a time one comes first, and the other takes over from it.
    ///
    /// # Errors
    ///
    /// As for [`MemoryBuilder::build`]; then the limits stay as they are.
    pub fn replace(&self, limits: Vec<DynLimit<Key, S>>) -> Result<(), Error> {
        self.shared.rows.replace(limits)
    }
}

fn table_full() -> Error {
    Error::unavailable("key table full: eviction is disabled (`WhenFull::Deny`); raise `max_keys`")
}

fn no_such_limit(limit: &str) -> Error {
    Error::config(format!("there is no limit named {limit:?} (one that was not named is \"default\")"))
}

impl<Key, L, C, S> Limiter<Key> for Memory<L, C, S>
where
    Key: ?Sized,
    L: MemoryLimitsFor<Key, S>,
    C: Clock,
    S: BuildHasher + Send + Sync + 'static,
{
    type Future = Ready<Result<Outcome, Error>>;

    #[inline]
    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<Self::Future> {
        let asked = self.asked(key, ask);
        match L::at_once(&self.shared.rows, &asked) {
            Ok(decision) => Acquisition::Ready(Ok(Outcome { decision, held: None })),
            Err(missed) => Acquisition::Ready(Ok(self.acquire_slow(key, ask, missed))),
        }
    }

    fn peek(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision> {
        LimiterFuture::ready(Ok(L::peek(&self.shared.rows, self.asked(key, ask))))
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        let asked = self.asked(key, AcquireOptions::default());
        LimiterFuture::ready(match operation {
            AdminOperation::SetUsage { limit, used } => {
                let set = self.in_limit(limit, |row| row.set(&asked, used));
                set.and_then(|set| set.map_err(|_| table_full()))
            }
            AdminOperation::Block { limit, duration } => {
                self.in_limit(limit, |row| row.block(&asked, asked.now.saturating_add(duration)))
            }
            AdminOperation::Reset => {
                L::each(&self.shared.rows, &mut |row| row.reset(&asked));
                Ok(())
            }
        })
    }
}

impl<L: MemoryLimits<S>, C, S> Clone for Memory<L, C, S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<L: MemoryLimits<S>, C: fmt::Debug, S> fmt::Debug for Memory<L, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("clock", &self.shared.clock).finish_non_exhaustive()
    }
}
