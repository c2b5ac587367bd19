use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use super::{AtomicState, State};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// A log of hits, oldest first, each with its time and its weight. It is on the heap.
///
/// `HitLog::default()` is the zero state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "custom algorithms construct it")]
pub struct HitLog {
    /// The time at which the key is idle, in microseconds since the epoch.
    pub idle_at: u64,
    /// The time for which a hit counts, in microseconds: the quota's period at the last charge.
    pub period: u64,
    /// The hits: time in microseconds since the epoch, and weight.
    pub hits: VecDeque<(u64, u64)>,
}

impl State for HitLog {
    type AtomicState = AtomicHitLog;

    // Replies from Redis never contain a log.
    fn from_numbers(_numbers: &[u64]) -> Self {
        Self::default()
    }

    fn to_numbers(&self, _numbers: &mut Vec<u64>) {}
}

/// A log in the table.
///
/// Readers lock the mutex while they read, so a snapshot is never torn. The set's version shows whether the snapshot
/// belongs to the reader's key: writers lock the set before the mutex.
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

impl AtomicState for AtomicHitLog {
    type State = HitLog;
    type Snapshot<'a> = HitLogSnapshot<'a>;
    type Edit<'a> = HitLogGuard<'a>;

    fn new(_words: usize) -> Self {
        Self { idle_at: AtomicU64::new(0), log: Mutex::new(HitLog::default()) }
    }

    fn snapshot(&self) -> HitLogSnapshot<'_> {
        HitLogSnapshot::Locked(self.lock())
    }

    fn zero(&self) -> HitLogSnapshot<'_> {
        HitLogSnapshot::Zero(HitLog::default())
    }

    fn edit(&self) -> HitLogGuard<'_> {
        HitLogGuard { idle_at: &self.idle_at, log: self.lock() }
    }

    fn clear(&self) {
        self.idle_at.store(0, Ordering::Release);
        // Keeps the allocation for the next key of the slot. `max_heap_bytes` bounds it.
        let mut log = self.lock();
        log.hits.clear();
        (log.idle_at, log.period) = (0, 0);
    }

    fn copy_from(&self, other: &Self) {
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
