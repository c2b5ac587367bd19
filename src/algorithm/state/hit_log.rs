use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use super::{AtomicState, State};
use crate::decision::LazySnapshot;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// A log of hits, oldest first, each with its time and its weight. It is on the heap.
///
/// `HitLog::default()` is the zero state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HitLog {
    pub(crate) idle_at: u64,
    pub(crate) period: u64,
    hits: VecDeque<(u64, u64)>,
    /// The sum of the weights. A surcharge may be any number, so the sum may exceed 64 bits.
    total: u128,
}

impl HitLog {
    /// Creates a log from the time at which the key is idle, the time for which a hit counts (the quota's period at the
    /// last charge), and the hits: time and weight of each, oldest first. Times are in microseconds, since the epoch.
    #[must_use]
    pub fn new(idle_at: u64, period: u64, hits: VecDeque<(u64, u64)>) -> Self {
        let total = hits.iter().map(|&(_, weight)| u128::from(weight)).sum();
        Self { idle_at, period, hits, total }
    }

    /// Returns the hits: time in microseconds since the epoch, and weight.
    #[must_use]
    pub fn hits(&self) -> &VecDeque<(u64, u64)> {
        &self.hits
    }

    /// Returns the sum of the weights of all hits but the `expired` oldest ones.
    pub(crate) fn total_without(&self, expired: usize) -> u128 {
        if expired == 0 {
            return self.total;
        }
        self.total - self.hits.range(..expired).map(|&(_, weight)| u128::from(weight)).sum::<u128>()
    }
}

/// An edit of a [`HitLog`]: drops the oldest hits and adds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a user's own algorithm may keep a log")]
#[doc(hidden)]
pub struct HitLogEdit {
    /// How many of the oldest hits to drop.
    pub expired: usize,
    /// The time and the weight of the new hit. If the newest hit has the same time, or the log is full, the weight is
    /// added to the newest hit, which moves to this time.
    pub hit: (u64, u64),
    /// The maximum number of hits in the log.
    pub max_hits: usize,
    /// The time for which hits count from now on, in microseconds.
    pub period: u64,
    /// The time at which the key is idle after the edit, in microseconds since the epoch.
    pub idle_at: u64,
}

impl State for HitLog {
    type Next = HitLogEdit;
    type AtomicState = AtomicHitLog;

    fn apply(&mut self, next: HitLogEdit) {
        let HitLogEdit { expired, hit: (at, cost), max_hits, period, idle_at } = next;
        let expired = expired.min(self.hits.len());
        if expired > 0 {
            self.total = self.total_without(expired);
            self.hits.drain(..expired);
        }
        (self.period, self.idle_at) = (period, idle_at);
        let full = self.hits.len() >= max_hits;
        match self.hits.back_mut() {
            // Only surcharges exceed the maximum. They count with the newest hit, for longer.
            Some((time, weight)) if *time == at || full => {
                *time = at;
                // Not more than fits, so that `total` stays the sum of the weights.
                let added = cost.min(u64::MAX - *weight);
                *weight += added;
                self.total += u128::from(added);
            }
            _ => {
                if self.hits.len() == self.hits.capacity() {
                    // Doubles as a vector does, but never beyond `max_hits`: `max_heap_bytes` promises that.
                    let more = self.hits.len().max(4).min(max_hits.saturating_sub(self.hits.len()));
                    self.hits.reserve_exact(more);
                }
                self.hits.push_back((at, cost));
                self.total += u128::from(cost);
            }
        }
    }

    fn next_state(_next: &HitLogEdit) -> Option<&Self> {
        None
    }

    fn next_snapshot(_next: &HitLogEdit) -> Option<LazySnapshot> {
        None
    }

    fn idle_at(&self) -> u64 {
        self.idle_at
    }

    // A log is never sent as a whole.
    fn from_numbers(_numbers: &[u64]) -> Self {
        Self::default()
    }

    fn to_numbers(&self, _numbers: &mut Vec<u64>) {}

    fn from_stored(numbers: &[u64]) -> Option<Self> {
        let (&[idle_at, period], hits) = numbers.split_first_chunk()?;
        let (hits, []) = hits.as_chunks() else { return None };
        let is_sorted = hits.is_sorted_by_key(|&[time, _]| time);
        is_sorted.then(|| Self::new(idle_at, period, hits.iter().map(|&[time, weight]| (time, weight)).collect()))
    }

    fn to_stored(&self, numbers: &mut Vec<u64>) {
        numbers.extend([self.idle_at, self.period]);
        numbers.extend(self.hits.iter().flat_map(|&(time, weight)| [time, weight]));
    }
}

/// A log in the table.
///
/// Readers lock the mutex while they read, so a snapshot is never torn. The set's version shows whether the snapshot
/// belongs to the reader's key: other writers lock the set before the mutex. A decision locks the mutex when it reads,
/// and keeps the lock until it has charged. It tries to lock the set, and does not wait, so no deadlock is possible.
#[derive(Debug)]
#[allow(unreachable_pub, reason = "the hidden half of a sealed trait")]
pub struct AtomicHitLog {
    idle_at: AtomicU64,
    log: Mutex<HitLog>,
}

impl AtomicHitLog {
    /// Ignores poisoning: after a panic in a custom algorithm every log is still a possible state.
    fn lock(&self) -> MutexGuard<'_, HitLog> {
        self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A log that no thread can change.
#[allow(unreachable_pub, missing_debug_implementations, reason = "the hidden half of a sealed trait")]
pub enum HitLogSnapshot<'a> {
    Locked(MutexGuard<'a, HitLog>),
    Zero(HitLog),
}

impl Deref for HitLogSnapshot<'_> {
    type Target = HitLog;

    fn deref(&self) -> &HitLog {
        match self {
            Self::Locked(log) => log,
            Self::Zero(log) => log,
        }
    }
}

impl DerefMut for HitLogSnapshot<'_> {
    fn deref_mut(&mut self) -> &mut HitLog {
        match self {
            Self::Locked(log) => log,
            Self::Zero(log) => log,
        }
    }
}

impl AtomicState for AtomicHitLog {
    type State = HitLog;
    type Snapshot<'a> = HitLogSnapshot<'a>;
    type Edit<'a> = HitLogGuard<'a>;

    fn new(_words: usize) -> Self {
        Self { idle_at: AtomicU64::new(0), log: Mutex::new(HitLog::default()) }
    }

    fn empty<'a>() -> HitLogSnapshot<'a>
    where
        Self: 'a,
    {
        HitLogSnapshot::Zero(HitLog::default())
    }

    fn read<'a>(&'a self, snapshot: &mut HitLogSnapshot<'a>) {
        *snapshot = HitLogSnapshot::Locked(self.lock());
    }

    fn read_zero<'a>(&'a self, snapshot: &mut HitLogSnapshot<'a>) {
        *snapshot = Self::empty();
    }

    fn edit(&self) -> HitLogGuard<'_> {
        HitLogGuard { idle_at: &self.idle_at, log: self.lock() }
    }

    fn apply<'a, R>(
        &'a self,
        present: &mut HitLogSnapshot<'a>,
        next: HitLogEdit,
        read: impl FnOnce(&HitLog) -> R,
    ) -> R {
        if matches!(present, HitLogSnapshot::Zero(_)) {
            // An absent key: nothing was read from this slot.
            *present = HitLogSnapshot::Locked(self.lock());
        }
        present.apply(next);
        self.idle_at.store(present.idle_at, Ordering::Release);
        read(present)
    }

    fn clear(&self) {
        self.idle_at.store(0, Ordering::Release);
        // Keeps the allocation for the next key of the slot. `max_heap_bytes` bounds it.
        let mut log = self.lock();
        log.hits.clear();
        (log.idle_at, log.period, log.total) = (0, 0, 0);
    }

    fn copy_from(&self, other: &Self) {
        // One mutex after the other: a reader of one log never waits for the other one.
        let moved = std::mem::take(&mut *other.lock());
        self.idle_at.store(moved.idle_at, Ordering::Release);
        *self.lock() = moved;
    }

    fn idle_at(&self) -> u64 {
        self.idle_at.load(Ordering::Acquire)
    }

    fn heap_bytes(&self) -> usize {
        self.lock().hits.capacity() * size_of::<(u64, u64)>()
    }
}

#[allow(unreachable_pub, missing_debug_implementations, reason = "the hidden half of a sealed trait")]
pub struct HitLogGuard<'a> {
    idle_at: &'a AtomicU64,
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
        self.idle_at.store(self.log.idle_at, Ordering::Release);
    }
}
