//! The waiting requests of one queue, in the order in which they are served.

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

/// The waiting requests of one queue.
///
/// A request has a *place*: a number that grows in the order of service. Each operation takes time in proportion to the
/// logarithm of the number of requests, unless it says otherwise.
pub(super) struct Waiters {
    newest_first: bool,
    by_place: BTreeMap<u64, Waiter>,
    lines: HashMap<Class, Line, foldhash::fast::RandomState>,
    /// The first open request of each line.
    first_open: BTreeSet<u64>,
    /// The cost of all open requests.
    open_cost: u128,
    /// Whether requests of several keys have waited.
    is_mixed: bool,
    /// The number of waiting requests of each key.
    per_key: HashMap<[u64; 2], usize, foldhash::fast::RandomState>,
    deadlines: BTreeSet<(Instant, u64)>,
}

/// The places of the requests of one class: as many *asked* ones as there are asks under way and starts, then *open* ones.
#[derive(Default)]
struct Line {
    asks_and_starts: usize,
    asked: BTreeSet<u64>,
    open: BTreeSet<u64>,
}

impl Line {
    /// Moves requests between the two parts until the first requests are the asked ones.
    fn sort(&mut self) {
        loop {
            let (first, last) = (self.open.first().copied(), self.asked.last().copied());
            match (first, last) {
                (Some(first), _) if self.asked.len() < self.asks_and_starts => {
                    self.open.remove(&first);
                    self.asked.insert(first);
                }
                (first, Some(last))
                    if self.asked.len() > self.asks_and_starts || first.is_some_and(|first| first < last) =>
                {
                    // One too many, or a later one than an open one: the next round moves the open one into the free
                    // place.
                    self.asked.remove(&last);
                    self.open.insert(last);
                }
                _ => return,
            }
        }
    }
}

impl Waiters {
    pub(super) fn new(newest_first: bool) -> Self {
        Self {
            newest_first,
            by_place: BTreeMap::new(),
            lines: HashMap::default(),
            first_open: BTreeSet::new(),
            open_cost: 0,
            is_mixed: false,
            per_key: HashMap::default(),
            deadlines: BTreeSet::new(),
        }
    }

    /// Returns the place of a request, by its number in the order of arrival.
    pub(super) fn place(&self, sequence: u64) -> u64 {
        if self.newest_first { u64::MAX - sequence } else { sequence }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.by_place.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.by_place.values()
    }

    pub(super) fn get(&self, place: u64) -> Option<&Waiter> {
        self.by_place.get(&place)
    }

    /// Returns the arrival of the request that has waited longest.
    pub(super) fn first_arrival(&self) -> Option<Instant> {
        let ends = [self.by_place.first_key_value(), self.by_place.last_key_value()];
        ends.into_iter().flatten().map(|(_, waiter)| waiter.arrived_at).min()
    }

    /// Returns the number of waiting requests of a key.
    pub(super) fn of_key(&self, key: [u64; 2]) -> usize {
        self.per_key.get(&key).copied().unwrap_or(0)
    }

    /// Whether requests of several keys have waited, which cannot use each other's starts.
    pub(super) fn is_mixed(&self) -> bool {
        self.is_mixed
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
        self.is_mixed |= self.per_key.len() > 1;
        self.deadlines.extend(waiter.deadline.map(|deadline| (deadline, place)));
        self.by_place.insert(place, waiter);
        self.change(class, |line| _ = line.open.insert(place));
    }

    /// Removes a request. The next one of its class takes over its ask or start.
    pub(super) fn remove(&mut self, place: u64) -> Option<Waiter> {
        let waiter = self.by_place.remove(&place)?;
        self.change(waiter.class, |line| _ = line.asked.remove(&place) || line.open.remove(&place));
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, place));
        }
        if let Entry::Occupied(mut count) = self.per_key.entry(waiter.class.key) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(waiter)
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Asks and starts
    // -----------------------------------------------------------------------------------------------------------------

    /// Returns the first open request.
    pub(super) fn next_open(&self) -> Option<u64> {
        self.first_open.first().copied()
    }

    /// Returns the first open request that matches, of those that are the first ones of their class.
    pub(super) fn next_open_that(&self, matches: impl Fn(&Waiter) -> bool) -> Option<u64> {
        self.first_open.iter().copied().find(|place| self.get(*place).is_some_and(&matches))
    }

    /// Whether an open request is before the request with this number.
    pub(super) fn has_before(&self, sequence: u64) -> bool {
        self.next_open().is_some_and(|next| next < self.place(sequence))
    }

    /// Whether one of the next requests can use a start of this class that comes after the deadline.
    pub(super) fn has_later_of_class(&self, place: u64, class: Class, deadline: Instant) -> bool {
        // A few of them: in other cases the start only must not come after the deadline.
        const LOOKED_AT: usize = 16;
        let Some(line) = self.lines.get(&class) else { return false };
        let next = line.open.range(place.saturating_add(1)..).take(LOOKED_AT);
        next.filter_map(|place| self.get(*place)).any(|next| next.deadline.is_none_or(|later| later > deadline))
    }

    /// Whether an ask under way or a start of this class has no request.
    pub(super) fn has_spare(&self, class: Class) -> bool {
        self.lines.get(&class).is_some_and(|line| line.asks_and_starts > line.asked.len())
    }

    /// An ask is sent, or a start is admitted, for the next request of this class.
    pub(super) fn add_ask(&mut self, class: Class) {
        self.change(class, |line| line.asks_and_starts += 1);
    }

    /// An ask was denied, or a start is used.
    pub(super) fn remove_ask(&mut self, class: Class) {
        self.change(class, |line| line.asks_and_starts = line.asks_and_starts.saturating_sub(1));
    }

    /// Drops all asks. Only these starts remain.
    pub(super) fn reset(&mut self, starts: impl Iterator<Item = Class>) {
        let classes: Vec<_> = self.lines.keys().copied().collect();
        for class in classes {
            self.change(class, |line| line.asks_and_starts = 0);
        }
        starts.for_each(|class| self.add_ask(class));
    }

    /// Removes the next request that can use a start of this class.
    pub(super) fn take_for(&mut self, class: Class) -> Option<Waiter> {
        let line = self.lines.get(&class)?;
        let place = line.asked.first().or_else(|| line.open.first()).copied()?;
        self.remove(place)
    }

    /// Changes a line, and what follows from it.
    fn change(&mut self, class: Class, change: impl FnOnce(&mut Line)) {
        let line = self.lines.entry(class).or_default();
        let cost_of = |line: &Line| u128::from(class.cost) * line.open.len() as u128;
        let (first, cost) = (line.open.first().copied(), cost_of(line));
        change(line);
        line.sort();
        self.open_cost = self.open_cost + cost_of(line) - cost;
        if line.open.first().copied() != first {
            first.map(|first| self.first_open.remove(&first));
            self.first_open.extend(line.open.first());
        }
        // Then no request is asked either: `sort` has moved it to the open ones.
        if line.asks_and_starts == 0 && line.open.is_empty() {
            self.lines.remove(&class);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::decision::Decision;
    use crate::error::Error;
    use crate::limiter::{Acquisition, BoxFuture, Outcome};
    use crate::middleware::queue::ids::QueueIds;
    use crate::middleware::queue::ticket::Ask;
    use crate::observe::Observers;
    use crate::random::Random;

    /// A request that is never asked for.
    struct Never(Observers);

    impl Ask for Never {
        fn acquire(&self, _: AcquireOptions) -> Acquisition<BoxFuture<Result<Outcome, Error>>> {
            unreachable!("no queue asks")
        }

        fn queues(&self) -> QueueIds {
            QueueIds::new(0)
        }

        fn queue_of(&self, _: &Decision) -> u64 {
            0
        }

        fn cost_in(&self, _: u64, options: AcquireOptions) -> u64 {
            options.cost
        }

        fn max_waiting(&self) -> Option<u64> {
            None
        }

        fn observers(&self) -> &Observers {
            &self.0
        }
    }

    fn class(key: u64) -> Class {
        Class { key: [key; 2], request_costs: [0; 2], cost: key + 1, hold: false }
    }

    fn waiter(sequence: u64, key: u64, now: Instant) -> Waiter {
        let ticket = Arc::new(Ticket::new(0, sequence, Never(Observers::default())));
        let deadline = Some(now + Duration::from_micros(sequence * 7919 % 1000));
        Waiter { ticket, class: class(key), options: AcquireOptions::default(), arrived_at: now, deadline, expected: 0 }
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
                    _ => {
                        let first = model.requests.iter().find(|(_, of)| **of == key).map(|(place, _)| *place);
                        let taken = waiters.take_for(class(key)).map(|waiter| waiters.place(waiter.ticket.sequence));
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
