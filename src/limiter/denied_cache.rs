use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hash, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use pin_project::pin_project;

use super::future::{Acquisition, LimiterFuture};
use super::{AdminOperation, Limiter, Outcome, admin_methods};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::decision::{AcquireOptions, Decision, DecisionSource, Verdict};
use crate::error::Error;

/// A limiter that remembers refusals: whom another limiter has refused, it refuses by itself until asking again is worth it.
///
/// In front of Redis, so that a flood from clients that are refused never reaches it. A refusal is remembered until its
/// `retry_after`, counted from when it was asked for, for the same cost and above, and for the same longest delay. It is
/// exact: an algorithm that refused would refuse again until then, and figures count down as they would. (To a higher cost
/// the time is told that is right for the one that was refused: that is when it is asked anew.) A cost that exceeds the limit
/// has no `retry_after`: the cache remembers it for [`EXCEEDED_FOR`](Self::EXCEEDED_FOR). Both hold for
/// [`peek`](Limiter::peek) as well. A denial whose wait is an [estimate](Decision::is_estimate) is not remembered.
///
/// # When a remembered refusal is wrong
///
/// Only what gives a key room earlier can make it wrong: `set_usage`, `block`, `unblock` and `reset` of that key through this
/// limiter are seen at once. Through another process, or on a key that shares a part with it, they are seen when the refusal is
/// over; [`max_age`](Self::max_age) bounds how late that can be.
///
/// The cache does not see that a quota was raised: [`per_key`](crate::per_key) that chooses a higher tier for a key, or a limiter
/// that was replaced. The key stays refused until the old `retry_after`, unless [`invalidate`](Self::invalidate) (for one key)
/// or [`clear`](Self::clear) (for all keys) is called in each process after the change.
///
/// It has room for a fixed number of keys ([`DEFAULT_CAPACITY`](Self::DEFAULT_CAPACITY)); a newcomer takes the place of one that is over sooner. Clones share it.
/// Keys themselves are not stored. A key is recognised by a 64-bit hash of them (`SipHash`, with a random seed for each cache).
///
/// ```
/// use tower_ratelimit::limiter::DeniedCache;
/// use tower_ratelimit::{FixedWindow, Memory, Quota};
///
/// // In front of `Redis`, rather.
/// let limiter = DeniedCache::new(Memory::new(FixedWindow::new(Quota::per_minute(100))));
/// ```
pub struct DeniedCache<L, C = SystemClock> {
    limiter: L,
    shared: Arc<Shared<C>>,
}

struct Shared<C> {
    slots: Box<[ArcSwapOption<CachedDenial>]>,
    /// Counts what may have given a key room, by slot: a refusal that was under way meanwhile is not remembered.
    changes: Box<[AtomicU64]>,
    /// Two keys of one hash would share a refusal: clients must not be able to find such keys.
    hasher: RandomState,
    clock: C,
    max_age: Option<Duration>,
}

struct CachedDenial {
    hash: u64,
    ask: AcquireOptions,
    asked_at: Timestamp,
    until: Timestamp,
    decision: Decision,
}

/// Where a key's refusal would be remembered: in one slot or the other.
#[derive(Clone, Copy)]
struct Place {
    hash: u64,
    slots: [usize; 2],
}

/// What is noted before asking.
#[derive(Clone, Copy)]
struct Asking {
    place: Place,
    ask: AcquireOptions,
    asked_at: Timestamp,
    changes: u64,
}

impl<L> DeniedCache<L> {
    /// For how many keys there is room.
    pub const DEFAULT_CAPACITY: usize = 16_384;

    /// How long the cache remembers that a cost exceeds the limit, unless [`max_age`](Self::max_age) is shorter.
    ///
    /// The limit may be raised meanwhile.
    pub const EXCEEDED_FOR: Duration = Duration::from_secs(10);

    /// Remembers what `limiter` refuses.
    pub fn new(limiter: L) -> Self {
        Self::with_clock(limiter, Self::DEFAULT_CAPACITY, SystemClock::new())
    }

    /// With room for about so many keys.
    pub fn with_capacity(limiter: L, keys: usize) -> Self {
        Self::with_clock(limiter, keys, SystemClock::new())
    }
}

impl<L, C: Clock> DeniedCache<L, C> {
    /// With room for about so many keys, by a clock of your own.
    pub fn with_clock(limiter: L, keys: usize, clock: C) -> Self {
        let slots = keys.clamp(1, 1 << 24).next_power_of_two();
        let shared = Shared {
            slots: (0..slots).map(|_| ArcSwapOption::empty()).collect(),
            changes: (0..slots.min(1024)).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            clock,
            max_age: None,
        };
        Self { limiter, shared: Arc::new(shared) }
    }

    /// Remembers no refusal for longer than this: bounds for how long what another process changes can go unseen.
    ///
    /// # Panics
    ///
    /// If the limiter has been cloned already: its clones share what it remembers.
    #[must_use]
    #[track_caller]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("`max_age` is to be set before the limiter is cloned");
        shared.max_age = Some(max_age);
        self
    }

    /// Removes the remembered refusal of a key, if there is one: after its quota was raised, or a block was lifted elsewhere.
    ///
    /// The next decision for the key asks the limiter. A refusal that is on its way during the call is not remembered.
    /// The key must be of the type for which decisions are asked, as the number 1 has another hash as `i32` than as `u64`.
    pub fn invalidate<Key>(&self, key: &Key)
    where
        Key: Hash + ?Sized,
        L: Limiter<Key>,
    {
        self.shared.changed(self.shared.place(key));
    }

    /// Removes all remembered refusals: after quotas were raised for many keys.
    ///
    /// Takes time in proportion to the room for keys. Refusals that are on their way during the call are not remembered.
    pub fn clear(&self) {
        for changes in &self.shared.changes {
            changes.fetch_add(1, Ordering::SeqCst);
        }
        for slot in &self.shared.slots {
            slot.store(None);
        }
    }

    admin_methods!();
}

impl<C: Clock> Shared<C> {
    #[allow(clippy::cast_possible_truncation, reason = "only the low bits count")]
    fn place(&self, key: &(impl Hash + ?Sized)) -> Place {
        let hash = self.hasher.hash_one(key);
        let mask = self.slots.len() - 1;
        Place { hash, slots: [hash as usize & mask, (hash >> 32) as usize & mask] }
    }

    fn changes(&self, place: Place) -> &AtomicU64 {
        &self.changes[place.slots[0] & (self.changes.len() - 1)]
    }

    /// The refusal that still holds.
    fn remembered(&self, place: Place, ask: AcquireOptions, now: Timestamp) -> Option<Decision> {
        let [first, second] = place.slots;
        self.remembered_in(first, place.hash, ask, now).or_else(|| self.remembered_in(second, place.hash, ask, now))
    }

    fn remembered_in(&self, slot: usize, hash: u64, ask: AcquireOptions, now: Timestamp) -> Option<Decision> {
        let refusal = self.slots[slot].load();
        let refusal = refusal.as_deref()?;
        let holds = refusal.hash == hash
            && refusal.until > now
            && ask.cost >= refusal.ask.cost
            && ask.max_delay == refusal.ask.max_delay
            // A hold starts now: what it is denied may be scheduled for others, unless they accept no delay.
            && (ask.hold == refusal.ask.hold || ask.max_delay == Some(Duration::ZERO))
            && refusal.ask.detail >= ask.detail;
        holds.then(|| refusal.decision.aged_by(now.saturating_since(refusal.asked_at)))
    }

    /// Remembers a refusal, unless the key may have been given room since it was asked for.
    fn remember(&self, asking: Asking, decision: &Decision) {
        if decision.is_estimate() {
            return;
        }
        let span = match (decision.verdict(), decision.source()) {
            (Verdict::Denied { retry_after }, DecisionSource::Store) => retry_after,
            (Verdict::ExceedsLimit, DecisionSource::Store) => DeniedCache::<()>::EXCEEDED_FOR,
            _ => return,
        };
        let span = self.max_age.map_or(span, |most| most.min(span));
        // Counted from before it was decided, it is over no later than it should be.
        let until = asking.asked_at.saturating_add(span);
        let Asking { place, ask, asked_at, .. } = asking;
        // Its figures are worked out now, and not each time that it is told.
        let decision = decision.aged_by(Duration::ZERO);
        let refusal = CachedDenial { hash: place.hash, ask, asked_at, until, decision };
        self.slots[self.slot_for(place, asked_at)].store(Some(Arc::new(refusal)));
        // A change between these two lines finds the refusal, or is found here.
        if self.changes(asking.place).load(Ordering::SeqCst) != asking.changes {
            self.forget_at(asking.place);
        }
    }

    /// Where the key's refusal lies already, or the slot whose refusal is over sooner.
    fn slot_for(&self, place: Place, now: Timestamp) -> usize {
        let over_at = |slot: usize| match self.slots[slot].load().as_deref() {
            Some(refusal) if refusal.hash == place.hash => Timestamp::EPOCH,
            Some(refusal) => refusal.until.max(now),
            None => now,
        };
        let [first, second] = place.slots;
        if over_at(second) < over_at(first) { second } else { first }
    }

    /// The key may have room: whatever refusal is remembered or under way holds no longer.
    fn changed(&self, place: Place) {
        self.changes(place).fetch_add(1, Ordering::SeqCst);
        self.forget_at(place);
    }

    fn forget_at(&self, place: Place) {
        for slot in place.slots {
            let slot = &self.slots[slot];
            if slot.load().as_ref().is_some_and(|refusal| refusal.hash == place.hash) {
                slot.store(None);
            }
        }
    }
}

impl<L, C: Clock> DeniedCache<L, C> {
    /// Does something that may give a key room, and forgets its refusal before and after it.
    fn changing<Key: Hash + ?Sized>(
        &self,
        key: &Key,
        change: impl FnOnce(&L) -> LimiterFuture<()>,
    ) -> LimiterFuture<()> {
        let place = self.shared.place(key);
        self.shared.changed(place);
        let shared = Arc::clone(&self.shared);
        change(&self.limiter).map(move |()| shared.changed(place))
    }

    /// The refusal that still holds, or what is noted before asking.
    fn look_up<Key: Hash + ?Sized>(&self, key: &Key, ask: AcquireOptions) -> Result<Decision, Asking> {
        let shared = &self.shared;
        let (place, now) = (shared.place(key), shared.clock.now());
        shared.remembered(place, ask, now).ok_or_else(|| {
            let changes = shared.changes(place).load(Ordering::SeqCst);
            Asking { place, ask, asked_at: now, changes }
        })
    }
}

impl<Key, L, C> Limiter<Key> for DeniedCache<L, C>
where
    Key: Hash + ?Sized,
    L: Limiter<Key>,
    C: Clock,
{
    type Future = DeniedCacheFuture<L::Future, C>;

    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<Self::Future> {
        let asking = match self.look_up(key, ask) {
            Ok(decision) => return Acquisition::Ready(Ok(decision.into())),
            Err(asking) => asking,
        };
        match self.limiter.acquire(key, ask) {
            Acquisition::Ready(result) => {
                if let Ok(outcome) = &result {
                    self.shared.remember(asking, &outcome.decision);
                }
                Acquisition::Ready(result)
            }
            Acquisition::Pending(future) => {
                Acquisition::Pending(DeniedCacheFuture { future, asking, shared: Arc::clone(&self.shared) })
            }
        }
    }

    fn peek(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision> {
        let asking = match self.look_up(key, ask) {
            Ok(decision) => return LimiterFuture::ready(Ok(decision)),
            Err(asking) => asking,
        };
        let shared = Arc::clone(&self.shared);
        self.limiter.peek(key, ask).map(move |decision| {
            shared.remember(asking, &decision);
            decision
        })
    }

    fn cached_denial(&self, key: &Key, ask: AcquireOptions) -> Option<Decision> {
        self.look_up(key, ask).ok().or_else(|| self.limiter.cached_denial(key, ask))
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.changing(key, |limiter| limiter.administer(key, operation))
    }
}

impl<L: Clone, C> Clone for DeniedCache<L, C> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<L: fmt::Debug, C> fmt::Debug for DeniedCache<L, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeniedCache").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

/// A decision on its way, which is remembered if it is a refusal.
#[pin_project]
#[must_use = "a decision that is not awaited may not be made"]
#[allow(missing_debug_implementations, reason = "named by the limiter only")]
pub struct DeniedCacheFuture<F, C> {
    #[pin]
    future: F,
    asking: Asking,
    shared: Arc<Shared<C>>,
}

impl<F: Future<Output = Result<Outcome, Error>>, C: Clock> Future for DeniedCacheFuture<F, C> {
    type Output = Result<Outcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = this.future.poll(cx);
        if let Poll::Ready(Ok(outcome)) = &polled {
            this.shared.remember(*this.asking, &outcome.decision);
        }
        polled
    }
}
