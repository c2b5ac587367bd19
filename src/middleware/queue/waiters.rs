//! The waiting requests of one queue, in order of arrival.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::ticket::{Class, Ticket};
use crate::decision::AcquireOptions;
use crate::runtime::Instant;

/// A waiting request in its queue.
pub(super) struct Waiter {
    pub(super) ticket: Arc<Ticket>,
    pub(super) class: Class,
    pub(super) options: AcquireOptions,
    pub(super) arrived_at: Instant,
    /// `None` if the limiter bounds the wait.
    pub(super) deadline: Option<Instant>,
    /// The forecast of the wait in microseconds, zero if there was none.
    pub(super) expected: u32,
}

type ByArrival = BTreeMap<u64, Waiter>;

/// The waiting requests of one queue: *open*, or *asked* if there is an ask under way or a start for the request.
///
/// The number of asks and starts of a class is the number of its asked requests and of its spare asks and starts.
pub(super) struct Waiters {
    newest_first: bool,
    open: ByArrival,
    asked: ByArrival,
    /// The classes of asks and starts whose request has left. No request of such a class is open.
    spare: Vec<Class>,
    open_cost: u128,
    /// Whether requests of several keys have waited.
    is_mixed: bool,
    /// The number of waiting requests of each key.
    per_key: HashMap<[u64; 2], usize, foldhash::fast::RandomState>,
    deadlines: BTreeSet<(Instant, u64)>,
}

impl Waiters {
    pub(super) fn new(newest_first: bool) -> Self {
        Self {
            newest_first,
            open: BTreeMap::new(),
            asked: BTreeMap::new(),
            spare: Vec::new(),
            open_cost: 0,
            is_mixed: false,
            per_key: HashMap::default(),
            deadlines: BTreeSet::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.asked.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.asked.values().chain(self.open.values())
    }

    /// Returns the arrival of the request that has waited longest.
    pub(super) fn first_arrival(&self) -> Option<Instant> {
        [&self.asked, &self.open].into_iter().filter_map(|waiters| waiters.values().next()).map(|w| w.arrived_at).min()
    }

    /// Returns the number of waiting requests of a key.
    pub(super) fn of_key(&self, key: [u64; 2]) -> usize {
        self.per_key.get(&key).copied().unwrap_or(0)
    }

    /// Whether one of the next requests can use a start of this class that comes after the deadline.
    pub(super) fn has_later_of_class(&self, sequence: u64, class: Class, deadline: Instant) -> bool {
        // A few of them: in other cases the start only must not come after the deadline.
        const LOOKED_AT: usize = 16;
        let mut next = self.open.range(sequence.saturating_add(1)..).map(|(_, waiter)| waiter).take(LOOKED_AT);
        !self.newest_first
            && next.any(|waiter| waiter.class == class && waiter.deadline.is_none_or(|later| later > deadline))
    }

    /// Whether requests of several keys have waited, which cannot use each other's starts.
    pub(super) fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// Returns the cost of the requests for which the limiter is not asked yet.
    pub(super) fn open_cost(&self) -> u64 {
        u64::try_from(self.open_cost).unwrap_or(u64::MAX)
    }

    pub(super) fn insert(&mut self, waiter: Waiter) {
        let (sequence, class) = (waiter.ticket.sequence, waiter.class);
        *self.per_key.entry(class.key).or_default() += 1;
        self.is_mixed |= self.per_key.len() > 1;
        self.deadlines.extend(waiter.deadline.map(|deadline| (deadline, sequence)));
        self.open_cost += u128::from(class.cost);
        self.open.insert(sequence, waiter);
        if self.take_spare(class) {
            self.set_asked(sequence);
        }
    }

    /// Removes a request. Another request of its class takes over its ask or start.
    pub(super) fn remove(&mut self, sequence: u64) -> Option<Waiter> {
        let (waiter, was_asked) = self.take(sequence)?;
        if was_asked {
            self.add_spare(waiter.class);
        }
        Some(waiter)
    }

    fn take(&mut self, sequence: u64) -> Option<(Waiter, bool)> {
        let asked = self.asked.remove(&sequence);
        let was_asked = asked.is_some();
        let waiter = asked.or_else(|| self.open.remove(&sequence))?;
        if !was_asked {
            self.open_cost -= u128::from(waiter.class.cost);
        }
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, sequence));
        }
        if let Entry::Occupied(mut count) = self.per_key.entry(waiter.class.key) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some((waiter, was_asked))
    }

    pub(super) fn get(&self, sequence: u64) -> Option<&Waiter> {
        self.open.get(&sequence).or_else(|| self.asked.get(&sequence))
    }

    /// Returns the oldest request of a key, or of all keys.
    pub(super) fn oldest(&self, key: Option<[u64; 2]>) -> Option<u64> {
        let of_key = |waiter: &&Waiter| key.is_none_or(|key| waiter.class.key == key);
        let oldest = |waiters: &ByArrival| waiters.values().find(of_key).map(|waiter| waiter.ticket.sequence);
        [oldest(&self.asked), oldest(&self.open)].into_iter().flatten().min()
    }

    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Returns a request whose deadline has passed.
    pub(super) fn next_expired(&self, now: Instant) -> Option<u64> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, sequence)| *sequence)
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Asks and starts
    // -----------------------------------------------------------------------------------------------------------------

    /// Returns the next open request in the order of service.
    pub(super) fn next_open(&self) -> Option<u64> {
        self.next_open_that(|_| true)
    }

    /// Returns the next open request in the order of service that matches.
    pub(super) fn next_open_that(&self, matches: impl Fn(&Waiter) -> bool) -> Option<u64> {
        self.next_in(&self.open, matches)
    }

    /// Whether an open request is before the request with this number, in the order of service.
    pub(super) fn has_before(&self, sequence: u64) -> bool {
        self.next_open().is_some_and(|next| if self.newest_first { next > sequence } else { next < sequence })
    }

    /// The limiter is asked for an open request.
    pub(super) fn set_asked(&mut self, sequence: u64) {
        if let Some(waiter) = self.open.remove(&sequence) {
            self.open_cost -= u128::from(waiter.class.cost);
            self.asked.insert(sequence, waiter);
        }
    }

    /// Adds an ask or a start without a request. The next open request of its class takes it.
    pub(super) fn add_spare(&mut self, class: Class) {
        let next = if self.of_key(class.key) > 0 { self.next_open_that(|waiter| waiter.class == class) } else { None };
        match next {
            Some(next) => self.set_asked(next),
            None => self.spare.push(class),
        }
    }

    /// Whether an ask under way or a start has no request.
    pub(super) fn has_spare(&self, class: Class) -> bool {
        self.spare.contains(&class)
    }

    /// An ask of this class was denied: the last asked request of the class is open again.
    pub(super) fn withdraw(&mut self, class: Class) {
        if self.take_spare(class) {
            return;
        }
        let of_class = |waiter: &&Waiter| waiter.class == class;
        let asked = self.asked.values();
        let last = if self.newest_first { asked.clone().find(of_class) } else { asked.clone().rfind(of_class) };
        if let Some(waiter) = last.map(|waiter| waiter.ticket.sequence).and_then(|last| self.asked.remove(&last)) {
            self.open_cost += u128::from(class.cost);
            self.open.insert(waiter.ticket.sequence, waiter);
        }
    }

    /// Removes the next request in the order of service that can use a start of this class. With `is_known` the start is
    /// one of those that the asked requests and the spare ones are counted by, and is no longer.
    pub(super) fn take_for(&mut self, class: Class, is_known: bool) -> Option<Waiter> {
        let of_class = |waiter: &Waiter| waiter.class == class;
        let next = self.next_in(&self.asked, of_class).or_else(|| self.next_in(&self.open, of_class));
        let taken = next.and_then(|next| self.take(next));
        let was_asked = taken.as_ref().is_some_and(|(_, was_asked)| *was_asked);
        match (is_known, was_asked) {
            (true, false) => _ = self.take_spare(class),
            (false, true) => self.add_spare(class),
            _ => {}
        }
        taken.map(|(waiter, _)| waiter)
    }

    /// Drops all asks. Only these starts remain.
    pub(super) fn reset(&mut self, starts: impl Iterator<Item = Class>) {
        self.open_cost += self.asked.values().map(|waiter| u128::from(waiter.class.cost)).sum::<u128>();
        self.open.append(&mut self.asked);
        self.spare.clear();
        starts.for_each(|class| self.add_spare(class));
    }

    fn take_spare(&mut self, class: Class) -> bool {
        let position = self.spare.iter().position(|spare| *spare == class);
        position.map(|position| self.spare.swap_remove(position)).is_some()
    }

    fn next_in(&self, waiters: &ByArrival, matches: impl Fn(&Waiter) -> bool) -> Option<u64> {
        let matches = |waiter: &&Waiter| matches(waiter);
        let next = if self.newest_first { waiters.values().rfind(matches) } else { waiters.values().find(matches) };
        next.map(|waiter| waiter.ticket.sequence)
    }
}
