use std::fmt;
use std::hash::RandomState;
use std::marker::PhantomData;

use super::hasher::DefaultHashBuilder;
use super::limiter::Memory;
use super::limits::MemoryLimits;
use super::transaction_limit::Capacity;
use crate::clock::{Clock, SystemClock};
use crate::error::Error;
use crate::table::WhenFull;

/// Builds a [`Memory`] limiter.
#[must_use = "a builder builds nothing by itself"]
pub struct MemoryBuilder<Key: ?Sized, L, C = SystemClock, S = DefaultHashBuilder> {
    limits: L,
    capacity: Capacity,
    clock: C,
    hasher: S,
    key: PhantomData<fn(&Key)>,
}

impl<Key: ?Sized, L> MemoryBuilder<Key, L> {
    /// Creates a builder, as [`Memory::builder`] does. It also accepts limits for another hasher.
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
        Self {
            limits,
            capacity: Capacity::DEFAULT,
            clock: SystemClock::new(),
            hasher: DefaultHashBuilder::default(),
            key: PhantomData,
        }
    }
}

impl<Key: ?Sized, L, C, S> MemoryBuilder<Key, L, C, S> {
    /// Sets the number of keys that each limit can store. The memory for them is allocated when the limiter is built,
    /// some 48 bytes a key for buckets and the fixed window, and never grows.
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

    /// Sets the maximum number of bytes that the states of each limit may take on the heap. Only a
    /// [`SlidingLog`](crate::SlidingLog) takes any. [`build`](Self::build) checks it from the limit and the number of
    /// keys. It is not checked for an algorithm that is chosen by the key.
    pub fn max_heap_bytes(mut self, bytes: usize) -> Self {
        self.capacity.max_heap_bytes = bytes;
        self
    }

    /// Allows an empty list of limits, which is a configuration error otherwise: for limits that
    /// [`replace`](Memory::replace) adds later. A limiter without limits allows every request.
    pub fn allow_no_limits(mut self) -> Self {
        self.capacity.allow_no_limits = true;
        self
    }

    /// Sets the clock, for example a [`ManualClock`](crate::ManualClock) in tests.
    pub fn clock<D: Clock>(self, clock: D) -> MemoryBuilder<Key, L, D, S> {
        MemoryBuilder { limits: self.limits, capacity: self.capacity, clock, hasher: self.hasher, key: PhantomData }
    }

    /// Hashes keys with SipHash-1-3 and a random seed for each limiter ([`RandomState`] of the standard library).
    /// `SipHash` is designed to resist clients that choose colliding keys (user names, API keys, paths).
    ///
    /// The default, [`DefaultHashBuilder`], is faster and has no such guarantee. With `SipHash` a decision takes 1.2 to
    /// 1.4 times as long, 12 to 16 ns more (`cd benches && cargo bench -- "memory hashers"`).
    ///
    /// ```
    /// use tower_ratelimit::{Gcra, Memory, Quota};
    ///
    /// let limiter = Memory::<u64, _>::builder(Gcra::new(Quota::per_second(10))).sip_hash().build()?;
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn sip_hash(self) -> MemoryBuilder<Key, L, C, RandomState> {
        self.hasher(RandomState::new())
    }

    /// Sets the hasher of keys. If clients can choose their keys, its seed must be secret: otherwise they can choose
    /// colliding keys. [`sip_hash`](Self::sip_hash) is a hasher for such keys.
    pub fn hasher<T>(self, hasher: T) -> MemoryBuilder<Key, L, C, T> {
        MemoryBuilder { limits: self.limits, capacity: self.capacity, clock: self.clock, hasher, key: PhantomData }
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the number of keys is zero or over 2^32, if a sliding log could take more than
    /// [`max_heap_bytes`](Self::max_heap_bytes), or if a limit's name is empty or not unique.
    pub fn build(self) -> Result<Memory<Key, L, C, S>, Error>
    where
        L: MemoryLimits<Key, S>,
        C: Clock,
    {
        const MAX: u64 = 1 << 32;
        if self.capacity.max_keys == 0 {
            return Err(Error::config("invalid `max_keys`: 0 keys would limit nothing; use at least 1"));
        }
        if self.capacity.max_keys as u64 > MAX {
            return Err(Error::config(format!(
                "invalid `max_keys` {}: the maximum is 2^32; use a smaller value",
                self.capacity.max_keys
            )));
        }
        Ok(Memory::from_parts(self.limits.build(self.capacity)?, self.clock, self.hasher))
    }
}

impl<Key: ?Sized, L, C, S> fmt::Debug for MemoryBuilder<Key, L, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBuilder").field("max_keys", &self.capacity.max_keys).finish_non_exhaustive()
    }
}
