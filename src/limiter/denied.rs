use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hash};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use pin_project::pin_project;

use super::reply::{Acquire, Reply};
use super::seam::{Limiter, Outcome, Receipt};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::decision::{Ask, Decision, Source, Verdict};
use crate::error::Error;

/// A limiter that remembers refusals: whom another limiter has refused, it refuses by itself until asking again is worth it.
///
/// In front of Redis, so that a flood from clients that are refused never reaches it. A refusal is remembered until its
/// `retry_after`, counted from when it was asked for, for the same cost and above, and for the same longest delay. It is
/// exact: an algorithm that refused would refuse again until then, and figures count down as they would. (To a higher cost
/// the time is told that is right for the one that was refused: that is when it is asked anew.)
///
/// Only what gives a key room earlier can make it wrong: `settle`, `set`, `block`, `forgive` and `reset` of that key through this
/// limiter are seen at once. Through another process, or on a key that shares a part with it, they are seen when the refusal is
/// over; [`max_age`](Self::max_age) bounds how late that can be.
///
/// It has room for a fixed number of keys ([`DEFAULT_ROOM`](Self::DEFAULT_ROOM)); a newcomer takes the place of one that is over sooner. Clones share it.
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
    slots: Box<[ArcSwapOption<Refusal>]>,
    /// Counts what may have given a key room, by slot: a refusal that was under way meanwhile is not remembered.
    changes: Box<[AtomicU64]>,
    hasher: foldhash::fast::RandomState,
    clock: C,
    max_age: Option<Duration>,
}

struct Refusal {
    hash: u64,
    ask: Ask,
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
    ask: Ask,
    asked_at: Timestamp,
    changes: u64,
}

impl<L> DeniedCache<L> {
    /// For how many keys there is room.
    pub const DEFAULT_ROOM: usize = 16_384;

    /// Remembers what `limiter` refuses.
    pub fn new(limiter: L) -> Self {
        Self::with_clock(limiter, Self::DEFAULT_ROOM, SystemClock::new())
    }

    /// With room for about so many keys.
    pub fn with_room(limiter: L, keys: usize) -> Self {
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
            hasher: foldhash::fast::RandomState::default(),
            clock,
            max_age: None,
        };
        Self { limiter, shared: Arc::new(shared) }
    }

    /// Remembers no refusal for longer than this: bounds for how long what another process gives back can go unseen.
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
    fn remembered(&self, place: Place, ask: Ask, now: Timestamp) -> Option<Decision> {
        let [first, second] = place.slots;
        self.remembered_in(first, place.hash, ask, now).or_else(|| self.remembered_in(second, place.hash, ask, now))
    }

    fn remembered_in(&self, slot: usize, hash: u64, ask: Ask, now: Timestamp) -> Option<Decision> {
        let refusal = self.slots[slot].load();
        let refusal = refusal.as_deref()?;
        let holds = refusal.hash == hash
            && refusal.until > now
            && ask.cost >= refusal.ask.cost
            && ask.max_delay == refusal.ask.max_delay
            && (refusal.ask.every_limit || !ask.every_limit)
            && (refusal.ask.every_refusal || refusal.ask.every_limit || !ask.every_refusal);
        holds.then(|| refusal.decision.later(now.since(refusal.asked_at)))
    }

    /// Remembers a refusal, unless the key may have been given room since it was asked for.
    fn remember(&self, asking: Asking, outcome: &Result<Outcome, Error>) {
        let Ok(Outcome { decision, .. }) = outcome else { return };
        let (Verdict::Denied { retry_after }, Source::Store) = (decision.verdict(), decision.source()) else { return };
        let span = self.max_age.map_or(retry_after, |most| most.min(retry_after));
        // Counted from before it was decided, it is over no later than it should be.
        let until = asking.asked_at.after(span);
        let Asking { place, ask, asked_at, .. } = asking;
        // Its figures are worked out now, and not each time that it is told.
        let decision = decision.later(Duration::ZERO);
        let refusal = Refusal { hash: place.hash, ask, asked_at, until, decision };
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
    fn changing<Key: Hash + ?Sized>(&self, key: &Key, change: impl FnOnce(&L) -> Reply<()>) -> Reply<()> {
        let place = self.shared.place(key);
        self.shared.changed(place);
        let shared = Arc::clone(&self.shared);
        change(&self.limiter).map(move |()| shared.changed(place))
    }
}

impl<Key, L, C> Limiter<Key> for DeniedCache<L, C>
where
    Key: Hash + ?Sized,
    L: Limiter<Key>,
    C: Clock,
{
    type Future = DeniedCacheFuture<L::Future, C>;

    fn acquire(&self, key: &Key, ask: Ask) -> Acquire<Self::Future> {
        let shared = &self.shared;
        let (place, now) = (shared.place(key), shared.clock.now());
        if let Some(decision) = shared.remembered(place, ask, now) {
            return Acquire::Ready(Ok(decision.into()));
        }
        let changes = shared.changes(place).load(Ordering::SeqCst);
        let asking = Asking { place, ask, asked_at: now, changes };
        match self.limiter.acquire(key, ask) {
            Acquire::Ready(result) => {
                shared.remember(asking, &result);
                Acquire::Ready(result)
            }
            Acquire::Pending(future) => {
                Acquire::Pending(DeniedCacheFuture { future, asking, shared: Arc::clone(shared) })
            }
        }
    }

    fn peek(&self, key: &Key, ask: Ask) -> Reply<Decision> {
        self.limiter.peek(key, ask)
    }

    fn settle(&self, key: &Key, receipt: Receipt, actual: u64) -> Reply<()> {
        self.changing(key, |limiter| limiter.settle(key, receipt, actual))
    }

    fn give_back(&self, key: &Key, receipt: Receipt) -> Reply<()> {
        self.changing(key, |limiter| limiter.give_back(key, receipt))
    }

    fn set(&self, limit: &str, key: &Key, used: u64) -> Reply<()> {
        self.changing(key, |limiter| limiter.set(limit, key, used))
    }

    fn block(&self, limit: &str, key: &Key, span: Duration) -> Reply<()> {
        self.changing(key, |limiter| limiter.block(limit, key, span))
    }

    fn forgive(&self, limit: &str, key: &Key) -> Reply<()> {
        self.changing(key, |limiter| limiter.forgive(limit, key))
    }

    fn reset(&self, key: &Key) -> Reply<()> {
        self.changing(key, |limiter| limiter.reset(key))
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
        if let Poll::Ready(result) = &polled {
            this.shared.remember(*this.asking, result);
        }
        polled
    }
}
