//! Notifies the queues of this process when an operation may have added capacity to a limiter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Waits for limiters.
pub(crate) trait CapacityListener: Send + Sync {
    /// An administrative operation or a replacement of limits may have added capacity to any key.
    fn on_capacity(&self);
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

/// Calls all listeners.
pub(crate) fn capacity_added() {
    let listeners: Vec<Arc<dyn CapacityListener>> = listeners().iter().filter_map(Weak::upgrade).collect();
    for listener in listeners {
        listener.on_capacity();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl CapacityListener for Calls {
        fn on_capacity(&self) {
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
