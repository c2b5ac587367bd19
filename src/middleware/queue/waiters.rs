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
}

type ByArrival = BTreeMap<u64, Waiter>;

/// The waiting requests of one queue: *open*, or *asked* if there is an ask under way or a start for the request.
///
/// The number of asks and starts of a class is the number of its asked requests and of its spare asks and starts.
pub(super) struct Waiters {
    newest_first: bool,
    open: ByArrival,
    asked: ByArrival,
    /// The classes of asks and starts whose request has left. The next open request of the class takes one.
    spare: Vec<Class>,
    open_cost: u128,
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

    /// Whether requests of several keys wait, which cannot use each other's starts.
    pub(super) fn has_several_keys(&self) -> bool {
        self.per_key.len() > 1
    }

    /// Returns the cost of the requests for which the limiter is not asked yet.
    pub(super) fn open_cost(&self) -> u64 {
        u64::try_from(self.open_cost).unwrap_or(u64::MAX)
    }

    pub(super) fn insert(&mut self, waiter: Waiter) {
        *self.per_key.entry(waiter.class.key).or_default() += 1;
        self.deadlines.extend(waiter.deadline.map(|deadline| (deadline, waiter.ticket.sequence)));
        self.open_cost += u128::from(waiter.class.cost);
        self.open.insert(waiter.ticket.sequence, waiter);
    }

    /// Removes a request. Its ask or start is spare then.
    pub(super) fn remove(&mut self, sequence: u64) -> Option<Waiter> {
        let waiter = match self.asked.remove(&sequence) {
            Some(waiter) => {
                self.spare.push(waiter.class);
                waiter
            }
            None => {
                let waiter = self.open.remove(&sequence)?;
                self.open_cost -= u128::from(waiter.class.cost);
                waiter
            }
        };
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, sequence));
        }
        if let Entry::Occupied(mut count) = self.per_key.entry(waiter.class.key) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(waiter)
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

    /// Returns the next open request in the order of service. Requests before it take the spare asks and starts.
    pub(super) fn next_open(&mut self) -> Option<u64> {
        loop {
            let sequence = self.next_in(&self.open, |_| true)?;
            let class = self.open.get(&sequence)?.class;
            if !self.take_spare(class) {
                return Some(sequence);
            }
            self.set_asked(sequence);
        }
    }

    /// Returns the next open request in the order of service that matches.
    pub(super) fn next_open_that(&self, matches: impl Fn(&Waiter) -> bool) -> Option<u64> {
        self.next_in(&self.open, |waiter| matches(waiter) && !self.has_spare(waiter.class))
    }

    /// Whether an open request is before the request with this number, in the order of service.
    pub(super) fn has_before(&mut self, sequence: u64) -> bool {
        let newest_first = self.newest_first;
        self.next_open().is_some_and(|next| if newest_first { next > sequence } else { next < sequence })
    }

    /// The limiter is asked for an open request.
    pub(super) fn set_asked(&mut self, sequence: u64) {
        if let Some(waiter) = self.open.remove(&sequence) {
            self.open_cost -= u128::from(waiter.class.cost);
            self.asked.insert(sequence, waiter);
        }
    }

    /// Adds a start for which no request was asked.
    pub(super) fn add_spare(&mut self, class: Class) {
        self.spare.push(class);
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

    /// Removes the next request in the order of service that can use a start of this class.
    pub(super) fn take_for(&mut self, class: Class) -> Option<Waiter> {
        let of_class = |waiter: &Waiter| waiter.class == class;
        let next = self.next_in(&self.asked, of_class).or_else(|| self.next_in(&self.open, of_class))?;
        self.remove(next)
    }

    /// Forgets all asks and starts but those of these classes.
    pub(super) fn reset(&mut self, starts: impl Iterator<Item = Class>) {
        self.open_cost += self.asked.values().map(|waiter| u128::from(waiter.class.cost)).sum::<u128>();
        self.open.append(&mut self.asked);
        self.spare = starts.collect();
    }

    /// A spare ask or start of this class has ended, or a request takes it.
    pub(super) fn take_spare(&mut self, class: Class) -> bool {
        let position = self.spare.iter().position(|spare| *spare == class);
        position.map(|position| self.spare.swap_remove(position)).is_some()
    }

    fn next_in(&self, waiters: &ByArrival, matches: impl Fn(&Waiter) -> bool) -> Option<u64> {
        let matches = |waiter: &&Waiter| matches(waiter);
        let next = if self.newest_first { waiters.values().rfind(matches) } else { waiters.values().find(matches) };
        next.map(|waiter| waiter.ticket.sequence)
    }
}
