//! The holds of requests in flight that end at the latest at a given time.
//!
//! Such a hold ends once: with its guard, or when a decision in the shard finds it due. The one that removes the deadline
//! ends the hold.
//!
//! The deadlines are in a queue in their order. Nearly all are added at its end, as the requests of a limit have one maximum
//! duration. A deadline that is removed stays in the queue until it is the first or last one, or half of them have ended.

use std::collections::VecDeque;

use crate::clock::Timestamp;
use crate::store::inner::latest_end;

/// The deadlines of a shard.
#[derive(Default)]
pub(super) struct Deadlines {
    queue: VecDeque<Entry>,
    /// The number of entries whose holds have ended.
    ended: usize,
    last_id: u64,
    /// The longest duration of a request, in microseconds.
    max_duration: u64,
}

/// A deadline, made unique by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline {
    pub(super) at: u64,
    pub(super) id: u64,
}

struct Entry {
    deadline: Deadline,
    fingerprint: u64,
    /// Zero if the hold has ended.
    amount: u64,
}

impl Deadlines {
    /// Adds a hold that ends after `duration` microseconds.
    pub(super) fn add(&mut self, now: Timestamp, duration: u64, fingerprint: u64, amount: u64) -> Deadline {
        self.last_id += 1;
        self.max_duration = self.max_duration.max(duration);
        let deadline = Deadline { at: now.as_micros().saturating_add(duration), id: self.last_id };
        let index = match self.queue.back() {
            Some(last) if last.deadline > deadline => self.queue.partition_point(|entry| entry.deadline < deadline),
            _ => self.queue.len(),
        };
        self.queue.insert(index, Entry { deadline, fingerprint, amount });
        deadline
    }

    /// Removes a deadline. Returns `false` if the hold was due, and has ended.
    pub(super) fn remove(&mut self, deadline: Deadline) -> bool {
        let found = self.queue.binary_search_by_key(&deadline, |entry| entry.deadline).ok();
        let Some(entry) = found.and_then(|index| self.queue.get_mut(index)).filter(|entry| entry.amount > 0) else {
            return false;
        };
        entry.amount = 0;
        self.ended += 1;
        self.drop_ended();
        true
    }

    /// Returns whether a deadline is due: see [`take_due`](Self::take_due).
    pub(super) fn has_due(&self, now: Timestamp) -> bool {
        let latest = || latest_end(now, self.max_duration).as_micros();
        self.queue.front().is_some_and(|first| first.deadline.at <= now.as_micros())
            || self.queue.back().is_some_and(|last| last.deadline.at > latest())
    }

    /// Removes a deadline that is due, and returns its key and the amount, which the caller must end.
    ///
    /// As in all algorithms, what was stored by a clock that was ahead by more than the longest time for which anything is
    /// stored does not count: see [`latest_end`].
    pub(super) fn take_due(&mut self, now: Timestamp) -> Option<(u64, u64)> {
        let latest = latest_end(now, self.max_duration).as_micros();
        let due = if self.queue.front()?.deadline.at <= now.as_micros() {
            self.queue.pop_front()
        } else if self.queue.back()?.deadline.at > latest {
            self.queue.pop_back()
        } else {
            None
        };
        let Entry { fingerprint, amount, .. } = due?;
        self.drop_ended();
        Some((fingerprint, amount))
    }

    /// Drops ended entries from both ends, and all of them if they are half of the queue.
    fn drop_ended(&mut self) {
        const MIN_ENDED: usize = 16;
        while self.queue.front().is_some_and(|entry| entry.amount == 0) {
            self.queue.pop_front();
            self.ended -= 1;
        }
        while self.queue.back().is_some_and(|entry| entry.amount == 0) {
            self.queue.pop_back();
            self.ended -= 1;
        }
        if self.ended > MIN_ENDED.max(self.queue.len() / 2) {
            self.queue.retain(|entry| entry.amount > 0);
            self.ended = 0;
        }
        if self.queue.is_empty() && self.queue.capacity() > 4 * MIN_ENDED {
            self.queue = VecDeque::new();
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.queue.capacity() * size_of::<Entry>()
    }
}
