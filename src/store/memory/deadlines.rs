//! The holds of requests in flight that end at the latest at a given time.
//!
//! Such a hold ends once: with its guard, or when a decision on the limit finds it overdue. The one that removes the
//! deadline ends the hold.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use crate::clock::Timestamp;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// The deadlines of a limit.
pub(super) struct Deadlines {
    /// At most the earliest deadline, so that most decisions take no lock.
    earliest: AtomicU64,
    holds: Mutex<Holds>,
}

#[derive(Default)]
struct Holds {
    by_deadline: BTreeMap<Deadline, OverdueHold>,
    last_id: u64,
}

/// A deadline, made unique by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline {
    at: u64,
    id: u64,
}

/// A hold to be ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverdueHold {
    pub(super) hash: u64,
    pub(super) held: u64,
}

impl Deadlines {
    /// Adds a hold that ends at this time.
    pub(super) fn add(&self, at: Timestamp, hash: u64, held: u64) -> Deadline {
        let mut holds = self.holds();
        holds.last_id += 1;
        let deadline = Deadline { at: at.as_micros(), id: holds.last_id };
        holds.by_deadline.insert(deadline, OverdueHold { hash, held });
        self.update_earliest(&holds);
        deadline
    }

    /// Removes a deadline. Returns `false` if the hold was overdue, and has ended.
    pub(super) fn remove(&self, deadline: Deadline) -> bool {
        let mut holds = self.holds();
        let removed = holds.by_deadline.remove(&deadline).is_some();
        self.update_earliest(&holds);
        removed
    }

    /// Removes an overdue hold, which the caller must end.
    pub(super) fn pop_overdue(&self, now: Timestamp) -> Option<OverdueHold> {
        if self.earliest.load(Ordering::Acquire) > now.as_micros() {
            return None;
        }
        let mut holds = self.holds();
        let overdue = holds.by_deadline.first_entry().filter(|first| first.key().at <= now.as_micros());
        let overdue = overdue.map(std::collections::btree_map::OccupiedEntry::remove);
        self.update_earliest(&holds);
        overdue
    }

    fn update_earliest(&self, holds: &Holds) {
        let earliest = holds.by_deadline.keys().next().map_or(u64::MAX, |first| first.at);
        self.earliest.store(earliest, Ordering::Release);
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { earliest: AtomicU64::new(u64::MAX), holds: Mutex::new(Holds::default()) }
    }
}
