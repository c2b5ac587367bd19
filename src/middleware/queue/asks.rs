//! The asks of one queue: when it asks the limiter, for which request, and what a result means.

use std::sync::Arc;
use std::time::Duration;

use super::ids::queue_of;
use super::state::{Effects, Moved, Queue};
use super::ticket::{Class, Start, Ticket};
use super::waiters::Waiter;
use crate::decision::{AcquireOptions, Decision, Verdict};
use crate::error::Error;
use crate::limiter::{Outcome, ReleaseOnDrop, Released};
use crate::response::Rejection;
use crate::runtime::Instant;

/// An ask that the driver must send.
pub(super) struct AskOrder {
    pub(super) ticket: Arc<Ticket>,
    pub(super) options: AcquireOptions,
    class: Class,
    deadline: Option<Instant>,
    asked_at: Instant,
    /// The releases that caused the ask. They are passed on after the result.
    pub(super) released: Vec<Released>,
}

/// How far ahead the queue asks for starts over a link.
const HORIZON: Duration = Duration::from_millis(50);

/// The longest random time by which an ask over a link comes later. Otherwise the process whose asks arrive first would
/// receive all starts that processes share.
const MAX_LATER: Duration = Duration::from_millis(10);

/// The same in memory: two ticks of the runtime's timer, because starts that are closer are handed over together.
const HORIZON_IN_MEMORY: Duration = Duration::from_millis(2);

impl Queue {
    /// Returns the time of the next ask, which is for this request. `None` if it depends on the results of asks under way.
    pub(super) fn ask_at(&self, head: u64, now: Instant) -> Option<Instant> {
        let class = self.waiters.get(head)?.class;
        let at = self.forecast.at(self.pace.cost_under_way.saturating_add(class.cost));
        let lead = self.lead(class);
        // Unless the limiter schedules starts, the random time delays them.
        let interval = self.forecast.time_for(class.cost).unwrap_or_default();
        let longest = if lead == HORIZON { MAX_LATER } else { MAX_LATER.min(interval / 24) };
        let later = if self.pace.is_remote() { self.pace.random_part_of(longest) } else { Duration::ZERO };
        self.pace.ask_at(at.map(|at| at.checked_sub(lead).unwrap_or(now) + later), now)
    }

    /// Returns how far ahead the queue asks for a start, if the limiter schedules starts.
    fn lead(&self, class: Class) -> Duration {
        if !self.forecast.schedules || class.hold || cfg!(queue_rule_off = "horizon") {
            Duration::ZERO
        } else if self.pace.is_remote() {
            HORIZON
        } else {
            HORIZON_IN_MEMORY
        }
    }

    /// Returns the next ask, if it is due. The first open request decides when.
    pub(super) fn next_ask(&mut self, now: Instant) -> Option<AskOrder> {
        let head = self.waiters.next_open()?;
        if self.ask_at(head, now).is_none_or(|at| at > now) {
            return None;
        }
        let place = self.next_that_stays(now).unwrap_or(head);
        let Waiter { ref ticket, class, deadline, options, .. } = *self.waiters.get(place)?;
        let lead = self.lead(class);
        let longest = deadline.map_or(lead, |deadline| lead.min(deadline.saturating_duration_since(now)));
        let (ticket, options) = (Arc::clone(ticket), AcquireOptions { max_delay: Some(longest), ..options });
        self.waiters.add_ask(class);
        // Before `pace.asked`, which adds this ask to those under way.
        self.forecast.asked(self.pace.cost_under_way.saturating_add(class.cost), now);
        self.pace.asked(class.cost);
        let released = std::mem::take(&mut self.released);
        Some(AskOrder { ticket, options, class, deadline, asked_at: now, released })
    }

    /// Takes back an ask that the driver has not sent, because the queue `other` has an earlier request for one of the
    /// same limits. The request moves there.
    pub(super) fn yield_to(&mut self, other: u64, mut order: AskOrder, effects: &mut Effects) {
        self.pace.withdrawn(order.class.cost);
        self.waiters.remove_ask(order.class);
        effects.released.append(&mut order.released);
        if let Some((decision, ..)) = self.latest.clone() {
            self.move_to(other, &order, decision, None, effects);
        }
    }

    fn move_to(
        &mut self,
        other: u64,
        order: &AskOrder,
        decision: Decision,
        denied: Option<(Duration, Instant)>,
        effects: &mut Effects,
    ) {
        if let Some(waiter) = self.waiters.remove(self.waiters.place(order.ticket.sequence)) {
            waiter.ticket.set_queue(other);
            effects.moved.push(Moved { waiter, decision, denied });
        }
    }

    /// Records the result of an ask.
    pub(super) fn on_result(
        &mut self,
        mut order: AskOrder,
        result: Result<Outcome, Error>,
        now: Instant,
        effects: &mut Effects,
    ) {
        self.pace.answered(order.class.cost, order.asked_at, now);
        match result {
            Ok(Outcome { decision, held }) if decision.is_allowed() => {
                effects.released.append(&mut order.released);
                let is_home = queue_of(&*order.ticket.ask, &decision) == self.id;
                if is_home {
                    self.update_forecast(&order, &decision);
                    self.latest = Some((decision.clone(), order.class.key, now));
                }
                let more = if is_home { self.forecast.remaining / order.class.cost.max(1) } else { 0 };
                let more = usize::try_from(more).unwrap_or(usize::MAX);
                self.pace.admitted(more, is_home && self.forecast.at(1).is_none(), now);
                if !is_home {
                    // The forecast does not know how many more the queue's limit admits, or the limit was replaced.
                    self.pace.released();
                }
                let held = ReleaseOnDrop::new(held);
                self.add_start(Start { at: now + decision.delay(), class: order.class, decision, held });
            }
            Ok(Outcome { decision, .. }) => self.on_denied(order, decision, now, effects),
            Err(error) => {
                effects.released.append(&mut order.released);
                self.pace.denied(true, now);
                self.waiters.remove_ask(order.class);
                self.end(&order, Rejection::Unavailable(error), effects);
            }
        }
    }

    fn update_forecast(&mut self, order: &AskOrder, decision: &Decision) {
        let max_delay = order.options.max_delay.unwrap_or_default();
        let max_waiting = order.ticket.ask.max_waiting().unwrap_or(0);
        self.forecast.update(decision, order.class, max_delay, max_waiting, order.asked_at);
    }

    fn on_denied(&mut self, mut order: AskOrder, decision: Decision, now: Instant, effects: &mut Effects) {
        self.waiters.remove_ask(order.class);
        let home = queue_of(&*order.ticket.ask, &decision);
        let is_late = is_late(&order, &decision, now);
        // What exceeds its limit does so alone: by the tier of its key, for example.
        if home != self.id || decision.exceeds_limit() {
            // The limits whose releases have caused the ask may admit the next request.
            effects.released.append(&mut order.released);
            if is_late {
                self.end(&order, Rejection::OverLimit(decision), effects);
            } else {
                let max_delay = order.options.max_delay.unwrap_or_default();
                self.move_to(home, &order, decision, Some((max_delay, order.asked_at)), effects);
            }
            return;
        }
        let needs = order.ticket.ask.needs_in(self.id, order.options);
        for mut released in order.released.drain(..) {
            let need = needs.iter().find(|(limit, _)| *limit == released.limit).map_or(u64::MAX, |(_, need)| *need);
            released.below = released.below.min(need);
            effects.released.push(released);
        }
        self.pace.denied(decision.is_estimate(), now);
        self.update_forecast(&order, &decision);
        self.latest = Some((decision, order.class.key, now));
        if is_late {
            self.reject(self.waiters.place(order.ticket.sequence), now, effects);
        }
    }

    /// Ends the wait of the request of an ask.
    fn end(&mut self, order: &AskOrder, rejection: Rejection, effects: &mut Effects) {
        if let Some(waiter) = self.remove(self.waiters.place(order.ticket.sequence), effects) {
            // A request that has left a moment ago needs no rejection.
            let _ = waiter.ticket.reply(Box::new(Err(rejection)), &mut effects.wakers);
        }
    }
}

/// Whether a denied request cannot start in time.
fn is_late(order: &AskOrder, decision: &Decision, now: Instant) -> bool {
    let Verdict::Denied { retry_after } = decision.verdict() else { return true };
    let Some(deadline) = order.deadline else {
        // Only a limit that schedules starts lets requests wait without a deadline.
        return !decision.supports_scheduling();
    };
    if decision.is_estimate() {
        // Held costs may be released before.
        return false;
    }
    // A limiter that schedules starts has refused all of them within the accepted delay.
    let is_scheduled = decision.supports_scheduling() && !order.class.hold;
    let accepted = order.options.max_delay.filter(|_| is_scheduled);
    let refused = accepted.map_or(now, |delay| order.asked_at + delay);
    // Limiters count whole microseconds.
    let rounding = Duration::from_micros(u64::from(is_scheduled && refused < deadline));
    refused.checked_add(retry_after).is_none_or(|start| start > deadline + rounding)
}
