//! The future of a waiting request, and the guard of the start that it receives.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::queues::Queues;
use super::ticket::{Class, Start, Ticket};
use crate::decision::Decision;
use crate::error::Error;
use crate::limiter::ReleaseOnDrop;
use crate::response::Rejection;
use crate::runtime::{Instant, Sleep, sleep};
use crate::sync::POLLED_AFTER_COMPLETION;

/// A request's place in a queue. Dropping it leaves the queue.
pub(crate) struct Waiting {
    queues: Arc<Queues>,
    ticket: Arc<Ticket>,
    /// When the request must have started or ended.
    due_in: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    is_done: bool,
}

impl Waiting {
    pub(super) fn new(queues: Arc<Queues>, ticket: Arc<Ticket>, due_in: Duration) -> Self {
        Self { queues, ticket, due_in, timer: None, is_done: false }
    }

    /// Returns the start, or why there is none.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<GrantedStart, Rejection>> {
        let queue = self.ticket.queue();
        let Poll::Ready(reply) = self.ticket.poll_reply(cx) else {
            // The runtime of the driver may have shut down.
            if self.queues.ensure_driver(queue) {
                self.poll_timer(queue, cx);
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

    /// When the request is due, drives the queue in this runtime if its driver does not: the driver's runtime may be
    /// blocked, or run nothing.
    fn poll_timer(&mut self, queue: u64, cx: &mut Context<'_>) {
        loop {
            if self.timer.is_none() {
                self.timer = sleep(self.due_in).map(Box::pin);
            }
            let Some(timer) = &mut self.timer else { return };
            if timer.as_mut().poll(cx).is_pending() {
                return;
            }
            self.timer = None;
            self.due_in = self.queues.replace_stalled_driver(queue);
        }
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
    pub(crate) fn immediate(decision: Decision, held: ReleaseOnDrop) -> Self {
        Self { start: Some(Start { at: Instant::now(), class: Class::default(), decision, held }), queue: None }
    }

    /// Uses the admission.
    pub(crate) fn into_parts(mut self) -> (Decision, ReleaseOnDrop) {
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
