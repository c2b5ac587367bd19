use std::collections::VecDeque;

use super::State;

/// A log of hits, oldest first, each with its time and its weight. It is on the heap.
///
/// `HitLog::default()` is the zero state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HitLog {
    pub(crate) idle_at: u64,
    pub(crate) kept: KeptFor,
    hits: VecDeque<(u64, u64)>,
    /// The sum of the weights. A surcharge may be any number, so the sum may exceed 64 bits.
    total: u128,
}

impl HitLog {
    /// Creates a log from the time at which the key is idle, the time for which a hit counts (the quota's period at the
    /// last charge), and the hits: time and weight of each, oldest first. Times are in microseconds, since the epoch.
    pub fn new(idle_at: u64, period: u64, hits: VecDeque<(u64, u64)>) -> Self {
        let kept = KeptFor::default().charged(Reach { period, limit: hits.len() as u64 }, 0);
        Self::with_kept(idle_at, kept, hits)
    }

    pub(crate) fn with_kept(idle_at: u64, kept: KeptFor, hits: VecDeque<(u64, u64)>) -> Self {
        let total = hits.iter().map(|&(_, weight)| u128::from(weight)).sum();
        Self { idle_at, kept, hits, total }
    }

    /// Returns the hits: time in microseconds since the epoch, and weight.
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

/// What a log must keep: hits of so long a time, and the newest ones up to such a sum of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) period: u64,
    pub(crate) limit: u64,
}

impl Reach {
    fn max(self, other: Self) -> Self {
        Self { period: self.period.max(other.period), limit: self.limit.max(other.limit) }
    }
}

/// The longest period and the largest limit of the charges that still count, in two generations of charges.
///
/// A generation ends when no charge of the generation before counts any more. So each charge is in one of the two
/// generations for as long as it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptFor {
    pub(crate) present: Reach,
    pub(crate) previous: Reach,
    /// The time from which a charge begins a generation.
    pub(crate) until: u64,
}

impl KeptFor {
    /// Returns what the log must keep.
    pub(crate) fn reach(&self) -> Reach {
        self.present.max(self.previous)
    }

    /// Returns the value after a charge by a reader with this reach.
    pub(crate) fn charged(self, reader: Reach, at: u64) -> Self {
        if at < self.until {
            return Self { present: self.present.max(reader), ..self };
        }
        Self { present: reader, previous: self.present, until: at.saturating_add(self.present.period) }
    }
}

/// An edit of a [`HitLog`]: drops the oldest hits and adds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct HitLogEdit {
    /// How many of the oldest hits to drop.
    pub(crate) expired: usize,
    /// The time and the weight of the new hit. If the newest hit has the same time, the weight is added to that hit. If the
    /// log is full, the weight of the oldest hit is added to the hit after it.
    pub(crate) hit: (u64, u64),
    /// What the log must keep from now on. The limit is also the maximum number of hits.
    pub(crate) kept: KeptFor,
    /// The time at which the key is idle after the edit, in microseconds since the epoch.
    pub(crate) idle_at: u64,
}

impl HitLogEdit {
    /// Creates an edit that keeps hits for `period`, and at most `max_hits` of them: for an algorithm of your own.
    pub fn new(expired: usize, hit: (u64, u64), max_hits: u64, period: u64, idle_at: u64) -> Self {
        let kept = KeptFor::default().charged(Reach { period, limit: max_hits }, 0);
        Self { expired, hit, kept, idle_at }
    }
}

impl State for HitLog {
    type Next = HitLogEdit;

    fn apply(&mut self, next: HitLogEdit) {
        let HitLogEdit { expired, hit: (at, mut cost), kept, idle_at } = next;
        let max_hits = usize::try_from(kept.reach().limit).unwrap_or(usize::MAX);
        let expired = expired.min(self.hits.len());
        if expired > 0 {
            self.total = self.total_without(expired);
            self.hits.drain(..expired);
        }
        (self.kept, self.idle_at) = (kept, idle_at);
        match self.hits.back_mut() {
            Some((time, weight)) if *time == at => {
                // Not more than fits, so that `total` stays the sum of the weights.
                let added = cost.min(u64::MAX - *weight);
                *weight += added;
                self.total += u128::from(added);
            }
            _ => {
                // While the newer hits use the limit up, no reader sees whether the oldest one counts for longer.
                while self.hits.len() >= max_hits.max(1)
                    && let Some((_, oldest)) = self.hits.pop_front()
                {
                    self.total -= u128::from(oldest);
                    if let Some((_, weight)) = self.hits.front_mut() {
                        let added = oldest.min(u64::MAX - *weight);
                        *weight += added;
                        self.total += u128::from(added);
                    } else {
                        cost = cost.saturating_add(oldest);
                    }
                }
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
        (self.idle_at, self.kept, self.total) = (0, KeptFor::default(), 0);
    }

    fn heap_bytes(&self) -> usize {
        self.hits.capacity() * size_of::<(u64, u64)>()
    }

    fn next_state(_next: &HitLogEdit) -> Option<&Self> {
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
        let (&[idle_at, period, limit, previous_period, previous_limit, until], hits) = numbers.split_first_chunk()?;
        let (hits, []) = hits.as_chunks() else { return None };
        let is_sorted = hits.is_sorted_by_key(|&[time, _]| time);
        let previous = Reach { period: previous_period, limit: previous_limit };
        let kept = KeptFor { present: Reach { period, limit }, previous, until };
        is_sorted.then(|| Self::with_kept(idle_at, kept, hits.iter().map(|&[time, weight]| (time, weight)).collect()))
    }

    fn to_stored(&self, numbers: &mut Vec<u64>) {
        let KeptFor { present, previous, until } = self.kept;
        numbers.extend([self.idle_at, present.period, present.limit, previous.period, previous.limit, until]);
        numbers.extend(self.hits.iter().flat_map(|&(time, weight)| [time, weight]));
    }
}
