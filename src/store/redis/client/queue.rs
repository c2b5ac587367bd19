//! Group commit: what comes while others are on their way wait, and travel together.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::error::Error;
use crate::store::redis::client::trade::Parcel;

/// The parcels of one runtime and lane, and what wakes the task that sends them.
pub(crate) struct Line<P> {
    queue: Mutex<Queue<P>>,
    arrived: Notify,
    /// Nobody uses the limiter any more.
    closed: AtomicBool,
}

struct Queue<P> {
    parcels: VecDeque<P>,
    /// The task is gone, with its runtime.
    is_dead: bool,
}

/// The greatest weight of one call: enough to spread its fixed costs, and little enough that the server is held up for no longer
/// than about half a millisecond.
const MAX_WEIGHT: usize = 128;

impl<P: Parcel> Line<P> {
    pub(crate) fn new() -> Self {
        let queue = Queue { parcels: VecDeque::new(), is_dead: false };
        Self { queue: Mutex::new(queue), arrived: Notify::new(), closed: AtomicBool::new(false) }
    }

    /// Lines a parcel up.
    ///
    /// # Errors
    ///
    /// The parcel again, if nobody will send it.
    pub(crate) fn push(&self, parcel: P) -> Result<(), P> {
        let mut queue = self.queue();
        if queue.is_dead {
            return Err(parcel);
        }
        queue.parcels.push_back(parcel);
        let is_first = queue.parcels.len() == 1;
        drop(queue);
        // Otherwise the task knows, or is about to look.
        if is_first {
            self.arrived.notify_one();
        }
        Ok(())
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.arrived.notify_one();
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.queue().is_dead
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue().parcels.is_empty()
    }

    /// The next parcels to travel together, in the order in which they came. What nobody waits for any more is left out.
    pub(crate) fn take(&self) -> Vec<P> {
        let mut queue = self.queue();
        let mut weight = 0;
        let mut taken = Vec::with_capacity(queue.parcels.len().min(MAX_WEIGHT));
        while let Some(parcel) = queue.parcels.front() {
            weight += parcel.weight();
            if weight > MAX_WEIGHT && !taken.is_empty() {
                break;
            }
            let parcel = queue.parcels.pop_front().expect("it was just there");
            if !parcel.is_abandoned() {
                taken.push(parcel);
            }
        }
        taken
    }

    /// While nothing is sent, what nobody waits for any more must not pile up.
    pub(crate) fn forget_abandoned(&self) {
        self.queue().parcels.retain(|parcel| !parcel.is_abandoned());
    }

    /// Tells all who wait here that there will be no answer.
    pub(crate) fn fail(&self, error: &Error) {
        let parcels = std::mem::take(&mut self.queue().parcels);
        for parcel in parcels {
            parcel.answer(Err(error.clone()));
        }
    }

    /// Waits until a parcel is pushed, or the line is closed.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Marks the line as dead: its task has ended. All parcels fail, and no other is taken.
    pub(crate) fn die(&self, error: &Error) {
        self.queue().is_dead = true;
        self.fail(error);
    }

    fn queue(&self) -> MutexGuard<'_, Queue<P>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
