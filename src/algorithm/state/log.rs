use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use super::{AtomicState, State};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// A state of hits, each with its time and its weight, oldest first: the one state that lies on the heap.
///
/// `HitLog::default()` is the zero state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a user's own algorithm may keep a log")]
pub struct HitLog {
    /// The moment from which on the state is as good as new, in microseconds since the epoch.
    pub fresh_at: u64,
    /// For how long a hit counts, in microseconds: the period that the last charge was made under.
    pub period: u64,
    /// The hits: the time in microseconds since the epoch, and the weight.
    pub hits: VecDeque<(u64, u64)>,
}

/// An edit of a [`HitLog`]: drops the oldest hits and adds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a user's own algorithm may keep a log")]
pub struct HitLogEdit {
    /// How many of the oldest hits to drop.
    pub expired: usize,
    /// The time and the weight of the new hit. If the newest hit has the same time, or the log is full, the weight is added
    /// to the newest hit, which moves to this time.
    pub hit: (u64, u64),
    /// The maximum number of hits in the log.
    pub max_hits: usize,
    /// The new [`period`](HitLog::period).
    pub period: u64,
    /// The new [`fresh_at`](HitLog::fresh_at).
    pub fresh_at: u64,
}

impl State for HitLog {
    type Next = HitLogEdit;
    type AtomicState = AtomicHitLog;

    fn apply(&mut self, next: HitLogEdit) {
        let HitLogEdit { expired, hit: (at, cost), max_hits, period, fresh_at } = next;
        self.hits.drain(..expired.min(self.hits.len()));
        (self.period, self.fresh_at) = (period, fresh_at);
        let full = self.hits.len() >= max_hits;
        match self.hits.back_mut() {
            // Only surcharges exceed the maximum. They count with the newest hit, for longer.
            Some((time, weight)) if *time == at || full => {
                *time = at;
                *weight = weight.saturating_add(cost);
            }
            _ => {
                if self.hits.len() == self.hits.capacity() {
                    let more = self.hits.len().max(4).min(max_hits.saturating_sub(self.hits.len()));
                    self.hits.reserve_exact(more);
                }
                self.hits.push_back((at, cost));
            }
        }
    }

    fn preview(_next: &HitLogEdit) -> Option<&Self> {
        None
    }

    fn idle_at(&self) -> u64 {
        self.fresh_at
    }

    // A log is never sent as a whole.
    fn from_numbers(_numbers: &[u64]) -> Self {
        Self::default()
    }

    fn to_numbers(&self, _numbers: &mut Vec<u64>) {}
}

/// Readers hold the mutex only while they read. A writer also holds the set's lock, so the mutex alone keeps a reading
/// whole, and the set's version tells whose log it was.
#[derive(Debug)]
#[allow(unreachable_pub, reason = "the hidden half of a sealed trait")]
pub struct AtomicHitLog {
    fresh_at: AtomicU64,
    log: Mutex<HitLog>,
}

impl AtomicHitLog {
    /// A user's algorithm that panicked has left a log that is whole: it is used on.
    fn lock(&self) -> MutexGuard<'_, HitLog> {
        self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A log that nobody changes meanwhile.
#[allow(unreachable_pub, missing_debug_implementations, reason = "the hidden half of a sealed trait")]
pub enum HitLogSnapshot<'a> {
    Held(MutexGuard<'a, HitLog>),
    Zero(HitLog),
}

impl Deref for HitLogSnapshot<'_> {
    type Target = HitLog;

    fn deref(&self) -> &HitLog {
        match self {
            Self::Held(log) => log,
            Self::Zero(log) => log,
        }
    }
}

impl AtomicState for AtomicHitLog {
    type State = HitLog;
    type Snapshot<'a> = HitLogSnapshot<'a>;
    type Edit<'a> = HitLogGuard<'a>;

    fn new(_words: usize) -> Self {
        Self { fresh_at: AtomicU64::new(0), log: Mutex::new(HitLog::default()) }
    }

    fn snapshot(&self) -> HitLogSnapshot<'_> {
        HitLogSnapshot::Held(self.lock())
    }

    fn zero(&self) -> HitLogSnapshot<'_> {
        HitLogSnapshot::Zero(HitLog::default())
    }

    fn edit(&self) -> HitLogGuard<'_> {
        HitLogGuard { fresh_at: &self.fresh_at, log: self.lock() }
    }

    fn apply<R>(&self, next: HitLogEdit, read: impl FnOnce(&HitLog) -> R) -> R {
        let mut log = self.edit();
        log.apply(next);
        read(&log)
    }

    fn clear(&self) {
        self.fresh_at.store(0, Ordering::Release);
        // The room stays, for the next tenant: it is bounded like a log's.
        let mut log = self.lock();
        log.hits.clear();
        (log.fresh_at, log.period) = (0, 0);
    }

    fn copy_from(&self, other: &Self) {
        let moved = std::mem::take(&mut *other.lock());
        self.fresh_at.store(moved.fresh_at, Ordering::Release);
        *self.lock() = moved;
    }

    fn fresh_at(&self) -> u64 {
        self.fresh_at.load(Ordering::Acquire)
    }

    fn heap_bytes(&self) -> usize {
        self.lock().hits.capacity() * size_of::<(u64, u64)>()
    }
}

#[allow(unreachable_pub, missing_debug_implementations, reason = "the hidden half of a sealed trait")]
pub struct HitLogGuard<'a> {
    fresh_at: &'a AtomicU64,
    log: MutexGuard<'a, HitLog>,
}

impl Deref for HitLogGuard<'_> {
    type Target = HitLog;

    fn deref(&self) -> &HitLog {
        &self.log
    }
}

impl DerefMut for HitLogGuard<'_> {
    fn deref_mut(&mut self) -> &mut HitLog {
        &mut self.log
    }
}

impl Drop for HitLogGuard<'_> {
    fn drop(&mut self) {
        self.fresh_at.store(self.log.fresh_at, Ordering::Release);
    }
}
