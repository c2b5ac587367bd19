//! The queues of a layer.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher as _, Hash};
use std::sync::atomic::{AtomicBool, AtomicU64 as CounterOfProcess};
use std::sync::{Arc, PoisonError, Weak};
use std::task::Waker;

use super::asks::AskOrder;
use super::join::Bounds;
use super::state::{Effects, Queue};
use super::ticket::{Class, Start, Ticket};
use crate::decision::AcquireOptions;
use crate::limiter::{CapacityListener, Released, hashers, listen, queue_created, queues_removed};
use crate::runtime::Instant;
use crate::sync::{AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering};

/// The queues of a layer, shared by its services.
pub(crate) struct Queues {
    shards: Box<[Mutex<Shard>]>,
    /// The number of queues. Zero in a layer in which no request waits: the only number that such a layer reads.
    active: AtomicUsize,
    /// The number of queues by the low bits of their ids, so that other keys take no lock.
    filter: Box<[AtomicU32]>,
    /// The number of waiting requests.
    pub(super) waiting: AtomicUsize,
    /// The first request of each queue, by the limits whose releases can admit it: the limit, the units that the request
    /// needs, its place, and the queue. In shards, by the limit.
    first_requests: Box<[Mutex<BTreeSet<(u64, u64, u64, u64)>>]>,
    is_listening: AtomicBool,
    pub(crate) newest_first: bool,
}

pub(super) type Shard = HashMap<u64, Queue, foldhash::fast::RandomState>;

impl Queues {
    const SHARDS: usize = if cfg!(loom) { 2 } else { 64 };
    const FILTER: usize = if cfg!(loom) { 2 } else { 1024 };

    pub(crate) fn new(newest_first: bool) -> Self {
        Self {
            shards: (0..Self::SHARDS).map(|_| Mutex::new(HashMap::default())).collect(),
            active: AtomicUsize::new(0),
            filter: (0..Self::FILTER).map(|_| AtomicU32::new(0)).collect(),
            waiting: AtomicUsize::new(0),
            first_requests: (0..Self::SHARDS).map(|_| Mutex::default()).collect(),
            is_listening: AtomicBool::new(false),
            newest_first,
        }
    }

    /// Whether any request waits.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) != 0
    }

    /// Returns another queue of the limits on which the request costs something, in which an earlier request waits.
    ///
    /// Without this rule the queue of a limit that schedules starts would use up a limit that it shares with others: the
    /// limiter schedules none for a request with an idle limit, so this request would always come too late.
    pub(super) fn queue_with_earlier(&self, id: u64, order: &AskOrder) -> Option<u64> {
        if self.active.load(Ordering::Relaxed) < 2 || cfg!(queue_rule_off = "order") {
            return None;
        }
        let mut found = None;
        order.ticket.ask.visit(&mut |limit, other| {
            if found.is_none() && other != id && self.may_exist(other) && limit.cost_of(order.options) > 0 {
                // The lock on the own shard is released: with two locks, two drivers could wait for each other.
                let is_earlier = |queue: &Queue| queue.waiters.has_before(order.ticket.sequence);
                found = self.lock(other).get(&other).is_some_and(is_earlier).then_some(other);
            }
        });
        found
    }

    /// Whether `max_waiters` requests wait.
    pub(crate) fn is_full(&self, bounds: Bounds) -> bool {
        self.waiting.load(Ordering::Relaxed) >= bounds.max_waiters
    }

    /// Whether this queue exists. An arrival that misses a new queue asks the limiter itself.
    pub(crate) fn exists(&self, id: u64) -> bool {
        self.may_exist(id) && self.lock(id).contains_key(&id)
    }

    pub(super) fn may_exist(&self, id: u64) -> bool {
        self.filter_of(id).load(Ordering::Relaxed) != 0
    }

    /// The start of a request that is charged once is no start of another request.
    pub(crate) fn class(key: &(impl Hash + ?Sized), options: AcquireOptions) -> Class {
        let (costs, once) = (options.costs(), options.charged_once());
        let key = hashers().each_ref().map(|hasher| hasher.hash_one(key));
        let request_costs = hashers().each_ref().map(|hasher| hasher.hash_one((costs, once)));
        Class { key, request_costs, cost: costs.number().unwrap_or(1), hold: options.hold }
    }

    fn filter_of(&self, id: u64) -> &AtomicU32 {
        &self.filter[usize::try_from(id % Self::FILTER as u64).unwrap_or(0)]
    }

    pub(super) fn lock(&self, id: u64) -> MutexGuard<'_, Shard> {
        self.shards[Self::shard_of(id)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard_of(id: u64) -> usize {
        // Not the bits of the filter, so that its slots spread over all shards.
        usize::try_from((id >> 32) % Self::SHARDS as u64).unwrap_or(0)
    }

    fn first_requests(&self, limit: u64) -> MutexGuard<'_, BTreeSet<(u64, u64, u64, u64)>> {
        self.first_requests[Self::shard_of(limit)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next number of an arrival or a driver: arrivals in all layers have one order.
    pub(super) fn next_number() -> u64 {
        static NEXT: CounterOfProcess = CounterOfProcess::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Changes a queue, if it exists, and does afterwards what must not happen under its lock.
    pub(super) fn change<T>(
        self: &Arc<Self>,
        id: u64,
        change: impl FnOnce(&mut Queue, &mut Effects) -> T,
    ) -> Option<T> {
        let mut effects = Effects::default();
        let changed = {
            let mut shard = self.lock(id);
            let changed = shard.get_mut(&id).map(|queue| {
                let changed = change(queue, &mut effects);
                if queue.is_finished() {
                    effects.released.append(&mut queue.released);
                }
                changed
            });
            self.update(&mut shard, id);
            changed
        };
        self.finish(effects);
        changed
    }

    /// Indexes the first request of a queue that was changed, and removes a queue that has ended.
    pub(super) fn update(&self, shard: &mut Shard, id: u64) {
        let Some(queue) = shard.get_mut(&id) else { return };
        let first = queue.waiters.first();
        if queue.indexed.as_ref().map(|(place, _)| *place) != first.map(|(place, _)| place) {
            let indexed = first.map(|(place, waiter)| (place, waiter.ticket.ask.needs_in(id, waiter.options)));
            let before = std::mem::replace(&mut queue.indexed, indexed.clone());
            // First the new entries: a release that reads the index between both must find the queue.
            for (place, (limit, need)) in entries(indexed) {
                self.first_requests(limit).insert((limit, need, place, id));
            }
            for (place, (limit, need)) in entries(before) {
                self.first_requests(limit).remove(&(limit, need, place, id));
            }
        }
        if queue.is_finished() {
            shard.remove(&id);
            self.active.fetch_sub(1, Ordering::Relaxed);
            queues_removed(1);
            self.filter_of(id).fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Removes a request that leaves, and passes on a start that it has not used.
    pub(super) fn leave(self: &Arc<Self>, ticket: &Arc<Ticket>) {
        match ticket.close().map(|reply| *reply) {
            // The start came while the request left: the next request uses it.
            Some(Ok(start)) => self.take_back(ticket.queue(), start),
            Some(_) => {}
            // A request that moves to another queue meanwhile is closed, so that the queue does not accept it.
            None => {
                self.change(ticket.queue(), |queue, effects| {
                    queue.leave(ticket.sequence, Instant::now(), effects);
                    effects.wakers.extend(queue.wake_driver(Instant::now()));
                });
            }
        }
    }

    /// Passes a start on whose request has not used it.
    pub(super) fn take_back(self: &Arc<Self>, id: u64, start: Start) {
        // Without a queue, dropping the start releases its held cost: after the lock.
        let mut start = Some(start);
        self.change(id, |queue, effects| {
            start.take().into_iter().for_each(|start| queue.take_back(start, Instant::now(), effects));
            effects.wakers.extend(queue.wake_driver(Instant::now()));
        });
    }

    /// Returns the queue of this id, and creates it if there is none.
    pub(super) fn find_or_create<'a>(self: &Arc<Self>, shard: &'a mut Shard, id: u64) -> &'a mut Queue {
        shard.entry(id).or_insert_with(|| {
            self.active.fetch_add(1, Ordering::Relaxed);
            self.filter_of(id).fetch_add(1, Ordering::Relaxed);
            self.listen();
            queue_created();
            Queue::new(id, self.newest_first)
        })
    }

    /// Registers for operations on limiters, before the first request waits.
    fn listen(self: &Arc<Self>) {
        // Relaxed: `listen` locks the list, and the swap only selects one thread.
        if !self.is_listening.swap(true, Ordering::Relaxed) {
            let listener: Weak<Self> = Arc::downgrade(self);
            listen(listener);
        }
    }

    /// Does what must not happen under a lock.
    pub(super) fn finish(self: &Arc<Self>, effects: Effects) {
        let Effects { wakers, unused, moved, released, ended } = effects;
        if ended > 0 {
            self.waiting.fetch_sub(ended, Ordering::AcqRel);
        }
        // Releases held costs, which wakes queues: that locks shards.
        drop(unused);
        wakers.into_iter().for_each(Waker::wake);
        for moved in moved {
            self.move_to_queue(moved);
        }
        released.into_iter().for_each(Released::pass_on);
    }
}

/// The entries of a first request in the index.
fn entries(indexed: Option<(u64, Vec<(u64, u64)>)>) -> impl Iterator<Item = (u64, (u64, u64))> {
    indexed.into_iter().flat_map(|(place, needs)| needs.into_iter().map(move |need| (place, need)))
}

impl CapacityListener for Queues {
    fn first_for(&self, released: &Released) -> Option<(u64, u64)> {
        if !self.is_active() {
            return None;
        }
        let (limit, first_requests) = (released.limit, self.first_requests(released.limit));
        let (mut need, mut found) = (0, None);
        // One step for each number of units that a request needs.
        while let Some(entry) = first_requests.range((limit, need, released.after + 1, 0)..).next()
            && (entry.0, entry.1) < (limit, released.below)
        {
            if entry.2 > released.after {
                found = [found, Some((entry.2, entry.3))].into_iter().flatten().min();
            }
            need = if entry.1 > need { entry.1 } else { need + 1 };
        }
        found
    }

    fn ask(&self, queue: u64, released: Released) -> bool {
        let waker = {
            let mut shard = self.lock(queue);
            let Some(queue) = shard.get_mut(&queue).filter(|queue| !queue.is_stalled(Instant::now())) else {
                return false;
            };
            queue.released(Some(released))
        };
        waker.into_iter().for_each(Waker::wake);
        true
    }

    fn ask_all(&self) {
        for shard in &self.shards {
            let wakers: Vec<_> = {
                let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                shard.values_mut().filter_map(|queue| queue.released(None)).collect()
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for Queues {
    /// Wakes the drivers, which then end.
    fn drop(&mut self) {
        let mut queues = 0;
        for shard in &mut self.shards {
            let shard = shard.get_mut().unwrap_or_else(PoisonError::into_inner);
            queues += shard.len();
            shard.values_mut().filter_map(|queue| queue.driver_waker.take()).for_each(Waker::wake);
        }
        queues_removed(queues);
    }
}

impl_debug!(Queues |queues| {
    queues: queues.active.load(Ordering::Relaxed),
    waiting: queues.waiting.load(Ordering::Relaxed),
});
