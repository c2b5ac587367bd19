//! Notifies the queues of this process of capacity: released by a request, or added by an operation.
//!
//! All layers of the process are notified, because several layers can share a limiter.

use std::sync::atomic::AtomicUsize as CounterOfProcess;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use crate::runtime::Instant;
use crate::sync::{Ordering, fence};

/// The queues of a layer.
pub(crate) trait CapacityListener: Send + Sync {
    /// There may be capacity for the queues with these ids; for any queue without ids. Adds the wakers of the queues,
    /// with the arrival of their first requests.
    fn on_capacity(&self, ids: Option<&[u64]>, wakers: &mut Vec<(Option<Instant>, Waker)>);
}

/// The number of queues of the process: a layer's release of capacity takes no lock while no request waits.
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

/// Whether any layer of the process has a queue. loom runs models side by side, which would share the counter.
pub(crate) fn any_queue() -> bool {
    cfg!(loom) || QUEUES.load(Ordering::Relaxed) != 0
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

/// Registers a listener until it is dropped.
pub(crate) fn listen(listener: Weak<dyn CapacityListener>) {
    let mut listeners = listeners();
    listeners.retain(|listener| listener.strong_count() > 0);
    listeners.push(listener);
}

/// Lets all queues ask at once: an administrative operation or a replacement of limits may have added capacity to any
/// key.
pub(crate) fn capacity_added() {
    notify(None);
}

/// Lets the queues with these ids ask at once. The caller has released the capacity before the call. A queue that this
/// call misses was created after it, and asks when the request has joined.
pub(crate) fn capacity_released(ids: &[u64]) {
    fence(Ordering::SeqCst);
    if any_queue() {
        notify(Some(ids));
    }
}

/// Wakes the queues in the order in which their first requests have arrived.
fn notify(ids: Option<&[u64]>) {
    let listeners: Vec<Arc<dyn CapacityListener>> = listeners().iter().filter_map(Weak::upgrade).collect();
    let mut wakers = Vec::new();
    for listener in listeners {
        listener.on_capacity(ids, &mut wakers);
    }
    wakers.sort_by_key(|(arrived_at, _)| *arrived_at);
    for (_, waker) in wakers {
        waker.wake();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl CapacityListener for Calls {
        fn on_capacity(&self, _: Option<&[u64]>, _: &mut Vec<(Option<Instant>, Waker)>) {
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
