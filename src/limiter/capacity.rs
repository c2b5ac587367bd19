//! Lets the waiting requests of this process ask again when units are released.
//!
//! Whatever frees units of a limit names the limit and the sub-key: the stores when a hold ends or expires, a layer when
//! it settles for a limiter of a user's own, and operations such as `reset`. All layers of the process are notified,
//! because several layers can share a limiter.
//!
//! The oldest request that the limit can deny is asked for first. After its ask the release is passed on: to the next
//! request if the ask was admitted, or if another limit denied it; to requests that need fewer units if this limit denied
//! it. So a release costs one ask more than the requests that start, however many wait.

use std::hash::{BuildHasher as _, Hash};
use std::sync::atomic::AtomicUsize as CounterOfProcess;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use foldhash::quality::RandomState;

use crate::sync::{Ordering, fence};

/// The queues of a layer.
pub(crate) trait CapacityListener: Send + Sync {
    /// Returns the place and the queue of the first request for which to ask after a release.
    fn first_for(&self, released: &Released) -> Option<(u64, u64)>;

    /// Lets a queue ask for its first request. Returns false if the queue has ended, or nothing drives it.
    fn ask(&self, queue: u64, released: Released) -> bool;

    /// Lets all queues ask at once.
    fn ask_all(&self);
}

/// Units of one limit that were released, and the requests for which they may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    /// The limit and the sub-key: see [`limit_id`].
    pub(crate) limit: u64,
    /// The requests up to this place were asked for.
    pub(crate) after: u64,
    /// A request that needs so many units or more was denied.
    pub(crate) below: u64,
}

impl Released {
    /// Combines two releases of one limit.
    pub(crate) fn merge(&mut self, other: Self) {
        (self.after, self.below) = (self.after.min(other.after), self.below.max(other.below));
    }

    /// Lets the next request ask.
    pub(crate) fn pass_on(mut self) {
        let listeners = live_listeners();
        loop {
            let first = listeners
                .iter()
                .filter_map(|listener| Some((listener.first_for(&self)?, listener)))
                .min_by_key(|(place, _)| *place);
            let Some(((place, queue), listener)) = first else { return };
            self.after = place;
            if listener.ask(queue, self) {
                return;
            }
        }
    }
}

/// The number of queues of the process: a release of capacity takes no lock while no request waits.
static QUEUES: CounterOfProcess = CounterOfProcess::new(0);

/// Counts a new queue. The caller's next ask sees capacity that was released before, or
/// [`capacity_released`] sees the queue.
pub(crate) fn queue_created() {
    QUEUES.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

pub(crate) fn queues_removed(count: usize) {
    QUEUES.fetch_sub(count, Ordering::Relaxed);
}

/// Whether any layer of the process has a queue. A store reads it under the lock of the released units, or after a fence.
/// loom runs models side by side, which would share the counter.
pub(crate) fn any_queue() -> bool {
    cfg!(loom) || QUEUES.load(Ordering::Relaxed) != 0
}

/// The hash functions of the process: the layers on one limiter name its limits alike.
///
/// The first one names limits and queues. A class of requests has both, because a start must not reach another key.
pub(crate) fn hashers() -> &'static [RandomState; 2] {
    static HASHERS: OnceLock<[RandomState; 2]> = OnceLock::new();
    HASHERS.get_or_init(Default::default)
}

/// Returns the number of a limit and sub-key in this process.
pub(crate) fn limit_id(limit: impl Hash) -> u64 {
    hashers()[0].hash_one(limit)
}

type Listeners = Mutex<Vec<Weak<dyn CapacityListener>>>;

#[cfg(not(loom))]
fn listeners() -> MutexGuard<'static, Vec<Weak<dyn CapacityListener>>> {
    static LISTENERS: Listeners = Mutex::new(Vec::new());
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The listeners of one model. The test threads run models side by side, and a model that called a listener of another
/// would use its mutex, which loom does not know there. loom runs all threads of a model on one thread.
#[cfg(loom)]
fn listeners() -> MutexGuard<'static, Vec<Weak<dyn CapacityListener>>> {
    std::thread_local! {
        static LISTENERS: &'static Listeners = Box::leak(Box::default());
    }
    LISTENERS.with(|listeners| listeners.lock()).unwrap_or_else(PoisonError::into_inner)
}

/// Returns all listeners. Their locks are taken only when the lock of the list is released.
fn live_listeners() -> Vec<Arc<dyn CapacityListener>> {
    listeners().iter().filter_map(Weak::upgrade).collect()
}

/// Registers a listener until it is dropped.
pub(crate) fn listen(listener: Weak<dyn CapacityListener>) {
    let mut listeners = listeners();
    listeners.retain(|listener| listener.strong_count() > 0);
    listeners.push(listener);
}

/// Lets all queues ask at once: a replacement of limits may have added capacity to any key.
pub(crate) fn capacity_added() {
    for listener in live_listeners() {
        listener.ask_all();
    }
}

/// Lets the requests ask that wait for these limits. The caller has released the units before the call. A queue that this
/// call misses was created after it, and asks when the request has joined.
pub(crate) fn capacity_released(limits: impl IntoIterator<Item = u64>) {
    fence(Ordering::SeqCst);
    if any_queue() {
        for limit in limits {
            Released { limit, after: 0, below: u64::MAX }.pass_on();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl CapacityListener for Calls {
        fn first_for(&self, _: &Released) -> Option<(u64, u64)> {
            None
        }

        fn ask(&self, _: u64, _: Released) -> bool {
            false
        }

        fn ask_all(&self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Other tests of this process call all listeners, too.
    #[test]
    fn every_listener_is_called_until_it_is_dropped() {
        let all: [Arc<Calls>; 3] = Default::default();
        let weak = || all.iter().map(|calls| -> Weak<dyn CapacityListener> { Arc::<Calls>::downgrade(calls) });
        weak().for_each(listen);
        let before = all.each_ref().map(|calls| calls.0.load(Relaxed));
        capacity_added();
        for (calls, before) in all.iter().zip(before) {
            assert!(calls.0.load(Relaxed) > before);
        }

        let [first, second, _third]: [Weak<dyn CapacityListener>; 3] =
            weak().collect::<Vec<_>>().try_into().expect("three");
        let is_registered = |listener: &Weak<_>| listeners().iter().any(|other| other.ptr_eq(listener));
        let [dropped, ..] = all;
        drop(dropped);
        listen(second.clone());
        assert!(!is_registered(&first), "a dropped listener takes no memory after the next one was registered");
    }
}
