//! The queues of a layer.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, Hash};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, Weak};
use std::task::Waker;

use super::ids::hashers;
use super::join::Bounds;
use super::state::{Effects, Queue};
use super::ticket::{Class, Start, Ticket};
use crate::decision::{Costs, Remember};
use crate::limiter::{CapacityListener, listen, queue_created, queues_removed};
use crate::runtime::Instant;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};

/// The queues of a layer, shared by its services.
pub(crate) struct Queues {
    shards: Box<[Mutex<Shard>]>,
    /// The number of queues. Zero in a layer in which no request waits: the only number that such a layer reads.
    active: AtomicUsize,
    /// The number of queues by the low bits of their ids, so that other keys take no lock.
    filter: Box<[AtomicU32]>,
    /// The number of waiting requests.
    pub(super) waiting: AtomicUsize,
    /// Counts arrivals and drivers.
    sequence: AtomicU64,
    is_listening: AtomicBool,
    pub(super) newest_first: bool,
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
            sequence: AtomicU64::new(0),
            is_listening: AtomicBool::new(false),
            newest_first,
        }
    }

    /// Whether any request waits.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) != 0
    }

    /// Whether there is more than one queue.
    pub(super) fn has_other_queues(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 1
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
    pub(crate) fn class(key: &(impl Hash + ?Sized), costs: Costs, once: Option<Remember>, hold: bool) -> Class {
        let key = hashers().each_ref().map(|hasher| hasher.hash_one(key));
        let request_costs = hashers().each_ref().map(|hasher| hasher.hash_one((costs, once)));
        Class { key, request_costs, cost: costs.number().unwrap_or(1), hold }
    }

    fn filter_of(&self, id: u64) -> &AtomicU32 {
        &self.filter[usize::try_from(id % Self::FILTER as u64).unwrap_or(0)]
    }

    pub(super) fn lock(&self, id: u64) -> MutexGuard<'_, Shard> {
        // Not the bits of the filter, so that its slots spread over all shards.
        let shard = usize::try_from((id >> 32) % Self::SHARDS as u64).unwrap_or(0);
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn next_number(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Removes a request that leaves, and passes on a start that it has not used.
    pub(super) fn leave(&self, ticket: &Arc<Ticket>) {
        let reply = ticket.close();
        let mut effects = Effects::default();
        match reply.map(|reply| *reply) {
            // The start came while the request left: the next request uses it.
            Some(Ok(start)) => self.take_back(ticket.queue(), start),
            Some(_) => {}
            None => {
                // A request that moves to another queue meanwhile is closed, so that the queue does not accept it.
                let id = ticket.queue();
                if let Some(queue) = self.lock(id).get_mut(&id) {
                    queue.leave(ticket.sequence, Instant::now(), &mut effects);
                    effects.wakers.extend(queue.driver_waker.take());
                }
            }
        }
        self.finish(effects);
    }

    /// Passes a start on whose request has not used it.
    pub(super) fn take_back(&self, id: u64, start: Start) {
        let mut effects = Effects::default();
        match self.lock(id).get_mut(&id) {
            Some(queue) => {
                queue.take_back(start, Instant::now(), &mut effects);
                effects.wakers.extend(queue.driver_waker.take());
            }
            None => effects.unused.push(start),
        }
        self.finish(effects);
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

    /// Removes a queue that has ended.
    pub(super) fn remove(&self, shard: &mut Shard, id: u64) {
        if shard.remove(&id).is_some() {
            self.active.fetch_sub(1, Ordering::Relaxed);
            queues_removed(1);
            self.filter_of(id).fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Does what must not happen under a lock.
    pub(super) fn finish(&self, effects: Effects) {
        let Effects { wakers, unused, moved, ended } = effects;
        if ended > 0 {
            self.waiting.fetch_sub(ended, Ordering::AcqRel);
        }
        // Releases held costs, which wakes queues: that locks shards.
        drop(unused);
        debug_assert!(moved.is_empty(), "the driver moves requests");
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl CapacityListener for Queues {
    fn on_capacity(&self, ids: Option<&[u64]>, wakers: &mut Vec<(Option<Instant>, Waker)>) {
        if !self.is_active() {
            return;
        }
        let Some(ids) = ids else {
            for shard in &self.shards {
                let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                wakers.extend(shard.values_mut().filter_map(Queue::released));
            }
            return;
        };
        for id in ids.iter().filter(|id| self.may_exist(**id)) {
            wakers.extend(self.lock(*id).get_mut(id).and_then(Queue::released));
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

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues")
            .field("queues", &self.active.load(Ordering::Relaxed))
            .field("waiting", &self.waiting.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}
