//! The asks of one queue: when it asks the limiter, for which request, and what a result means.

use std::sync::Arc;
use std::time::Duration;

use super::pace::RetryAfter;
use super::state::{Effects, HORIZON, Moved, Queue};
use super::ticket::{Class, Reply, Start, Ticket};
use super::waiters::Waiter;
use super::waiting::StartHold;
use crate::decision::{AcquireOptions, Decision, Verdict};
use crate::error::Error;
use crate::limiter::Outcome;
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
    /// The value of [`Pace::releases`](super::pace::Pace::releases) before the ask.
    releases: u64,
    /// Whether the queue must send the ask, even if another queue has an earlier request.
    pub(super) is_unsure: bool,
}

/// The resolution of the runtime's timer: the driver wakes at most this often, and up to this late.
const TICK: Duration = Duration::from_millis(1);

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
        let (in_flight, lead) = (self.pace.in_flight_cost, self.lead(class));
        if in_flight > 0 && self.estimate.wait_by_quota(in_flight, class.cost, now).is_some_and(|wait| wait > lead) {
            return None;
        }
        if self.pace.is_released {
            return Some(now);
        }
        let after_starts = self.starts.back().and_then(|last| last.at.checked_sub(lead));
        Some(later(self.pace.not_before, after_starts).unwrap_or(now))
    }

    /// Returns how far ahead the queue asks for starts, but for the one that it books.
    ///
    /// Requests of several keys cannot use each other's starts, so their queue asks only as early as it must.
    fn lead(&self, class: Class) -> Duration {
        if self.waiters.is_mixed() { self.least_lead(class) } else { HORIZON }
    }

    /// Returns how far ahead the queue must ask so that each start can be used in time.
    fn least_lead(&self, class: Class) -> Duration {
        // Several starts that are closer than a tick are handed over together, so they must be known before the tick.
        let is_close = self.estimate.time_for(class.cost).is_some_and(|interval| interval < TICK);
        let of_timer = if is_close { 2 * TICK } else { Duration::ZERO };
        self.pace.lead().max(of_timer).min(HORIZON)
    }

    pub(super) fn next_ask(&mut self, now: Instant) -> Option<AskOrder> {
        let head = self.waiters.next_uncovered()?;
        if self.next_ask_at(head, now).is_none_or(|at| at > now) {
            return None;
        }
        let booked = self.next_to_book(now);
        let books = booked.is_some();
        let position = booked.or_else(|| self.next_that_stays(now, |_| self.pace.ask_time())).unwrap_or(head);
        let waiter = &self.waiters[position];
        let remaining = waiter.deadline.map(|deadline| deadline.saturating_duration_since(now));
        let max_delay = if waiter.class.hold {
            Some(Duration::ZERO)
        } else {
            let longest = if books { self.max_booking(waiter, now) } else { Some(self.lead(waiter.class)) };
            [remaining, longest].into_iter().flatten().min()
        };
        let options = AcquireOptions { max_delay, ..waiter.options };
        let Waiter { ref ticket, class, deadline, .. } = *waiter;
        let (ticket, asked_at, releases) = (Arc::clone(ticket), now, self.pace.releases);
        let is_unsure = std::mem::take(&mut self.pace.is_unsure);
        let order = AskOrder { ticket, options, class, books, deadline, asked_at, releases, is_unsure };
        self.waiters.cover(position);
        self.pace.asked(class.cost, books);
        Some(order)
    }

    /// Takes back an ask that the driver has not sent, because the queue `other` has an earlier request for one of the
    /// same limits. The request moves there when its own limit would admit it, so that it is not denied and moved back.
    pub(super) fn yield_to(&mut self, other: u64, order: &AskOrder, now: Instant, effects: &mut Effects) {
        self.pace.withdrawn(order.class.cost, order.books);
        self.waiters.remove_cover(order.class);
        let wait = self.estimate.wait_by_quota(self.pace.in_flight_cost, order.class.cost, now).unwrap_or_default();
        let early = wait.saturating_sub(self.least_lead(order.class));
        if !early.is_zero() {
            self.pace.postpone(early, now);
            return;
        }
        if let Some((position, decision)) = self.waiters.position_of(order.ticket.sequence).zip(self.latest.clone()) {
            self.move_to(other, position, decision.0, None, effects);
        }
    }

    fn move_to(
        &mut self,
        other: u64,
        position: usize,
        decision: Decision,
        denied: Option<Duration>,
        effects: &mut Effects,
    ) {
        let waiter = self.remove(position, effects);
        effects.ended -= 1;
        waiter.ticket.set_queue(other);
        effects.moved.push(Moved { waiter, decision, denied });
    }

    /// Returns the request for which the queue books a start, if it may book one.
    ///
    /// Several limits of which one is idle schedule no starts, so the queue books none.
    fn next_to_book(&self, now: Instant) -> Option<usize> {
        if !self.pace.may_book() || (self.waiters.is_mixed() && !self.estimate.is_spaced()) {
            return None;
        }
        let position = self.next_that_stays(now, |class| self.next_start_after(class, now))?;
        (!self.waiters[position].class.hold).then_some(position)
    }

    /// Returns the next request that will probably not leave within this time.
    fn next_that_stays(&self, now: Instant, time: impl Fn(Class) -> Duration) -> Option<usize> {
        // A start for the only key is not lost when its request leaves: the next one uses it.
        if !self.waiters.is_mixed() {
            return self.waiters.next_uncovered();
        }
        self.waiters.next_uncovered_that(|waiter| {
            let rest = self.abandonment.rest_at(now.saturating_duration_since(waiter.arrived_at));
            rest.is_none_or(|rest| time(waiter.class) <= rest)
        })
    }

    /// Returns how far ahead the queue books a start for a request, `None` if only its deadline bounds that.
    ///
    /// Among requests of several keys, a start that the request's own limit delays would delay all others.
    fn max_booking(&self, waiter: &Waiter, now: Instant) -> Option<Duration> {
        let next = self.next_start_after(waiter.class, now);
        let rest = self.abandonment.rest_at(now.saturating_duration_since(waiter.arrived_at));
        let longest = next.saturating_add(next.min(HORIZON));
        self.waiters.is_mixed().then(|| rest.map_or(longest, |rest| longest.min(rest)))
    }

    /// Estimates the time until the next start that the queue can book.
    fn next_start_after(&self, class: Class, now: Instant) -> Duration {
        let by_quota = self.estimate.wait_by_quota(0, class.cost, now).unwrap_or_default();
        let interval = self.estimate.measured_interval(class.cost);
        let by_rate = self.starts.back().zip(interval).and_then(|(last, interval)| last.at.checked_add(interval));
        by_rate.map_or(by_quota, |at| by_quota.max(at.saturating_duration_since(now)))
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
        match result.and_then(|outcome| outcome.check_guard(order.options.until_end)) {
            Ok(Outcome { decision, held }) if decision.is_allowed() => {
                self.pace.admitted();
                self.pace.is_released &= decision.delay() <= HORIZON;
                let held = StartHold::new(held, || order.ticket.ask.queues());
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
        // A limiter that schedules starts has refused every start within the accepted delay. Another one may allow the
        // request after `retry_after`.
        let schedules = decision.supports_scheduling() && !order.class.hold;
        let max_delay = order.options.max_delay.unwrap_or_default();
        let is_hopeless = match (decision.verdict(), order.deadline) {
            // Held costs may be released before.
            (Verdict::Denied { .. }, Some(_)) if decision.is_estimate() => false,
            (Verdict::Denied { retry_after }, Some(deadline)) => {
                // Limiters count whole microseconds.
                let beyond = max_delay.saturating_add(retry_after).saturating_add(Duration::from_micros(1));
                let (since, wait) = if schedules { (order.asked_at, beyond) } else { (now, retry_after) };
                since.checked_add(wait).is_none_or(|start| start > deadline)
            }
            (Verdict::Denied { .. }, None) => order.books || !schedules,
            _ => true,
        };
        if is_home {
            self.estimate.denied(&decision, order.class.cost, max_delay, now);
            let waits = self.waits_after(&decision, order);
            // The limiter may have decided before a release.
            let waits = waits && order.releases == self.pace.releases;
            self.pace.denied(self.retry_after(&decision, order.class.cost).filter(|_| waits), now);
        } else {
            self.pace.denied(None, now);
        }
        let position = self.waiters.position_of(order.ticket.sequence);
        if let Some(position) = position.filter(|_| !is_hopeless && !is_home) {
            self.move_to(home, position, decision, Some(max_delay), effects);
            return;
        }
        self.latest = Some((decision, order.class.key, now));
        if let Some(position) = position.filter(|_| is_hopeless) {
            self.reject(position, now, effects);
        }
    }

    /// Returns when the limiter may admit another request of this cost.
    pub(super) fn retry_after(&self, denied: &Decision, cost: u64) -> Option<RetryAfter> {
        let wait = denied.retry_after()?;
        let interval = self.estimate.time_for(cost).unwrap_or_default();
        Some(RetryAfter { wait, is_estimate: denied.is_estimate(), interval })
    }

    /// Whether to ask after the limiter's `retry_after`, instead of as soon as the known starts and asks allow.
    fn waits_after(&self, denied: &Decision, order: &AskOrder) -> bool {
        let schedules = denied.supports_scheduling() && !order.class.hold;
        // Otherwise the denial of an ask that books rejects its request or corrects the estimate, and another ask is
        // repeated when the one that books is answered.
        !schedules || denied.is_estimate() || (!order.books && self.waiters.is_mixed())
    }
}

fn later(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.max(b)
}
