//! The asks of one queue: when it asks the limiter, for which request, and what a result means.

use std::sync::Arc;
use std::time::Duration;

use super::state::{Effects, HORIZON, Queue};
use super::ticket::{Class, Reply, Start, Ticket};
use super::waiters::Waiter;
use crate::decision::{AcquireOptions, Decision, Verdict};
use crate::error::Error;
use crate::limiter::{Outcome, ReleaseOnDrop};
use crate::runtime::Instant;

/// An ask that the driver must send.
pub(super) struct AskOrder {
    pub(super) ticket: Arc<Ticket>,
    pub(super) options: AcquireOptions,
    class: Class,
    /// Whether the start may lie beyond the horizon.
    books: bool,
    deadline: Option<Instant>,
    asked_at: Instant,
}

impl Queue {
    /// Returns the time of the next ask, `None` if it depends on the results of asks under way.
    pub(super) fn next_ask_at(&self, position: usize, now: Instant) -> Option<Instant> {
        if !self.pace.may_ask() {
            return None;
        }
        let class = self.waiters[position].class;
        if class.hold {
            return Some(self.pace.not_before.unwrap_or(now));
        }
        // Asks under way take their places first.
        let in_flight = self.pace.in_flight_cost;
        if in_flight > 0 && self.estimate.wait_by_quota(in_flight, class.cost, now).is_some_and(|wait| wait > HORIZON) {
            return None;
        }
        let after_starts = self.starts.back().and_then(|last| last.at.checked_sub(HORIZON));
        Some(later(self.pace.not_before, after_starts).unwrap_or(now))
    }

    pub(super) fn next_ask(&mut self, now: Instant) -> Option<AskOrder> {
        let position = self.waiters.next_uncovered()?;
        if self.next_ask_at(position, now).is_none_or(|at| at > now) {
            return None;
        }
        let is_mixed = self.waiters.is_mixed();
        let lead = if is_mixed { self.pace.lead().min(HORIZON) } else { HORIZON };
        let waiter = &self.waiters[position];
        let books = !waiter.class.hold && !self.pace.is_booking && !is_mixed;
        let remaining = waiter.deadline.map(|deadline| deadline.saturating_duration_since(now));
        let max_delay = if waiter.class.hold {
            Some(Duration::ZERO)
        } else if books {
            remaining
        } else {
            Some(remaining.map_or(lead, |remaining| remaining.min(lead)))
        };
        let options = AcquireOptions { max_delay, ..waiter.options };
        let Waiter { ref ticket, class, deadline, .. } = *waiter;
        let order = AskOrder { ticket: Arc::clone(ticket), options, class, books, deadline, asked_at: now };
        self.waiters.cover(position);
        self.pace.asked(class.cost, books);
        Some(order)
    }

    /// Records the result of an ask.
    pub(super) fn on_result(
        &mut self,
        order: &AskOrder,
        result: Result<Outcome, Error>,
        now: Instant,
        effects: &mut Effects,
    ) {
        self.pace.answered(order.class.cost, order.books);
        self.pace.took(now.saturating_duration_since(order.asked_at));
        match result {
            Ok(Outcome { decision, held }) if decision.is_allowed() => {
                self.pace.admitted();
                let held = ReleaseOnDrop::new(held);
                self.add_start(Start { at: now + decision.delay(), class: order.class, decision, held }, now);
            }
            Ok(Outcome { decision, .. }) => self.on_denied(order, decision, now, effects),
            Err(error) => {
                self.pace.failed();
                self.waiters.remove_cover(order.class);
                if let Some(position) = self.waiters.position_of(order.ticket.sequence) {
                    let waiter = self.remove(position, effects);
                    let _ = waiter.ticket.reply(Box::new(Reply::Failed(error)), &mut effects.wakers);
                }
            }
        }
    }

    fn on_denied(&mut self, order: &AskOrder, decision: Decision, now: Instant, effects: &mut Effects) {
        self.waiters.remove_cover(order.class);
        let home = order.ticket.ask.queue_of(&decision);
        let is_home = home == self.id;
        let max_delay = order.options.max_delay.unwrap_or_default();
        // A limiter that schedules starts has refused every start within the accepted delay. Another one may allow the
        // request after `retry_after`.
        let schedules = decision.supports_scheduling() && !order.class.hold;
        let is_hopeless = match decision.verdict() {
            Verdict::Denied { .. } if schedules && order.books => true,
            Verdict::Denied { .. } if decision.is_estimate() => false,
            Verdict::Denied { retry_after } => order.deadline.is_none_or(|deadline| now + retry_after > deadline),
            _ => true,
        };
        if is_home {
            self.estimate.denied(&decision, order.class.cost, max_delay, now);
            // An ask behind others that may book is repeated when they are answered.
            let waits = !schedules || (!order.books && self.waiters.is_mixed());
            self.set_pace_of_denial(&decision, waits, now);
        } else {
            self.pace.denied(None, now);
        }
        let position = self.waiters.position_of(order.ticket.sequence);
        if let Some(position) = position.filter(|_| !is_hopeless && !is_home) {
            let waiter = self.remove(position, effects);
            effects.ended -= 1;
            waiter.ticket.set_queue(home);
            effects.moved.push((waiter, decision));
            return;
        }
        self.latest = Some((decision, order.class.key, now));
        if let Some(position) = position.filter(|_| is_hopeless) {
            self.reject(position, now, effects);
        }
    }

    /// Sets the time of the next ask. With `waits` the limiter is asked after its `retry_after`, otherwise as soon as
    /// the known starts allow.
    pub(super) fn set_pace_of_denial(&mut self, decision: &Decision, waits: bool, now: Instant) {
        let retry_after = decision.retry_after().filter(|_| waits);
        self.pace.denied(retry_after.map(|wait| (wait, decision.is_estimate())), now);
    }
}

fn later(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.max(b)
}
