//! The future of a waiting request, and the guard of the start that it receives.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::ids::QueueIds;
use super::queues::Queues;
use super::ticket::{Class, Start, Ticket};
use crate::decision::Decision;
use crate::error::Error;
use crate::limiter::{Held, capacity_released};
use crate::response::Rejection;
use crate::runtime::Instant;
use crate::sync::POLLED_AFTER_COMPLETION;

/// A request's place in a queue. Dropping it leaves the queue.
pub(crate) struct Waiting {
    queues: Arc<Queues>,
    ticket: Arc<Ticket>,
    is_done: bool,
}

impl Waiting {
    pub(super) fn new(queues: Arc<Queues>, ticket: Arc<Ticket>) -> Self {
        Self { queues, ticket, is_done: false }
    }

    /// Returns the start, or why there is none.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<GrantedStart, Rejection>> {
        let queue = self.ticket.queue();
        let Poll::Ready(reply) = self.ticket.poll_reply(cx) else {
            // The runtime of the driver may have shut down.
            if self.queues.ensure_driver(queue) {
                return Poll::Pending;
            }
            // `is_done` stays false: dropping `self` leaves the queue.
            return Poll::Ready(Err(Rejection::Unavailable(Error::no_timer())));
        };
        self.is_done = true;
        // Read again: the request may have moved before the reply.
        let queue = (Arc::clone(&self.queues), self.ticket.queue());
        Poll::Ready(reply.map(|start| GrantedStart { start: Some(start), queue: Some(queue) }))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_done {
            self.queues.leave(&self.ticket);
        }
    }
}

/// An admission that the request has not used yet. Dropping it passes the admission to the next waiting request, or
/// releases its held cost.
pub(crate) struct GrantedStart {
    start: Option<Start>,
    /// The queue from which the admission comes, if the request has waited.
    queue: Option<(Arc<Queues>, u64)>,
}

impl GrantedStart {
    /// Creates the guard of an admission that did not come from a queue.
    pub(crate) fn immediate(decision: Decision, held: StartHold) -> Self {
        Self { start: Some(Start { at: Instant::now(), class: Class::default(), decision, held }), queue: None }
    }

    /// Uses the admission.
    pub(crate) fn into_parts(mut self) -> (Decision, StartHold) {
        let Start { decision, held, .. } = self.start.take().expect(POLLED_AFTER_COMPLETION);
        (decision, held)
    }
}

impl Drop for GrantedStart {
    fn drop(&mut self) {
        if let (Some(start), Some((queues, id))) = (self.start.take(), self.queue.take()) {
            queues.take_back(id, start);
        }
    }
}

/// The held cost of a start that no request has used yet. Dropping it releases the cost, and wakes the queues that can
/// use it.
pub(crate) struct StartHold(Option<Box<(Held, QueueIds)>>);

impl StartHold {
    /// `queues` returns the queues of the request for which the cost is held.
    pub(crate) fn new(held: Option<Held>, queues: impl FnOnce() -> QueueIds) -> Self {
        Self(held.map(|held| Box::new((held, queues()))))
    }

    pub(crate) fn into_held(mut self) -> Option<Held> {
        self.0.take().map(|hold| hold.0)
    }
}

impl Drop for StartHold {
    fn drop(&mut self) {
        if let Some((held, ids)) = self.0.take().map(|hold| *hold) {
            release_and_wake(held, ids);
        }
    }
}

/// Releases a held cost, and then wakes the queues that can use it.
pub(crate) fn release_and_wake(held: Held, ids: QueueIds) {
    // An error is ignored: the store frees the held cost when the hold expires.
    let released = held.release().map_result(move |result| {
        capacity_released(ids.as_slice());
        result
    });
    released.detach();
}
