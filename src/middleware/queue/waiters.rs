//! The waiting requests of one queue, in order of arrival, and what covers each of them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Index;
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
    /// Whether an ask under way or a start covers the request.
    is_covered: bool,
}

impl Waiter {
    pub(super) fn new(
        ticket: Arc<Ticket>,
        class: Class,
        options: AcquireOptions,
        arrived_at: Instant,
        deadline: Option<Instant>,
    ) -> Self {
        Self { ticket, class, options, arrived_at, deadline, is_covered: false }
    }
}

/// The waiting requests of one queue.
///
/// A *cover* is an ask under way or a start. Each cover belongs to one request of its class, or is spare.
pub(super) struct Waiters {
    newest_first: bool,
    by_arrival: VecDeque<Waiter>,
    /// The number of waiting requests of each key.
    per_key: HashMap<[u64; 2], usize, foldhash::fast::RandomState>,
    /// Whether requests of several keys have waited.
    is_mixed: bool,
    deadlines: BTreeSet<(Instant, u64)>,
    /// The cost of the requests that nothing covers.
    uncovered_cost: u128,
    /// The classes of the covers whose request has left.
    spare: Vec<Class>,
}

impl Waiters {
    pub(super) fn new(newest_first: bool) -> Self {
        Self {
            newest_first,
            by_arrival: VecDeque::new(),
            per_key: HashMap::default(),
            is_mixed: false,
            deadlines: BTreeSet::new(),
            uncovered_cost: 0,
            spare: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_arrival.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_arrival.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.by_arrival.iter()
    }

    /// Returns the number of waiting requests of a key.
    pub(super) fn of_key(&self, key: [u64; 2]) -> usize {
        self.per_key.get(&key).copied().unwrap_or(0)
    }

    /// Whether requests of several keys have waited, which cannot use each other's starts.
    pub(super) fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    pub(super) fn uncovered_cost(&self) -> u64 {
        u64::try_from(self.uncovered_cost).unwrap_or(u64::MAX)
    }

    pub(super) fn insert(&mut self, mut waiter: Waiter) {
        waiter.is_covered = self.take_spare(waiter.class);
        if !waiter.is_covered {
            self.uncovered_cost += u128::from(waiter.class.cost);
        }
        *self.per_key.entry(waiter.class.key).or_default() += 1;
        self.is_mixed |= self.per_key.len() > 1;
        self.deadlines.extend(waiter.deadline.map(|deadline| (deadline, waiter.ticket.sequence)));
        let position = self.by_arrival.partition_point(|other| other.ticket.sequence < waiter.ticket.sequence);
        self.by_arrival.insert(position, waiter);
    }

    /// Removes a request. Another request of its class takes over its cover.
    pub(super) fn remove(&mut self, position: usize) -> Option<Waiter> {
        let waiter = self.by_arrival.remove(position)?;
        let class = waiter.class;
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, waiter.ticket.sequence));
        }
        if let Entry::Occupied(mut count) = self.per_key.entry(class.key) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if waiter.is_covered {
            self.add_cover(class);
        } else {
            self.uncovered_cost -= u128::from(class.cost);
        }
        Some(waiter)
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Positions
    // -----------------------------------------------------------------------------------------------------------------

    pub(super) fn position_of(&self, sequence: u64) -> Option<usize> {
        self.by_arrival.binary_search_by_key(&sequence, |waiter| waiter.ticket.sequence).ok()
    }

    /// Returns the position of the oldest request of a key, or of all keys.
    pub(super) fn oldest(&self, key: Option<[u64; 2]>) -> Option<usize> {
        self.by_arrival.iter().position(|waiter| key.is_none_or(|key| waiter.class.key == key))
    }

    /// Returns the next request in the order of service that can use a start of this class.
    pub(super) fn next_of(&self, class: Class) -> Option<usize> {
        self.next_in_order(|waiter| waiter.class == class)
    }

    /// Returns the next request in the order of service that nothing covers.
    pub(super) fn next_uncovered(&self) -> Option<usize> {
        self.next_in_order(|waiter| !waiter.is_covered)
    }

    /// Whether a request that nothing covers is before the request with this number, in the order of service.
    pub(super) fn has_before(&self, sequence: u64) -> bool {
        self.next_uncovered().is_some_and(|position| {
            let next = self.by_arrival[position].ticket.sequence;
            if self.newest_first { next > sequence } else { next < sequence }
        })
    }

    /// Returns the next request in the order of service that nothing covers and that matches.
    pub(super) fn next_uncovered_that(&self, matches: impl Fn(&Waiter) -> bool) -> Option<usize> {
        self.next_in_order(|waiter| !waiter.is_covered && matches(waiter))
    }

    fn next_in_order(&self, matches: impl Fn(&Waiter) -> bool) -> Option<usize> {
        let waiters = &self.by_arrival;
        if self.newest_first { waiters.iter().rposition(matches) } else { waiters.iter().position(matches) }
    }

    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Returns a request whose deadline has passed.
    pub(super) fn next_expired(&self, now: Instant) -> Option<usize> {
        let (_, sequence) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        self.position_of(*sequence)
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Covers
    // -----------------------------------------------------------------------------------------------------------------

    /// Covers a request by an ask.
    pub(super) fn cover(&mut self, position: usize) {
        self.set_covered(position, true);
    }

    /// Adds a cover, for the next request of its class.
    pub(super) fn add_cover(&mut self, class: Class) {
        match self.next_in_order(|waiter| !waiter.is_covered && waiter.class == class) {
            Some(position) => self.set_covered(position, true),
            None => self.spare.push(class),
        }
    }

    /// Removes one cover of a class: an ask was denied, or a start is used.
    pub(super) fn remove_cover(&mut self, class: Class) {
        if self.take_spare(class) {
            return;
        }
        let is_covered = |waiter: &Waiter| waiter.is_covered && waiter.class == class;
        let waiters = &self.by_arrival;
        // The last one in the order of service.
        let last =
            if self.newest_first { waiters.iter().position(is_covered) } else { waiters.iter().rposition(is_covered) };
        if let Some(position) = last {
            self.set_covered(position, false);
        }
    }

    /// Removes all covers.
    pub(super) fn remove_covers(&mut self) {
        self.spare.clear();
        (0..self.len()).for_each(|position| self.set_covered(position, false));
    }

    /// Whether an ask under way or a start has no request.
    pub(super) fn has_spare(&self, class: Class) -> bool {
        self.spare.contains(&class)
    }

    fn take_spare(&mut self, class: Class) -> bool {
        let position = self.spare.iter().position(|spare| *spare == class);
        position.map(|position| self.spare.swap_remove(position)).is_some()
    }

    fn set_covered(&mut self, position: usize, is_covered: bool) {
        let waiter = &mut self.by_arrival[position];
        let cost = u128::from(waiter.class.cost);
        match (waiter.is_covered, is_covered) {
            (false, true) => self.uncovered_cost -= cost,
            (true, false) => self.uncovered_cost += cost,
            _ => {}
        }
        waiter.is_covered = is_covered;
    }
}

impl Index<usize> for Waiters {
    type Output = Waiter;

    fn index(&self, position: usize) -> &Waiter {
        &self.by_arrival[position]
    }
}
