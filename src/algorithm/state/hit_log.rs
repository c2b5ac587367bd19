use std::collections::VecDeque;

use super::State;
use crate::decision::LazySnapshot;

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

    fn empty() -> Self {
        Self::default()
    }

    /// Keeps the allocation for the next key. `max_heap_bytes` bounds it.
    fn clear(&mut self, _words: usize) {
        self.hits.clear();
        (self.idle_at, self.period, self.total) = (0, 0, 0);
    }

    fn heap_bytes(&self) -> usize {
        self.hits.capacity() * size_of::<(u64, u64)>()
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
