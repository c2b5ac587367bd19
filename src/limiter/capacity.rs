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
