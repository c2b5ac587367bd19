use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use super::{AdminOperation, Limiter, LimiterFuture, LimitsOfKey, Outcome};
use crate::clock::{Clock, SystemClock, Timestamp, latest_end};
use crate::decision::{AcquireOptions, Decision, DecisionSource, Verdict};

/// A limiter that caches denials, so that a flood of denied requests does not reach the limiter inside.
///
/// Put the cache around [`Redis`](crate::store) limiters. A cached denial answers later requests of the same key with
/// the same or a higher cost (in each [unit](crate::Limit::cost_of)), and the same maximum delay. It expires at its
/// `retry_after`, counted from the time of its request. Cached denials are exact: until then the limiter would deny the
/// request again. The times of a cached denial change as in the limiter; what remains is that of the denial. A request with
/// a higher cost receives the wait of the cached denial as an [estimate](Decision::is_estimate), and reaches the limiter after that.
///
/// There is one exception: a request that accepts a delay, under several limits. A charge of another key with the same
/// shared limit, or of a settled hold, can make a delayed start [possible](crate::Limit#waiting-for-several-limits)
/// before the cached denial expires. The cached wait still suffices.
///
/// A cost that exceeds the limit has no `retry_after`: the cache keeps that denial for
/// [`EXCEEDS_LIMIT_TTL`](Self::EXCEEDS_LIMIT_TTL). [`peek`](Limiter::peek) uses and fills the cache too. The cache
/// keeps no denial by a policy or a fallback, and no denial whose wait is an [estimate](Decision::is_estimate).
///
/// A request with an id ([`once`](AcquireOptions::once), [`id`](AcquireOptions::id)) always reaches the
/// limiter, because a repeat of the id is allowed. So a denied client that sends a new `Idempotency-Key` with each request
/// passes the cache: put a limit by address outside of the layer, in memory and without ids.
///
/// # Stale denials
///
/// A cached denial is stale if the limiter would allow the key earlier than at `retry_after`:
///
/// - `set_usage`, `block` and `reset` of the same key through this limiter remove the denial.
/// - The cache does not see the same operations in another process, or on another key with the same sub-key.
///   [`max_age`](Self::max_age) bounds how long a stale denial lasts.
/// - The cache does not see a raised quota: [`per_key`](crate::per_key) that selects a higher tier, or limits that were
///   replaced. Call [`invalidate`](Self::invalidate) for one key or [`clear`](Self::clear) for all keys, in each
///   process, after the change.
///
/// # Capacity
///
/// The cache has a fixed capacity ([`DEFAULT_CAPACITY`](Self::DEFAULT_CAPACITY)). A new denial replaces a
/// denial that expires sooner. Clones share the cache. The cache does not store keys: it recognises a key by a 64-bit hash
/// (`SipHash` with a random seed for each cache).
///
/// ```
/// use tower_ratelimit::limiter::DeniedCache;
/// use tower_ratelimit::{FixedWindow, Memory, Quota};
///
/// // In production, around `Redis` instead of `Memory`.
/// let limiter = DeniedCache::new(Memory::<u64, _>::new(FixedWindow::new(Quota::per_minute(100))));
/// ```
#[must_use]
pub struct DeniedCache<L, C = SystemClock> {
    limiter: L,
    max_age: Duration,
    state: Arc<CacheState<C>>,
}

struct CacheState<C> {
    slots: Box<[ArcSwapOption<CachedDenial>]>,
    /// Counts invalidations. Several slots share one counter.
    ///
    /// A denial is inserted only if its counter has the value from before the acquire call. Otherwise a denial from
    /// before an administrative operation would be cached after the operation.
    epochs: Box<[AtomicU64]>,
    /// Randomly seeded: two keys with one hash share a denial, so clients must not be able to find such keys.
    hasher: RandomState,
    clock: C,
}

struct CachedDenial {
    hash: u64,
    options: AcquireOptions,
    requested_at: Timestamp,
    expires_at: Timestamp,
    decision: Decision,
}

impl CachedDenial {
    /// Returns whether the denial has not expired, and the clock has not stepped back by more than the denial's duration.
    fn is_valid(&self, now: Timestamp) -> bool {
        let duration = self.expires_at.as_micros() - self.requested_at.as_micros();
        self.expires_at > now && self.expires_at <= latest_end(now, duration)
    }
}

/// The two slots in which the denial of a key may be.
#[derive(Clone, Copy)]
struct CandidateSlots {
    hash: u64,
    slots: [usize; 2],
}

impl<L> DeniedCache<L> {
    /// The default capacity in keys.
    pub const DEFAULT_CAPACITY: usize = 16_384;

    /// How long the cache keeps the denial of a cost that exceeds the limit, unless [`max_age`](Self::max_age) is
    /// shorter.
    ///
    /// The quota may be raised meanwhile.
    pub const EXCEEDS_LIMIT_TTL: Duration = Duration::from_secs(10);

    /// Creates a cache with the default capacity around `limiter`.
    pub fn new(limiter: L) -> Self {
        Self::with_clock(limiter, Self::DEFAULT_CAPACITY, SystemClock::new())
    }

    /// Creates a cache with a capacity of about `keys` keys.
    pub fn with_capacity(limiter: L, keys: usize) -> Self {
        Self::with_clock(limiter, keys, SystemClock::new())
    }
}

impl<L, C: Clock> DeniedCache<L, C> {
    /// Creates a cache with a capacity of about `keys` keys and a custom clock.
    pub fn with_clock(limiter: L, keys: usize, clock: C) -> Self {
        let slots = keys.clamp(1, 1 << 24).next_power_of_two();
        let state = CacheState {
            slots: (0..slots).map(|_| ArcSwapOption::empty()).collect(),
            epochs: (0..slots.min(1024)).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            clock,
        };
        Self { limiter, max_age: Duration::MAX, state: Arc::new(state) }
    }

    /// Bounds the time for which the cache keeps a denial, and so the time for which a stale denial lasts.
    ///
    /// Applies to the denials that this handle and its later clones cache.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }

    /// Removes the cached denial of a key: after its quota was raised, or a block was lifted in another process.
    ///
    /// The next request of the key reaches the limiter. Denials of requests that are in flight are not cached. `key`
    /// must have the key type of the requests: the number 1 has another hash as `i32` than as `u64`.
    pub fn invalidate<Key>(&self, key: &Key)
    where
        Key: Hash + ?Sized,
        L: Limiter<Key>,
    {
        self.state.invalidate(self.state.candidates(key));
    }

    /// Removes all cached denials: after quotas were raised for many keys.
    ///
    /// Takes time in proportion to the capacity. Denials of requests that are in flight are not cached.
    pub fn clear(&self) {
        for epoch in &self.state.epochs {
            epoch.fetch_add(1, Ordering::SeqCst);
        }
        for slot in &self.state.slots {
            slot.store(None);
        }
    }
}

impl<C: Clock> CacheState<C> {
    #[allow(clippy::cast_possible_truncation, reason = "only the low bits are used")]
    fn candidates(&self, key: &(impl Hash + ?Sized)) -> CandidateSlots {
        let hash = self.hasher.hash_one(key);
        let mask = self.slots.len() - 1;
        CandidateSlots { hash, slots: [hash as usize & mask, (hash >> 32) as usize & mask] }
    }

    fn epoch(&self, candidates: CandidateSlots) -> &AtomicU64 {
        &self.epochs[candidates.slots[0] & (self.epochs.len() - 1)]
    }

    /// Returns the cached denial that answers the request, if any.
    fn lookup(&self, candidates: CandidateSlots, options: AcquireOptions, now: Timestamp) -> Option<Decision> {
        // The repeat of a hold with an id is allowed, whatever the usage.
        if options.reservation_id().is_some() {
            return None;
        }
        candidates.slots.into_iter().find_map(|slot| self.lookup_in(slot, candidates.hash, options, now))
    }

    fn lookup_in(&self, slot: usize, hash: u64, options: AcquireOptions, now: Timestamp) -> Option<Decision> {
        let denial = self.slots[slot].load();
        let denial = denial.as_deref()?;
        let applies = denial.hash == hash
            && denial.is_valid(now)
            && options.cost >= denial.options.cost
            && options.units.cover(&denial.options.units)
            && options.max_delay == denial.options.max_delay
            // A hold starts now. A denied hold may be scheduled as a charge, unless the charge accepts no delay.
            && (options.hold == denial.options.hold || options.max_delay == Some(Duration::ZERO))
            && denial.options.detail >= options.detail;
        // A higher cost waits for longer. It reaches the limiter when the cached denial has expired.
        let is_higher = options.cost != denial.options.cost || options.units != denial.options.units;
        let is_estimate = is_higher && denial.decision.retry_after().is_some();
        applies.then(|| denial.decision.aged_by(now.saturating_since(denial.requested_at)).with_estimate(is_estimate))
    }

    /// Caches a denial, unless the epoch has changed since `requested_at`: the key was invalidated.
    fn insert(
        &self,
        candidates: CandidateSlots,
        options: AcquireOptions,
        (requested_at, epoch): (Timestamp, u64),
        max_age: Duration,
        decision: &Decision,
    ) {
        // The denial of a repeat is one of the cost by which it exceeds the charged one.
        if decision.is_estimate() || options.reservation_id().is_some() {
            return;
        }
        let ttl = match (decision.verdict(), decision.source()) {
            (Verdict::Denied { retry_after }, DecisionSource::Store) => retry_after.min(max_age),
            (Verdict::ExceedsLimit, DecisionSource::Store) => DeniedCache::<()>::EXCEEDS_LIMIT_TTL.min(max_age),
            _ => return,
        };
        // Counted from before the decision, the denial expires no later than its `retry_after`.
        let expires_at = requested_at.saturating_add(ttl);
        // Computes the numbers of the decision now, not at each lookup.
        let decision = decision.aged_by(Duration::ZERO).with_source(DecisionSource::Cache);
        let denial = CachedDenial { hash: candidates.hash, options, requested_at, expires_at, decision };
        self.slots[self.pick_slot(candidates, requested_at)].store(Some(Arc::new(denial)));
        // An invalidation increments the epoch before it removes denials. So either it finds the denial that was just
        // stored, or its increment is visible here.
        if self.epoch(candidates).load(Ordering::SeqCst) != epoch {
            self.remove(candidates);
        }
    }

    /// Returns the slot that has the key's denial, or the one whose denial expires sooner.
    fn pick_slot(&self, candidates: CandidateSlots, now: Timestamp) -> usize {
        let expires_at = |slot: usize| match self.slots[slot].load().as_deref() {
            // Before all others, so that the cache has one denial of a key.
            Some(denial) if denial.hash == candidates.hash => Timestamp::EPOCH,
            Some(denial) if denial.is_valid(now) => denial.expires_at,
            Some(_) | None => now,
        };
        let [first, second] = candidates.slots;
        if expires_at(second) < expires_at(first) { second } else { first }
    }

    /// Removes the denial of a key, and keeps requests that are in flight from caching theirs.
    fn invalidate(&self, candidates: CandidateSlots) {
        // Sequentially consistent, as the accesses in `insert`: each side writes, then reads what the other has
        // written. With weaker orderings both could miss the other one.
        self.epoch(candidates).fetch_add(1, Ordering::SeqCst);
        self.remove(candidates);
    }

    fn remove(&self, candidates: CandidateSlots) {
        for slot in candidates.slots {
            let slot = &self.slots[slot];
            if slot.load().as_ref().is_some_and(|denial| denial.hash == candidates.hash) {
                slot.store(None);
            }
        }
    }
}

impl<L, C: Clock> DeniedCache<L, C> {
    /// Returns the cached denial that answers the request. Otherwise asks the limiter, and caches its denial.
    fn decide<Key, T>(
        &self,
        key: &Key,
        options: AcquireOptions,
        ask: impl FnOnce(&L, &Key, AcquireOptions) -> LimiterFuture<T>,
        decision: fn(&T) -> &Decision,
    ) -> LimiterFuture<T>
    where
        Key: Hash + ?Sized,
        T: From<Decision> + Send + 'static,
    {
        let state = &self.state;
        let (candidates, now) = (state.candidates(key), state.clock.now());
        if let Some(decision) = state.lookup(candidates, options, now) {
            return LimiterFuture::ready(Ok(decision.into()));
        }
        let epoch = state.epoch(candidates).load(Ordering::SeqCst);
        let asked = ask(&self.limiter, key, options);
        if let Some(Ok(decided)) = asked.as_ready()
            && decision(decided).is_allowed()
        {
            return asked;
        }
        let (state, max_age) = (Arc::clone(state), self.max_age);
        asked.map(move |decided| {
            state.insert(candidates, options, (now, epoch), max_age, decision(&decided));
            decided
        })
    }
}

impl<Key, L, C> Limiter<Key> for DeniedCache<L, C>
where
    Key: Hash + ?Sized,
    L: Limiter<Key>,
    C: Clock,
{
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        self.decide(key, options, L::acquire, |outcome| &outcome.decision)
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.decide(key, options, L::peek, |decision| decision)
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.limiter.limits_of(key, limits);
    }

    /// Invalidates the key before and after the operation: a denial from before it must not be cached after it.
    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        let candidates = self.state.candidates(key);
        self.state.invalidate(candidates);
        let state = Arc::clone(&self.state);
        self.limiter.administer(key, operation).map(move |()| state.invalidate(candidates))
    }
}

impl_clone!([L: Clone, C] DeniedCache<L, C> { limiter, max_age, state });

impl_debug!([L: fmt::Debug, C] DeniedCache<L, C> { limiter });
