//! The holds of requests in flight that end at the latest at a given time.
//!
//! Such a hold ends once: with its guard, or when a decision on the limit finds it due. The one that removes the deadline
//! ends the hold. Both happen under the lock of the key's set, so no decision sees one without the other.
//!
//! # Bounded work
//!
//! A decision ends all due holds of its own key, in a number of steps that grows with the logarithm of their number, and
//! those of up to [`MAX_OTHER_KEYS`](Deadlines::MAX_OTHER_KEYS) other keys. Each change frees the memory of up to
//! [`MAX_FREED`](Deadlines::MAX_FREED) requests. Later decisions do the rest.
//!
//! # Clocks that step back
//!
//! As in all algorithms, what was stored by a clock that was ahead by more than the longest time for which anything is
//! stored does not count: see [`latest_end`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use super::flights::{Ended, Flights, Node};
use crate::clock::{Clock, Timestamp};
use crate::store::inner::{
    latest_end,
    sync::{AtomicU64, Mutex, MutexGuard, Ordering},
    table::LockToken,
};

/// The deadlines of a limit.
pub(super) struct Deadlines {
    /// At most the earliest deadline, so that most decisions take no lock.
    earliest: AtomicU64,
    /// Before this time, the clock has stepped back by more than the longest duration since the last deadline was set.
    stale_before: AtomicU64,
    holds: Mutex<Holds>,
}

#[derive(Default)]
pub(super) struct Holds {
    keys: BTreeMap<u64, Flights>,
    /// The first and the last deadline of each key.
    ends: BTreeSet<(u64, u64)>,
    ended: Ended,
    /// The number of requests in memory, with those that have ended.
    allocated: usize,
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

impl Deadline {
    /// Returns the last possible deadline at this time.
    fn last_at(at: u64) -> Self {
        Self { at, id: u64::MAX }
    }

    /// Returns the deadline before this one. Numbers start at 1.
    pub(super) fn previous(self) -> Self {
        Self { id: self.id - 1, ..self }
    }
}

impl Deadlines {
    /// The maximum number of other keys whose due holds one decision ends.
    pub(super) const MAX_OTHER_KEYS: usize = 16;
    /// The maximum number of requests whose memory one change frees.
    pub(super) const MAX_FREED: usize = 8;

    /// Adds a hold that ends after `duration` microseconds.
    pub(super) fn add(&self, hash: u64, now: Timestamp, duration: u64, held: u64, _: &LockToken) -> Deadline {
        let mut holds = self.holds();
        holds.last_id += 1;
        holds.allocated += 1;
        holds.max_duration = holds.max_duration.max(duration);
        let at = now.as_micros().saturating_add(duration);
        let deadline = Deadline { at, id: holds.last_id };
        holds.change(hash, |flights| flights.insert(deadline, held));
        self.finish(&mut holds);
        deadline
    }

    /// Removes a deadline. Returns `false` if the hold was due, and has ended.
    pub(super) fn remove(&self, hash: u64, deadline: Deadline, _: &LockToken) -> bool {
        let mut holds = self.holds();
        let is_removed = holds.change(hash, |flights| flights.remove(deadline));
        holds.allocated -= usize::from(is_removed);
        self.finish(&mut holds);
        is_removed
    }

    /// Returns whether any hold is due.
    pub(super) fn any_due(&self, now: Timestamp) -> bool {
        self.earliest.load(Ordering::Acquire) <= now.as_micros()
            || self.stale_before.load(Ordering::Acquire) > now.as_micros()
    }

    /// Returns a key with a due hold.
    pub(super) fn next_due(&self, now: Timestamp) -> Option<u64> {
        if !self.any_due(now) {
            return None;
        }
        let holds = self.holds();
        let latest = latest_end(now, holds.max_duration).as_micros();
        let overdue = holds.ends.first().filter(|(at, _)| *at <= now.as_micros());
        overdue.or_else(|| holds.ends.last().filter(|(at, _)| *at > latest)).map(|(_, hash)| *hash)
    }

    /// Removes the due holds of a key. Returns their sum, which the caller must end.
    ///
    /// `now` can have been read long ago, if the thread was descheduled. Only if `clock` still returns such an early time
    /// has the clock stepped back.
    pub(super) fn take_due(&self, hash: u64, now: Timestamp, clock: &dyn Clock, _: &LockToken) -> u64 {
        let mut holds = self.holds();
        let is_stale = self.stale_before.load(Ordering::Acquire) > now.as_micros();
        let latest =
            if is_stale { latest_end(clock.now(), holds.max_duration) } else { Timestamp::from_micros(u64::MAX) };
        let latest = latest.as_micros();
        let due = holds.change(hash, |flights| {
            [flights.take_until(Deadline::last_at(now.as_micros())), flights.take_after(Deadline::last_at(latest))]
        });
        let sum = due.iter().fold(0, |sum: u64, flights| sum.saturating_add(flights.sum()));
        for flights in due {
            holds.ended.add(flights);
        }
        self.finish(&mut holds);
        sum
    }

    /// Returns about how many bytes the deadlines take.
    pub(super) fn bytes(&self) -> usize {
        let holds = self.holds();
        // A tree of the standard library fills its nodes to two thirds.
        let of_keys = holds.keys.len() * size_of::<(u64, Flights)>() + holds.ends.len() * size_of::<(u64, u64)>();
        holds.allocated * size_of::<Node>() + of_keys * 3 / 2
    }

    /// After each change.
    fn finish(&self, holds: &mut Holds) {
        holds.allocated -= holds.ended.free(Self::MAX_FREED);
        let earliest = holds.ends.first().map_or(u64::MAX, |first| first.0);
        // The latest deadline was set one duration before it at the earliest. Before that by one more duration,
        // `latest_end` says that the clock has stepped back.
        let stale = holds.ends.last().map_or(0, |last| last.0.saturating_sub(holds.max_duration.saturating_mul(2)));
        self.earliest.store(earliest, Ordering::Release);
        self.stale_before.store(stale, Ordering::Release);
    }

    pub(super) fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holds {
    /// Changes the requests of a key.
    fn change<R>(&mut self, hash: u64, change: impl FnOnce(&mut Flights) -> R) -> R {
        let mut flights = self.keys.remove(&hash).unwrap_or_default();
        for end in flights.ends().into_iter().flatten() {
            self.ends.remove(&(end.at, hash));
        }
        let result = change(&mut flights);
        for end in flights.ends().into_iter().flatten() {
            self.ends.insert((end.at, hash));
        }
        if !flights.is_empty() {
            self.keys.insert(hash, flights);
        }
        result
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { earliest: AtomicU64::new(u64::MAX), stale_before: AtomicU64::new(0), holds: Mutex::default() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::random::Random;

    const TOKEN: LockToken = LockToken::without_set();

    /// A request of the model: key, deadline, cost.
    type Flight = (u64, Deadline, u64);

    /// The law, against a list of requests: a request is due from its deadline on, and if the clock is before its start by
    /// more than the longest duration. The sums of due costs are exact, and every due key is found.
    #[test]
    fn deadlines_agree_with_a_list() {
        let (mut ended_once, mut stale, mut left) = (0_u64, 0, 0);
        for seed in 0..400 {
            let (deadlines, clock, mut random) = (Deadlines::default(), ManualClock::new(), Random(seed));
            let (mut flights, mut longest): (Vec<Flight>, u64) = (Vec::new(), 0);
            let durations: &[u64] = if seed % 2 == 0 { &[1000] } else { &[1, 1000, 50_000] };
            for _ in 0..300 {
                let (now, key) = (clock.now(), random.below(6));
                let is_stale = |at: u64, longest: u64| at > now.as_micros() + 2 * longest;
                let is_due = |at: u64, longest: u64| at <= now.as_micros() || is_stale(at, longest);
                match random.below(8) {
                    0..=2 => {
                        let duration = durations[usize::try_from(random.below(durations.len() as u64)).unwrap()];
                        longest = longest.max(duration);
                        let held = 1 + random.below(5);
                        flights.push((key, deadlines.add(key, now, duration, held, &TOKEN), held));
                    }
                    3 if !flights.is_empty() => {
                        let index = usize::try_from(random.below(flights.len() as u64)).unwrap();
                        let (key, deadline, _) = flights.swap_remove(index);
                        assert!(deadlines.remove(key, deadline, &TOKEN));
                        assert!(!deadlines.remove(key, deadline, &TOKEN), "each hold ends once");
                        left += 1;
                    }
                    4 | 5 => {
                        stale +=
                            flights.iter().filter(|flight| flight.0 == key && is_stale(flight.1.at, longest)).count();
                        let (due, rest): (Vec<Flight>, Vec<Flight>) =
                            flights.into_iter().partition(|flight| flight.0 == key && is_due(flight.1.at, longest));
                        let sum: u64 = due.iter().map(|flight| flight.2).sum();
                        assert_eq!(deadlines.take_due(key, now, &clock, &TOKEN), sum, "seed {seed}");
                        assert!(due.iter().all(|(key, deadline, _)| !deadlines.remove(*key, *deadline, &TOKEN)));
                        ended_once += due.len() as u64;
                        flights = rest;
                    }
                    6 => clock.advance(std::time::Duration::from_micros(random.below(1500))),
                    _ => {
                        let furthest = if random.below(4) == 0 { 1 << 40 } else { 500 };
                        let back = random.below(furthest);
                        clock.set(Timestamp::from_micros(now.as_micros() - back.min(now.as_micros())));
                    }
                }
                let now = clock.now();
                let is_due = |at: u64| at <= now.as_micros() || at > now.as_micros() + 2 * longest;
                let any = flights.iter().any(|flight| is_due(flight.1.at));
                let found = deadlines.next_due(now);
                assert_eq!(found.is_some(), any, "seed {seed}");
                assert!(found.is_none_or(|key| flights.iter().any(|flight| flight.0 == key && is_due(flight.1.at))));
                assert!(deadlines.holds().allocated >= flights.len());
            }
        }
        assert!(ended_once > 5_000 && stale > 500 && left > 5_000, "{ended_once}, {stale}, {left}");
    }

    /// 100 000 requests of one key end in one step, and their memory is freed by later calls.
    #[test]
    fn deadlines_of_one_key_end_together_and_are_freed_in_parts() {
        let (deadlines, clock) = (Deadlines::default(), ManualClock::new());
        let added: Vec<_> = (0..100_000).map(|_| deadlines.add(1, clock.now(), 10, 2, &TOKEN)).collect();
        assert!(deadlines.bytes() >= 100_000 * size_of::<Node>());
        clock.advance(std::time::Duration::from_micros(10));
        assert_eq!(deadlines.take_due(1, clock.now(), &clock, &TOKEN), 200_000);
        assert!(!deadlines.any_due(clock.now()));
        assert!(added.iter().all(|deadline| !deadlines.remove(1, *deadline, &TOKEN)));
        assert!(deadlines.bytes() < 1000, "{}", deadlines.bytes());
    }

    /// A thread that was descheduled after it has read the clock does not take later requests for those of a clock that
    /// was ahead.
    #[test]
    fn deadline_of_a_later_request_is_not_due_for_a_late_thread() {
        let (deadlines, clock) = (Deadlines::default(), ManualClock::new());
        let late = clock.now();
        clock.advance(std::time::Duration::from_micros(100));
        deadlines.add(1, clock.now(), 10, 1, &TOKEN);
        assert_eq!(deadlines.take_due(1, late, &clock, &TOKEN), 0);
        clock.set(late);
        assert_eq!(deadlines.take_due(1, late, &clock, &TOKEN), 1);
    }
}
