//! Queues of waiting requests: uncharged, in order of arrival, found by a keyed hash.
//!
//! A request that cannot start now joins the queue of the limit that denied it. The queue asks the limiter, and hands
//! each admitted start to the first waiting request that can use it: so a request that leaves takes no start with it. A
//! task drives each queue, so a future that is not polled delays no other request. A queue ends when nothing waits and
//! its last start has passed.
//!
//! | File | Content |
//! |---|---|
//! | `state.rs` | one queue: requests, starts, asks |
//! | `pace.rs`, `estimate.rs` | when the queue asks; how long a new request would wait |
//! | `ids.rs` | the queues of a key |
//! | `ticket.rs` | what a queue and a request's future share |
//! | `driver.rs` | the task that drives a queue |
//! | `waiting.rs` | the future of a waiting request, and the guard of a start |
//!
//! All state of a queue is under the mutex of its shard. A ticket has a mutex of its own, which is locked after that of
//! a shard, never before.

mod driver;
mod estimate;
mod ids;
mod pace;
mod state;
mod ticket;
mod waiting;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasher as _, Hash};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use foldhash::quality::RandomState;

use self::driver::Driver;
pub(crate) use self::ids::QueueIds;
use self::state::{Effects, Next, Queue, Waiter};
use self::ticket::Ticket;
pub(crate) use self::ticket::{Ask, Class, Reply, Start};
pub(crate) use self::waiting::{GrantedStart, Waited, Waiting};
use crate::decision::{AcquireOptions, Decision};
use crate::runtime::{self, Instant};

/// The queues of a layer, shared by its services.
pub(crate) struct Queues {
    shards: Box<[Mutex<Shard>]>,
    /// The number of queues. Zero in a layer in which no request waits: the only number that such a layer reads.
    active: AtomicUsize,
    /// The number of queues by the low bits of their ids, so that other keys take no lock.
    filter: Box<[AtomicU32]>,
    /// The number of waiting requests.
    waiting: AtomicUsize,
    /// Counts arrivals and drivers.
    sequence: AtomicU64,
    hashers: [RandomState; 2],
    newest_first: bool,
}

type Shard = HashMap<u64, Queue, foldhash::fast::RandomState>;

/// The bounds that a layer configures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) max_waiters: usize,
    pub(crate) max_waiters_per_key: usize,
}

/// A request that cannot start now.
pub(crate) struct Arrival<A> {
    pub(crate) ask: A,
    pub(crate) class: Class,
    pub(crate) options: AcquireOptions,
    /// The maximum wait, `None` if the limiter bounds the wait.
    pub(crate) max_wait: Option<Duration>,
    pub(crate) arrived_at: Instant,
}

/// What the limiter decided for a request that joins a queue.
pub(crate) enum Asked {
    /// The limiter was not asked, because others wait already.
    No,
    Denied(Decision),
    /// The limiter bounds the wait by itself and has scheduled a start.
    Scheduled(Start),
}

/// Why a request does not wait.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The denial for the client.
    pub(crate) denial: Decision,
    /// Whether requests wait already: the queue is full or too long.
    pub(crate) is_queue: bool,
}

impl Queues {
    const SHARDS: usize = 64;
    const FILTER: usize = 1024;

    pub(crate) fn new(newest_first: bool) -> Self {
        Self {
            shards: (0..Self::SHARDS).map(|_| Mutex::new(HashMap::default())).collect(),
            active: AtomicUsize::new(0),
            filter: (0..Self::FILTER).map(|_| AtomicU32::new(0)).collect(),
            waiting: AtomicUsize::new(0),
            sequence: AtomicU64::new(0),
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
        Class { key: [self.hashers[0].hash_one(key), self.hashers[1].hash_one(key)], cost, hold }
    }

    fn filter_of(&self, id: u64) -> &AtomicU32 {
        &self.filter[usize::try_from(id % Self::FILTER as u64).unwrap_or(0)]
    }

    fn lock(&self, id: u64) -> MutexGuard<'_, Shard> {
        // Not the bits of the filter, so that its slots spread over all shards.
        let shard = usize::try_from((id >> 32) % Self::SHARDS as u64).unwrap_or(0);
        self.shards[shard].lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Lets a request join the queue `id`, if it exists or the limiter has denied or scheduled the request.
    ///
    /// # Errors
    ///
    /// Returns the arrival if there is no such queue and the limiter was not asked; otherwise why the request does not
    /// wait.
    pub(crate) fn join<A: Ask + 'static>(
        self: &Arc<Self>,
        id: u64,
        arrival: Arrival<A>,
        asked: Asked,
        bounds: Bounds,
    ) -> Result<Waiting, JoinError<A>> {
        let mut effects = Effects::default();
        let joined = {
            let mut shard = self.lock(id);
            let created = match (shard.entry(id), &asked) {
                (Entry::Vacant(_), Asked::No) => return Err(JoinError::NoQueue(arrival)),
                (Entry::Occupied(queue), Asked::No) if queue.get().exceeds_limit(arrival.class.cost) => {
                    return Err(JoinError::NoQueue(arrival));
                }
                (Entry::Occupied(_), _) => None,
                (Entry::Vacant(_), _) => Some(Queue::new(id, self.newest_first)),
            };
            if created.as_ref().or_else(|| shard.get(&id)).is_none_or(|queue| queue.driver.is_none())
                && !runtime::has_timer()
            {
                return Err(JoinError::NoTimer);
            }
            let is_new = created.is_some();
            if let Some(queue) = created {
                shard.insert(id, queue);
            }
            let queue = shard.get_mut(&id).expect("the queue exists");
            let joined = self.join_queue(queue, arrival, asked, bounds, &mut effects);
            if joined.is_err() && is_new {
                shard.remove(&id);
            } else if is_new {
                self.active.fetch_add(1, Ordering::Relaxed);
                self.filter_of(id).fetch_add(1, Ordering::Relaxed);
            }
            joined
        };
        self.finish(effects);
        let ticket = joined.map_err(JoinError::Refused)?;
        self.ensure_driver(id);
        Ok(Waiting::new(Arc::clone(self), ticket))
    }

    /// Inserts a request into a queue, unless the queue is full or too long for it.
    fn join_queue<A: Ask + 'static>(
        &self,
        queue: &mut Queue,
        arrival: Arrival<A>,
        asked: Asked,
        bounds: Bounds,
        effects: &mut Effects,
    ) -> Result<Arc<Ticket>, Refused> {
        let Arrival { ask, class, options, max_wait, arrived_at } = arrival;
        let now = Instant::now();
        let has_waiters = queue.len() > 0;
        let deadline = max_wait.map(|max_wait| arrived_at.checked_add(max_wait).unwrap_or(now + FAR));
        let is_admitted = matches!(asked, Asked::Scheduled(_));
        match asked {
            Asked::No => {}
            Asked::Denied(decision) => queue.denied_before_joining(&decision, class, now),
            Asked::Scheduled(start) => queue.add_first_start(start, now),
        }
        if is_admitted {
            // The start is charged already, so no bound applies.
            self.waiting.fetch_add(1, Ordering::AcqRel);
        } else {
            let remaining = deadline.map(|deadline| deadline.saturating_duration_since(now));
            let of_limiter = ask.max_waiting().and_then(|waiting| queue.time_for(waiting));
            let longest = [remaining, of_limiter].into_iter().flatten().min();
            let wait = queue.wait_of_new(class, now);
            let excess = wait.zip(longest).and_then(|(wait, longest)| wait.checked_sub(longest));
            if let Some(excess) = excess.filter(|excess| !excess.is_zero()) {
                return Err(refused(queue, class, Some(excess), has_waiters, now));
            }
            if !self.take_place(queue, class, bounds, now, effects) {
                return Err(refused(queue, class, wait, has_waiters, now));
            }
        }
        let ticket: Arc<Ticket> = Arc::new(Ticket::new(queue.id(), self.next_number(), ask));
        queue.insert(Waiter::new(Arc::clone(&ticket), class, options, deadline));
        Ok(ticket)
    }

    /// Counts a new request, if the bounds allow it. With `newest_first` the oldest request gives its place.
    fn take_place(&self, queue: &mut Queue, class: Class, bounds: Bounds, now: Instant, effects: &mut Effects) -> bool {
        if queue.waiting_of(class.key) >= bounds.max_waiters_per_key
            && !(self.newest_first && queue.reject_oldest(Some(class.key), now, effects))
        {
            return false;
        }
        // A rejected request has freed its place, although `finish` counts it later.
        let freed = effects.ended;
        let counted = self.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiting| {
            (waiting < bounds.max_waiters.saturating_add(freed)).then_some(waiting + 1)
        });
        if counted.is_ok() {
            return true;
        }
        let has_place = self.newest_first && bounds.max_waiters > 0 && queue.reject_oldest(None, now, effects);
        if has_place {
            self.waiting.fetch_add(1, Ordering::AcqRel);
        }
        has_place
    }

    fn next_number(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Spawns the task of a queue that has none, or wakes it. Returns false if there is no runtime with a timer.
    fn ensure_driver(self: &Arc<Self>, id: u64) -> bool {
        let (token, waker) = {
            let mut shard = self.lock(id);
            let Some(queue) = shard.get_mut(&id) else { return true };
            if queue.driver.is_some() {
                (None, queue.driver_waker.take())
            } else {
                if !runtime::has_timer() {
                    return false;
                }
                let token = self.next_number();
                queue.driver = Some(token);
                (Some(token), None)
            }
        };
        if let Some(token) = token {
            runtime::spawn(Driver::new(Arc::downgrade(self), id, token));
        }
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// Lets the queue ask at once: this process has released capacity of its limit.
    pub(crate) fn released(&self, id: u64) {
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
    fn leave(&self, ticket: &Arc<Ticket>) {
        let reply = ticket.close();
        let mut effects = Effects::default();
        match reply.map(|reply| *reply) {
            Some(Reply::Start(start)) => self.take_back(ticket.queue(), start),
            Some(_) => {}
            None => {
                // A request that moves to another queue meanwhile is closed, so that the queue does not accept it.
                let id = ticket.queue();
                if let Some(queue) = self.lock(id).get_mut(&id) {
                    queue.leave(ticket.sequence, &mut effects);
                    effects.wakers.extend(queue.driver_waker.take());
                }
            }
        }
        self.finish(effects);
    }

    /// Passes a start on whose request has not used it.
    fn take_back(&self, id: u64, start: Start) {
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

    /// Changes a queue under its lock. Returns `None` if the queue has ended or has another driver.
    fn with_queue<T>(
        self: &Arc<Self>,
        id: u64,
        token: u64,
        f: impl FnOnce(&mut Queue, &mut Effects) -> T,
    ) -> Option<T> {
        let mut effects = Effects::default();
        let result = {
            let mut shard = self.lock(id);
            let queue = shard.get_mut(&id).filter(|queue| queue.driver == Some(token));
            queue.map(|queue| f(queue, &mut effects))
        };
        let moved = std::mem::take(&mut effects.moved);
        self.finish(effects);
        for (waiter, decision) in moved {
            self.move_to_queue(waiter, &decision);
        }
        result
    }

    /// Hands over due starts, and returns what the driver must do next.
    fn step(self: &Arc<Self>, id: u64, token: u64, now: Instant, waker: &Waker) -> Next {
        let next = self.with_queue(id, token, |queue, effects| {
            let next = queue.step(now, effects);
            match &mut queue.driver_waker {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
            next
        });
        let Some(Next::Finished) = next else { return next.unwrap_or(Next::Finished) };
        // A request may have joined since the step.
        let mut shard = self.lock(id);
        match shard.get_mut(&id).filter(|queue| queue.driver == Some(token)) {
            Some(queue) if !queue.is_finished() => Next::Sleep(Some(now)),
            Some(_) => {
                self.remove(&mut shard, id);
                Next::Finished
            }
            None => Next::Finished,
        }
    }

    /// Moves a request to the queue of the limit that denied it. The request keeps its order of arrival.
    fn move_to_queue(self: &Arc<Self>, waiter: Waiter, denied: &Decision) {
        let id = waiter.ticket.queue();
        {
            let mut shard = self.lock(id);
            if waiter.ticket.is_closed() {
                drop(shard);
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                return;
            }
            let queue = match shard.entry(id) {
                Entry::Occupied(queue) => queue.into_mut(),
                Entry::Vacant(vacant) => {
                    self.active.fetch_add(1, Ordering::Relaxed);
                    self.filter_of(id).fetch_add(1, Ordering::Relaxed);
                    vacant.insert(Queue::new(id, self.newest_first))
                }
            };
            queue.denied_before_joining(denied, waiter.class, Instant::now());
            queue.insert(waiter);
        }
        self.ensure_driver(id);
    }

    /// Prepares a queue whose driver was dropped for another one, which its next polled request spawns.
    fn driver_dropped(&self, id: u64, token: u64) {
        let mut effects = Effects::default();
        {
            let mut shard = self.lock(id);
            let Some(queue) = shard.get_mut(&id).filter(|queue| queue.driver == Some(token)) else { return };
            queue.driver = None;
            queue.driver_waker = None;
            queue.abort();
            queue.wake_waiters(&mut effects);
            if queue.len() == 0 {
                effects.unused = queue.take_starts();
                self.remove(&mut shard, id);
            }
        }
        self.finish(effects);
    }

    /// Removes a queue that has ended.
    fn remove(&self, shard: &mut Shard, id: u64) {
        if shard.remove(&id).is_some() {
            self.active.fetch_sub(1, Ordering::Relaxed);
            self.filter_of(id).fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Does what must not happen under a lock.
    fn finish(&self, effects: Effects) {
        let Effects { wakers, unused, moved, ended } = effects;
        if ended > 0 {
            self.waiting.fetch_sub(ended, Ordering::AcqRel);
        }
        drop(unused);
        debug_assert!(moved.is_empty(), "the driver moves requests");
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A time later than any deadline of a request.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// Why a request did not join a queue.
pub(crate) enum JoinError<A> {
    /// There is no queue, or the cost exceeds the limit: the limiter must be asked.
    NoQueue(Arrival<A>),
    Refused(Refused),
    /// The caller is in no tokio runtime with a timer.
    NoTimer,
}

/// Returns the denial of a request that does not join a queue.
fn refused(queue: &Queue, class: Class, retry_after: Option<Duration>, has_waiters: bool, now: Instant) -> Refused {
    let denial = queue.latest_denial(class.key, now).expect("a queue has a decision from its beginning");
    let retry_after = retry_after.map(|wait| wait.max(Duration::from_micros(1)));
    let denial = match retry_after {
        Some(wait) if has_waiters && !denial.exceeds_limit() => denial.into_denied(wait).with_estimate(true),
        Some(wait) if denial.supports_scheduling() => denial.into_denied(wait),
        _ => denial,
    };
    Refused { denial, is_queue: has_waiters }
}

impl Drop for Queues {
    /// Wakes the drivers, which then end.
    fn drop(&mut self) {
        for shard in &mut self.shards {
            let shard = shard.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
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
