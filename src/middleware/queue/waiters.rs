//! The waiting requests of one queue, in the order in which they are served.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
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

/// The waiting requests of one queue.
///
/// A request has a *place*: a number that grows in the order of service. An ask or a start belongs to a class of requests.
/// The first requests of a class are *asked*, as many as it has asks and starts; the other requests are *open*. The steps of
/// an operation grow with the logarithm of the number of requests, or with the number of asked ones. If an asked request
/// leaves, they grow with the number of open ones.
#[derive(Default)]
pub(super) struct Waiters {
    pub(super) newest_first: bool,
    by_place: BTreeMap<u64, Waiter>,
    open: BTreeSet<u64>,
    asked: BTreeSet<u64>,
    /// The asks and starts of a class that no request can use yet.
    spare: Counts<Class>,
    /// The cost of all open requests.
    open_cost: u128,
    /// The number of waiting requests of each key.
    per_key: Counts<[u64; 2]>,
    deadlines: BTreeSet<(Instant, u64)>,
}

type Counts<K> = HashMap<K, usize, foldhash::fast::RandomState>;

/// Counts one less. Returns false if there is none.
fn take_one<K: Hash + Eq>(counts: &mut Counts<K>, key: K) -> bool {
    let Entry::Occupied(mut count) = counts.entry(key) else { return false };
    *count.get_mut() -= 1;
    if *count.get() == 0 {
        count.remove();
    }
    true
}

impl Waiters {
    pub(super) fn new(newest_first: bool) -> Self {
        Self { newest_first, ..Self::default() }
    }

    /// Returns the place of a request, by its number in the order of arrival.
    pub(super) fn place(&self, sequence: u64) -> u64 {
        if self.newest_first { u64::MAX - sequence } else { sequence }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    #[cfg(all(test, not(loom)))]
    fn len(&self) -> usize {
        self.by_place.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.by_place.values()
    }

    pub(super) fn get(&self, place: u64) -> Option<&Waiter> {
        self.by_place.get(&place)
    }

    /// Returns the first open request with its place, or the first request if none is open.
    pub(super) fn first(&self) -> Option<(u64, &Waiter)> {
        let first = self.by_place.first_key_value().map(|(place, _)| *place);
        let place = self.next_open().or(first)?;
        Some((place, self.get(place)?))
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

    /// Returns the last request of a key, or of all keys. Its time grows with the number of requests after that.
    pub(super) fn last(&self, key: Option<[u64; 2]>) -> Option<u64> {
        let of_key = |(_, waiter): &(&u64, &Waiter)| key.is_none_or(|key| waiter.class.key == key);
        self.by_place.iter().rev().find(of_key).map(|(place, _)| *place)
    }

    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Returns a request whose deadline is not after `now`.
    pub(super) fn next_expired(&self, now: Instant) -> Option<u64> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, place)| *place)
    }

    pub(super) fn insert(&mut self, waiter: Waiter) {
        let (place, class) = (self.place(waiter.ticket.sequence), waiter.class);
        *self.per_key.entry(class.key).or_default() += 1;
        self.deadlines.extend(waiter.deadline.map(|deadline| (deadline, place)));
        self.by_place.insert(place, waiter);
        self.add_open(place, class);
        // The request uses an ask or a start that no request could use, or takes the start of a later request.
        if take_one(&mut self.spare, class) {
            self.add_ask(class);
        } else if let Some(later) = self.asked.range(place..).rev().copied().find(|later| self.is_of(*later, class)) {
            self.asked.remove(&later);
            self.add_open(later, class);
            self.add_ask(class);
        }
    }

    /// Removes a request. The next one of its class takes over its ask or start.
    pub(super) fn remove(&mut self, place: u64) -> Option<Waiter> {
        let waiter = self.by_place.remove(&place)?;
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, place));
        }
        take_one(&mut self.per_key, waiter.class.key);
        if !self.remove_open(place, waiter.class) && self.asked.remove(&place) {
            self.add_ask(waiter.class);
        }
        Some(waiter)
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Asks and starts
    // -----------------------------------------------------------------------------------------------------------------

    /// Returns the first open request.
    pub(super) fn next_open(&self) -> Option<u64> {
        self.open.first().copied()
    }

    /// Returns the first open request that matches.
    pub(super) fn next_open_that(&self, matches: impl Fn(&Waiter) -> bool) -> Option<u64> {
        self.open.iter().copied().find(|place| self.get(*place).is_some_and(&matches))
    }

    /// Whether an open request is before the request with this number.
    pub(super) fn has_before(&self, sequence: u64) -> bool {
        self.next_open().is_some_and(|next| next < self.place(sequence))
    }

    /// Whether an ask under way or a start of this class has no request.
    pub(super) fn has_spare(&self, class: Class) -> bool {
        self.spare.contains_key(&class)
    }

    /// An ask is sent, or a start is admitted, for the next request of this class.
    pub(super) fn add_ask(&mut self, class: Class) {
        // Most requests that wait for one limit may have keys of their own.
        let has_key = self.per_key.contains_key(&class.key);
        let next = if has_key { self.next_open_that(|waiter| waiter.class == class) } else { None };
        match next {
            None => *self.spare.entry(class).or_default() += 1,
            Some(next) => {
                self.remove_open(next, class);
                self.asked.insert(next);
            }
        }
    }

    /// An ask was denied, or a start has no request.
    pub(super) fn remove_ask(&mut self, class: Class) {
        if take_one(&mut self.spare, class) {
            return;
        }
        let last = self.asked.iter().rev().copied().find(|place| self.is_of(*place, class));
        if let Some(last) = last {
            self.asked.remove(&last);
            self.add_open(last, class);
        }
    }

    /// Drops all asks. Only these starts remain.
    pub(super) fn reset(&mut self, starts: impl Iterator<Item = Class>) {
        self.spare.clear();
        for place in std::mem::take(&mut self.asked) {
            if let Some(class) = self.get(place).map(|waiter| waiter.class) {
                self.add_open(place, class);
            }
        }
        starts.for_each(|class| self.add_ask(class));
    }

    /// Removes the request that uses a start of this class, and the start.
    pub(super) fn take_asked(&mut self, class: Class) -> Option<Waiter> {
        match self.asked.iter().copied().find(|place| self.is_of(*place, class)) {
            None => {
                take_one(&mut self.spare, class);
                None
            }
            Some(first) => {
                self.asked.remove(&first);
                self.remove(first)
            }
        }
    }

    /// Removes the first request of this class, for a start that another request has not used.
    pub(super) fn take_first(&mut self, class: Class) -> Option<Waiter> {
        let asked = self.asked.iter().copied().find(|place| self.is_of(*place, class));
        self.remove(asked.or_else(|| self.next_open_that(|waiter| waiter.class == class))?)
    }

    fn is_of(&self, place: u64, class: Class) -> bool {
        self.get(place).is_some_and(|waiter| waiter.class == class)
    }

    fn add_open(&mut self, place: u64, class: Class) {
        self.open.insert(place);
        self.open_cost += u128::from(class.cost);
    }

    fn remove_open(&mut self, place: u64, class: Class) -> bool {
        let is_open = self.open.remove(&place);
        self.open_cost -= if is_open { class.cost.into() } else { 0 };
        is_open
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limiter::{LimitOfKey, LimiterFuture, Outcome};
    use crate::middleware::queue::ticket::Ask;
    use crate::observe::Observers;
    use crate::random::Random;

    /// A request that is never asked for.
    struct Never(Observers);

    impl Ask for Never {
        fn acquire(&self, _: AcquireOptions) -> LimiterFuture<Outcome> {
            unreachable!("no queue asks")
        }

        fn visit(&self, _: &mut dyn FnMut(&LimitOfKey<'_>, u64)) {}

        fn own_queue(&self) -> u64 {
            0
        }

        fn observers(&self) -> &Observers {
            &self.0
        }
    }

    fn class(key: u64) -> Class {
        Class { key: [key; 2], request_costs: [0; 2], cost: key + 1, hold: false }
    }

    fn waiter(sequence: u64, key: u64, now: Instant) -> Waiter {
        let ticket = Arc::new(Ticket::new(0, sequence, Arc::new(Never(Observers::default()))));
        let deadline = Some(now + Duration::from_micros(sequence * 7919 % 1000));
        Waiter { ticket, class: class(key), options: AcquireOptions::default(), arrived_at: now, deadline }
    }

    /// The requests in order of service with their keys, and the number of asks and starts of each key.
    #[derive(Default)]
    struct Model {
        requests: BTreeMap<u64, u64>,
        asks: [usize; 3],
    }

    impl Model {
        /// Returns the requests without an ask or a start, with their keys. The first requests of a key have them.
        fn open(&self) -> Vec<(u64, u64)> {
            let mut asks = self.asks;
            let mut is_open = |key: u64| {
                let asks = &mut asks[usize::try_from(key).unwrap()];
                *asks = asks.checked_sub(1)?;
                Some(())
            };
            self.requests.iter().map(|(&place, &key)| (place, key)).filter(|(_, key)| is_open(*key).is_none()).collect()
        }
    }

    #[test]
    fn waiters_equal_a_list_in_order_of_service() {
        let now = Instant::now();
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut waiters = Waiters::new(seed % 2 == 0);
            let mut model = Model::default();
            for _ in 0..100 {
                let key = random.below(3);
                let index = usize::try_from(key).unwrap();
                let any = model.requests.keys().nth(usize::try_from(random.below(20)).unwrap()).copied();
                match random.below(6) {
                    // Requests also come from other queues, in their order of arrival.
                    0 | 1 => {
                        let sequence = random.below(1000);
                        let place = waiters.place(sequence);
                        if let std::collections::btree_map::Entry::Vacant(free) = model.requests.entry(place) {
                            free.insert(key);
                            waiters.insert(waiter(sequence, key, now));
                        }
                    }
                    2 => {
                        if let Some(place) = any {
                            let key = model.requests.remove(&place).unwrap();
                            assert_eq!(waiters.remove(place).unwrap().class, class(key), "seed {seed}");
                        }
                    }
                    3 => {
                        waiters.add_ask(class(key));
                        model.asks[index] += 1;
                    }
                    4 if model.asks[index] > 0 => {
                        waiters.remove_ask(class(key));
                        model.asks[index] -= 1;
                    }
                    // A start is used: one that is counted, or one that another request has not used.
                    _ => {
                        let first = model.requests.iter().find(|(_, of)| **of == key).map(|(place, _)| *place);
                        let taken = match model.asks[index].checked_sub(1) {
                            Some(rest) => {
                                model.asks[index] = rest;
                                waiters.take_asked(class(key))
                            }
                            None => waiters.take_first(class(key)),
                        };
                        let taken = taken.map(|waiter| waiters.place(waiter.ticket.sequence));
                        assert_eq!(taken, first, "seed {seed}");
                        first.map(|first| model.requests.remove(&first));
                    }
                }
                let open = model.open();
                assert_eq!(waiters.next_open(), open.first().map(|(place, _)| *place), "seed {seed}");
                assert_eq!(waiters.open_cost(), open.iter().map(|(_, key)| key + 1).sum::<u64>(), "seed {seed}");
                let count = model.requests.values().filter(|of| **of == key).count();
                assert_eq!(waiters.of_key([key; 2]), count, "seed {seed}");
                assert_eq!(waiters.has_spare(class(key)), model.asks[index] > count, "seed {seed}");
                assert_eq!(waiters.len(), model.requests.len(), "seed {seed}");
                assert_eq!(waiters.deadlines.len(), model.requests.len(), "seed {seed}");
            }
        }
    }

    /// If a request took time in proportion to the others to leave, this would take minutes.
    #[test]
    fn hundred_thousand_requests_leave_in_any_order() {
        let now = Instant::now();
        for keys in [1, 100_000] {
            let mut waiters = Waiters::new(false);
            let count = 100_000;
            (0..count).for_each(|sequence| waiters.insert(waiter(sequence, sequence % keys, now)));
            (0..1000).for_each(|key| waiters.add_ask(class(key % keys)));
            for index in 0..count {
                // 7919 and the count have no common factor: each request once.
                assert!(waiters.remove(index * 7919 % count).is_some());
            }
            assert!(waiters.is_empty());
            assert_eq!(waiters.open_cost(), 0);
        }
    }
}
