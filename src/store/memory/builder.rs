use std::fmt;
use std::hash::RandomState;

use super::hasher::DefaultHashBuilder;
use super::limiter::Memory;
use super::limits::MemoryLimits;
use super::transaction_limit::Capacity;
use crate::clock::{Clock, SystemClock};
use crate::error::Error;
use crate::table::WhenFull;

/// Builds a [`Memory`] limiter with other than the default settings.
#[must_use = "a builder builds nothing by itself"]
pub struct MemoryBuilder<L, C = SystemClock, S = DefaultHashBuilder> {
    limits: L,
    capacity: Capacity,
    clock: C,
    hasher: S,
}

impl<L> MemoryBuilder<L> {
    /// As [`Memory::builder`]; and it takes limits for another hasher, too.
    ///
    /// ```
    /// use std::hash::RandomState;
    /// use tower_ratelimit::{DynLimit, Gcra, Limit, MemoryBuilder, Quota};
    ///
    /// let limits: Vec<DynLimit<str, RandomState>> = vec![DynLimit::new(Limit::new("api", Gcra::new(Quota::per_second(10))))];
    /// let limiter = MemoryBuilder::new(limits).hasher(RandomState::new()).build()?;
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn new(limits: L) -> Self {
        Self { limits, capacity: Capacity::DEFAULT, clock: SystemClock::new(), hasher: DefaultHashBuilder::default() }
    }
}

impl<L, C, S> MemoryBuilder<L, C, S> {
    /// Sets for how many keys each limit has capacity. The memory for them is taken when the limiter is built, some 48 bytes
    /// a key for buckets and the fixed window, and never grows.
    ///
    /// Up to so many keys that are not idle, nothing is forgotten. Beyond that [`when_full`](Self::when_full) says what
    /// becomes of new keys.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.capacity.max_keys = max_keys;
        self
    }

    /// Sets what becomes of a new key when there is no capacity for it.
    ///
    /// ```
    /// use tower_ratelimit::{Gcra, Memory, Quota, WhenFull};
    ///
    /// let limiter = Memory::builder(Gcra::new(Quota::per_second(10)))
    ///     .max_keys(1_000_000)
    ///     .when_full(WhenFull::CarryOver)
    ///     .build()?;
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.capacity.when_full = when_full;
        self
    }

    /// Sets how many bytes each limit may take on the heap, which only a [`SlidingLog`](crate::SlidingLog) does: checked
    /// when the limiter is built, from its limit and the number of keys. For a limit whose algorithm is chosen by the key
    /// nothing is known beforehand, and nothing is checked.
    pub fn max_heap_bytes(mut self, bytes: usize) -> Self {
        self.capacity.max_heap_bytes = bytes;
        self
    }

    /// Allows an empty list of limits, which is a configuration error otherwise: for limits that are added later by
    /// [`replace`](Memory::replace). A limiter without limits allows everything.
    pub fn allow_no_limits(mut self) -> Self {
        self.capacity.allow_no_limits = true;
        self
    }

    /// Sets the clock: a [`ManualClock`](crate::ManualClock) in tests.
    pub fn clock<D: Clock>(self, clock: D) -> MemoryBuilder<L, D, S> {
        MemoryBuilder { limits: self.limits, capacity: self.capacity, clock, hasher: self.hasher }
    }

    /// Hashes keys by SipHash-1-3 with a random seed for each limiter ([`RandomState`] of the standard library), which is designed
    /// to resist clients that choose their keys (user names, API keys, paths) in order to make them collide.
    ///
    /// The default, [`DefaultHashBuilder`], is faster, and has no such guarantee: with `SipHash` a
    /// decision takes 1.2 to 1.4 times as long, 12 to 16 ns more (`cd benches && cargo bench -- "memory hashers"`).
    ///
    /// ```
    /// use tower_ratelimit::{Gcra, Memory, Quota};
    ///
    /// let limiter = Memory::builder(Gcra::new(Quota::per_second(10))).sip_hash().build()?;
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn sip_hash(self) -> MemoryBuilder<L, C, RandomState> {
        self.hasher(RandomState::new())
    }

    /// Sets the hasher of keys. It must be seeded with something that clients don't know if they can choose their keys:
    /// else they can choose keys that fall together. [`sip_hash`](Self::sip_hash) is one for such keys.
    pub fn hasher<T>(self, hasher: T) -> MemoryBuilder<L, C, T> {
        MemoryBuilder { limits: self.limits, capacity: self.capacity, clock: self.clock, hasher }
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// If the cap on keys is zero or over 2^32, a sliding log could take more than
    /// [`max_heap_bytes`](Self::max_heap_bytes), or a limit's name is empty or that of another one.
    pub fn build(self) -> Result<Memory<L, C, S>, Error>
    where
        L: MemoryLimits<S>,
        C: Clock,
    {
        const MOST: u64 = 1 << 32;
        if self.capacity.max_keys == 0 {
            return Err(Error::config(
                "`max_keys` is 0: a limiter that remembers no key limits nothing; give it at least 1",
            ));
        }
        if self.capacity.max_keys as u64 > MOST {
            return Err(Error::config(format!("`max_keys` is {}: it must be at most 2^32", self.capacity.max_keys)));
        }
        Ok(Memory::from_parts(self.limits.build(self.capacity)?, self.clock, self.hasher))
    }
}

impl<L, C, S> fmt::Debug for MemoryBuilder<L, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBuilder").field("max_keys", &self.capacity.max_keys).finish_non_exhaustive()
    }
}
