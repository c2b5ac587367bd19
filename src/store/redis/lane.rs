//! What goes one way: to one server, or to one node of a cluster. One that is gone holds up no other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::runtime::{Handle, Id};

use super::breaker::Breaker;
use super::connection::Connection;

pub(super) struct Lane {
    pub(super) index: usize,
    pub(super) breaker: Breaker,
    /// A connection that a probe has made and tried, and the runtime it belongs to.
    spare: Mutex<Option<(Id, Arc<dyn Connection>)>>,
}

impl Lane {
    fn new(index: usize) -> Self {
        Self { index, breaker: Breaker::new(), spare: Mutex::default() }
    }

    pub(super) fn keep_spare(&self, connection: Box<dyn Connection>) {
        *self.spare() = Some((Handle::current().id(), Arc::from(connection)));
    }

    pub(super) fn take_spare(&self) -> Option<Arc<dyn Connection>> {
        let (runtime, connected) = self.spare().take()?;
        (runtime == Handle::current().id()).then_some(connected)
    }

    fn spare(&self) -> MutexGuard<'_, Option<(Id, Arc<dyn Connection>)>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All lanes of a limiter: a single server has one.
pub(super) struct Lanes {
    first: Arc<Lane>,
    others: RwLock<Vec<Arc<Lane>>>,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self { first: Arc::new(Lane::new(0)), others: RwLock::default() }
    }

    pub(super) fn get(&self, index: usize) -> Arc<Lane> {
        let Some(other) = index.checked_sub(1) else { return Arc::clone(&self.first) };
        if let Some(lane) = self.others.read().unwrap_or_else(PoisonError::into_inner).get(other) {
            return Arc::clone(lane);
        }
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        while others.len() <= other {
            let lane = Arc::new(Lane::new(others.len() + 1));
            others.push(lane);
        }
        Arc::clone(&others[other])
    }
}
