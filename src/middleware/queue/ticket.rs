//! A waiting request, as its queue and its future share it.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::decision::{AcquireOptions, Decision};
use crate::limiter::{LimitOfKey, LimiterFuture, Outcome, ReleaseOnDrop};
use crate::observe::Observers;
use crate::response::Rejection;
use crate::runtime::Instant;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// Asks the limiter for a start of one waiting request.
pub(crate) trait Ask: Send + Sync + 'static {
    fn acquire(&self, options: AcquireOptions) -> LimiterFuture<Outcome>;

    /// Visits the limits that apply to the request, with the queue of each.
    fn visit(&self, visit: &mut dyn FnMut(&LimitOfKey<'_>, u64));

    /// Returns the queue of a limiter that names no limits.
    fn own_queue(&self) -> u64;

    fn observers(&self) -> &Observers;
}

/// Requests of one class can use each other's starts: same key, same cost, and both hold or both charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Class {
    /// Two independent 64-bit hashes of the key: a start must not reach another key.
    pub(crate) key: [u64; 2],
    /// Two independent hashes of the costs of the request, with those in units.
    pub(crate) request_costs: [u64; 2],
    /// The cost on the limit of the queue: the number of the request, unless the limit has a fixed cost or a unit.
    pub(crate) cost: u64,
    pub(crate) hold: bool,
}

/// An admission, which one request of the class can use from its time on.
pub(crate) struct Start {
    pub(crate) at: Instant,
    pub(crate) class: Class,
    pub(crate) decision: Decision,
    /// Released if no request uses the start.
    pub(crate) held: ReleaseOnDrop,
}

/// What ends the wait of a request.
pub(super) type Reply = Result<Start, Rejection>;

/// A waiting request, for its queue and its future.
pub(super) struct Ticket {
    slot: Mutex<Slot>,
    /// The queue in which the request waits. A request moves when another limit denies it.
    queue: AtomicU64,
    /// The order of arrival in all queues.
    pub(super) sequence: u64,
    pub(super) ask: Arc<dyn Ask>,
}

#[derive(Default)]
struct Slot {
    waker: Option<Waker>,
    reply: Option<Box<Reply>>,
    /// The request has left: no reply reaches it.
    is_closed: bool,
}

impl Ticket {
    pub(super) fn new(queue: u64, sequence: u64, ask: Arc<dyn Ask>) -> Self {
        Self { slot: Mutex::new(Slot::default()), queue: AtomicU64::new(queue), sequence, ask }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn queue(&self) -> u64 {
        self.queue.load(Ordering::Acquire)
    }

    pub(super) fn set_queue(&self, queue: u64) {
        self.queue.store(queue, Ordering::Release);
    }

    /// Replies to the request. Returns the reply if the request has left.
    pub(super) fn reply(&self, reply: Box<Reply>, wakers: &mut Vec<Waker>) -> Result<(), Box<Reply>> {
        let mut slot = self.slot();
        if slot.is_closed {
            return Err(reply);
        }
        slot.reply = Some(reply);
        wakers.extend(slot.waker.take());
        Ok(())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.slot().is_closed
    }

    pub(super) fn poll_reply(&self, cx: &mut Context<'_>) -> Poll<Reply> {
        let mut slot = self.slot();
        if let Some(reply) = slot.reply.take() {
            slot.is_closed = true;
            return Poll::Ready(*reply);
        }
        match &mut slot.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Closes the slot. Returns a reply that the request has not received.
    pub(super) fn close(&self) -> Option<Box<Reply>> {
        let mut slot = self.slot();
        slot.is_closed = true;
        slot.waker = None;
        slot.reply.take()
    }

    /// Removes the waker, to wake the request without a reply.
    pub(super) fn take_waker(&self) -> Option<Waker> {
        self.slot().waker.take()
    }
}
