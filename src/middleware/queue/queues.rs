//! The queues of a layer.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, Hash};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, Weak};
use std::task::Waker;

use foldhash::quality::RandomState;

use super::ids::QueueIds;
use super::join::Bounds;
use super::state::{Effects, Queue};
use super::ticket::{Class, Reply, Start, Ticket};
use crate::limiter::{CapacityListener, listen};
use crate::runtime::Instant;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, fence};

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
    hashers: [RandomState; 2],
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
            hashers: [RandomState::default(), RandomState::default()],
            newest_first,
        }
    }

    /// Whether any request waits.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) != 0
    }

    /// Whether `max_waiters` requests wait.
    pub(crate) fn is_full(&self, bounds: Bounds) -> bool {
        self.waiting.load(Ordering::Relaxed) >= bounds.max_waiters
    }

    /// Whether this queue may exist. An arrival that misses a new queue asks the limiter itself.
    pub(crate) fn may_exist(&self, id: u64) -> bool {
        self.filter_of(id).load(Ordering::Relaxed) != 0
    }

    pub(crate) fn hasher(&self) -> &RandomState {
        &self.hashers[0]
    }

    pub(crate) fn hash(&self, key: &(impl Hash + ?Sized)) -> u64 {
        self.hashers[0].hash_one(key)
    }

    pub(crate) fn class(&self, key: &(impl Hash + ?Sized), cost: u64, hold: bool) -> Class {
        let key = [self.hashers[0].hash_one(key), self.hashers[1].hash_one(key)];
        Class { key, request_cost: cost, cost, hold }
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

    /// Lets the queues ask at once, because this process has released capacity of their limits.
    ///
    /// The caller has released the capacity before the call. A queue that this call misses was created after it, and
    /// asks when the request has joined.
    pub(crate) fn wake(&self, ids: QueueIds) {
        fence(Ordering::SeqCst);
        if self.is_active() {
            ids.iter().for_each(|id| self.released(id));
        }
    }

    fn released(&self, id: u64) {
        if !self.may_exist(id) {
            return;
        }
        let waker = self.lock(id).get_mut(&id).and_then(|queue| {
            queue.released();
            queue.driver_waker.take()
        });
        waker.into_iter().for_each(Waker::wake);
    }

    /// Removes a request that leaves, and passes on a start that it has not used.
    pub(super) fn leave(&self, ticket: &Arc<Ticket>) {
        let reply = ticket.close();
        let mut effects = Effects::default();
        match reply.map(|reply| *reply) {
            Some(Reply::Start(start)) => self.take_back(ticket.queue(), start),
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
            // Either a thread that releases capacity sees the queue, or the queue's next ask sees the capacity.
            fence(Ordering::SeqCst);
            Queue::new(id, self.newest_first)
        })
    }

    /// Registers for operations on limiters, before the first request waits.
    fn listen(self: &Arc<Self>) {
        if !self.is_listening.swap(true, Ordering::Relaxed) {
            let listener: Weak<Self> = Arc::downgrade(self);
            listen(listener);
        }
    }

    /// Removes a queue that has ended.
    pub(super) fn remove(&self, shard: &mut Shard, id: u64) {
        if shard.remove(&id).is_some() {
            self.active.fetch_sub(1, Ordering::Relaxed);
            self.filter_of(id).fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Does what must not happen under a lock.
    pub(super) fn finish(&self, effects: Effects) {
        let Effects { wakers, unused, moved, ended } = effects;
        if ended > 0 {
            self.waiting.fetch_sub(ended, Ordering::AcqRel);
        }
        drop(unused);
        debug_assert!(moved.is_empty(), "the driver moves requests");
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl CapacityListener for Queues {
    /// Lets all queues ask at once.
    fn on_capacity(&self) {
        if !self.is_active() {
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let wakers: Vec<Waker> = shard
                .values_mut()
                .filter_map(|queue| {
                    queue.released();
                    queue.driver_waker.take()
                })
                .collect();
            drop(shard);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for Queues {
    /// Wakes the drivers, which then end.
    fn drop(&mut self) {
        for shard in &mut self.shards {
            let shard = shard.get_mut().unwrap_or_else(PoisonError::into_inner);
            shard.values_mut().filter_map(|queue| queue.driver_waker.take()).for_each(Waker::wake);
        }
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
