use std::fmt;
use std::hash::BuildHasher;
use std::io::Read;
use std::marker::PhantomData;

use super::clock::MemoryClock;
use super::hasher::KeyHasher;
use super::limiter::Memory;
use super::limits::MemoryLimits;
use super::save::{Restore, SavedCounts};
use super::transaction_limit::{Capacity, read_clock};
use super::when_full::WhenFull;
use crate::clock::Clock;
use crate::error::Error;
use crate::store::inner::CallId;

/// Builds a [`Memory`] limiter.
#[must_use = "a builder builds nothing by itself"]
pub struct MemoryBuilder<Key: ?Sized, L> {
    limits: L,
    capacity: Capacity,
    clock: MemoryClock,
    hasher: KeyHasher,
    restore: Option<Restore>,
    max_ids: usize,
    key: PhantomData<fn(&Key)>,
}

impl<Key: ?Sized, L> MemoryBuilder<Key, L> {
    pub(super) fn new(limits: L) -> Self {
        Self {
            limits,
            capacity: Capacity::DEFAULT,
            clock: MemoryClock::default(),
            hasher: KeyHasher::default(),
            restore: None,
            max_ids: CallId::DEFAULT_MAX_IDS,
            key: PhantomData,
        }
    }

    /// Sets the number of keys that each limit can store, by default 100 000. A table grows with the keys in use, up to
    /// this number, and never shrinks. [Algorithms](crate::guide::choosing) lists the bytes of a key.
    ///
    /// Up to this number of keys that are not idle, none is evicted. Beyond it [`when_full`](Self::when_full)
    /// determines what happens to new keys.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.capacity.max_keys = max_keys;
        self
    }

    /// Sets what happens to a new key when the table is full.
    ///
    /// ```
    /// use tower_ratelimit::{Gcra, Memory, Quota, WhenFull};
    ///
    /// let limiter = Memory::<u64, _>::builder(Gcra::new(Quota::per_second(10)))
    ///     .max_keys(1_000_000)
    ///     .when_full(WhenFull::CarryOver)
    ///     .build()?;
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.capacity.when_full = when_full;
        self
    }

    /// Sets the maximum number of bytes that the hits of a [`SlidingLog`](crate::SlidingLog) may take on the heap, in the
    /// states of each limit. [`build`](Self::build) checks it from the limit and the number of keys. It is not checked for
    /// an algorithm that is chosen by the key. The bytes of other algorithms' states do not depend on the limit.
    pub fn max_heap_bytes(mut self, bytes: usize) -> Self {
        self.capacity.max_heap_bytes = bytes;
        self
    }

    /// Sets the maximum number of remembered [ids](crate::AcquireOptions::id) of a key: 1 to 1,000,000, by default
    /// 10,000. A further hold with an id is denied.
    ///
    /// All keys together have 1,000,000 ids, of some 300 bytes each. Beyond it, the limiter forgets an id whose hold has
    /// ended. If no hold has ended, it denies a further one.
    pub fn max_reservation_ids(mut self, max: usize) -> Self {
        self.max_ids = max;
        self
    }

    /// Allows an empty list of limits, which is a configuration error otherwise: for limits that
    /// [`replace`](Memory::replace) adds later. A limiter without limits allows every request.
    pub fn allow_no_limits(mut self) -> Self {
        self.capacity.allow_no_limits = true;
        self
    }

    /// Sets the clock, for example a [`ManualClock`](crate::ManualClock) in tests.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = MemoryClock::Other(Box::new(clock));
        self
    }

    /// Sets the hasher of keys. If clients can choose their keys, its seed must be secret: otherwise they can choose
    /// colliding keys.
    ///
    /// The default is foldhash with a random seed. [`RandomState`](std::hash::RandomState) of the standard library, `SipHash`
    /// with a random seed for each limiter, is designed to resist clients that choose colliding keys (user names, API keys,
    /// paths). With it a decision takes 1.2 to 1.4 times as long (`cd benches && cargo bench -- "memory hashers"`).
    ///
    /// ```
    /// use std::hash::RandomState;
    /// use tower_ratelimit::{Gcra, Memory, Quota};
    ///
    /// let builder = Memory::<u64, _>::builder(Gcra::new(Quota::per_second(10)));
    /// let limiter = builder.hasher(RandomState::new()).build()?;
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn hasher(mut self, hasher: impl BuildHasher + Send + Sync + 'static) -> Self {
        self.hasher = KeyHasher::Other(Box::new(hasher));
        self
    }

    /// Restores the counts that a process before this one has [saved](Memory::save), with its seed of the hashes.
    ///
    /// The order of `restore` and the other methods does not matter. Each limit takes over the states and blocks of the
    /// saved limit with the same name, if the types of its algorithm and of its sub-key have the same names too, as far
    /// as their last parts go (`Gcra`, `IpAddr`). All other limits start empty, and other saved limits are dropped. Under
    /// another quota, usage is kept as by [`replace`](Memory::replace). If there are fewer slots than saved keys,
    /// [`when_full`](Self::when_full) applies.
    ///
    /// To the limits, a restart is a step of the clock by the time in between: usage drains meanwhile. If the system time
    /// was set back, states are decided as after any step back of a [`Clock`](crate::Clock).
    ///
    /// The whole file is read at once. [Saved counts](crate::guide::operating#counts-that-survive-a-deploy) shows a server that saves and restores.
    ///
    /// ```
    /// use tower_ratelimit::{Gcra, Memory, Quota};
    ///
    /// let limits = || Gcra::new(Quota::per_hour(100));
    /// let before = Memory::new(limits());
    /// let _ = before.check("alice", 60);
    /// let mut file = Vec::new();
    /// before.save(&mut file)?;
    ///
    /// let after = Memory::builder(limits()).restore(&*file).build()?;
    /// assert!(after.check("alice", 1).remaining() < Some(41));
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) returns an error if the reader fails, if the file is incomplete, damaged, of another kind or
    /// of another version, if it was saved with another hasher or another seed of [`hasher`](Self::hasher), or if under
    /// [`WhenFull::Deny`] a key finds no slot.
    pub fn restore(mut self, reader: impl Read) -> Self {
        self.restore = Some(Restore { counts: SavedCounts::read(reader), or_empty: None });
        self
    }

    /// Restores saved counts as [`restore`](Self::restore) does, but starts empty instead of returning an error.
    ///
    /// `on_error` receives the error, for a log. An empty start admits each key's limit once more.
    ///
    /// ```
    /// use tower_ratelimit::{Gcra, Memory, Quota};
    ///
    /// let damaged: &[u8] = b"tower-ratelimit\n but no counts";
    /// let limiter = Memory::builder(Gcra::new(Quota::per_hour(100)))
    ///     .restore_or_empty(damaged, |error| eprintln!("{error}"))
    ///     .build()?;
    /// assert_eq!(limiter.check("alice", 1).remaining(), Some(99));
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn restore_or_empty(
        mut self,
        reader: impl Read,
        on_error: impl FnOnce(&Error) + Send + Sync + 'static,
    ) -> Self {
        self.restore = Some(Restore { counts: SavedCounts::read(reader), or_empty: Some(Box::new(on_error)) });
        self
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the number of keys is zero or over 2^32, if a sliding log could take more than
    /// [`max_heap_bytes`](Self::max_heap_bytes), or if a limit's name is empty or not unique. Also returns the errors of
    /// [`restore`](Self::restore).
    pub fn build(self) -> Result<Memory<Key, L>, Error>
    where
        L: MemoryLimits<Key>,
    {
        const MAX: u64 = 1 << 32;
        CallId::check_max_ids(self.max_ids)?;
        if self.capacity.max_keys == 0 {
            return Err(Error::config("invalid `max_keys`: 0 keys would limit nothing; use at least 1"));
        }
        if self.capacity.max_keys as u64 > MAX {
            return Err(Error::config(format!(
                "invalid `max_keys` {}: the maximum is 2^32; use a smaller value",
                self.capacity.max_keys
            )));
        }
        let tables = self.limits.build(self.capacity)?;
        let mut hasher = self.hasher;
        if let Some(restore) = self.restore {
            restore.fill::<Key, L>(&tables, &mut hasher, read_clock(&self.clock))?;
        }
        Ok(Memory::from_parts(tables, self.clock, hasher, self.max_ids))
    }
}

impl<Key: ?Sized, L> fmt::Debug for MemoryBuilder<Key, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBuilder").field("max_keys", &self.capacity.max_keys).finish_non_exhaustive()
    }
}
