//! Notifies the queues of this process when an operation may have added capacity to a limiter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Waits for limiters.
pub(crate) trait CapacityListener: Send + Sync {
    /// An administrative operation or a replacement of limits may have added capacity to any key.
    fn on_capacity(&self);
}

static LISTENERS: Mutex<Vec<Weak<dyn CapacityListener>>> = Mutex::new(Vec::new());

fn listeners() -> MutexGuard<'static, Vec<Weak<dyn CapacityListener>>> {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
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
