//! One queue: waiting requests in order of arrival, and the starts that the limiter has admitted for them.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use super::abandonment::AbandonmentAge;
use super::asks::AskOrder;
use super::forecast::{Forecast, StartInterval};
use super::pace::Pace;
use super::ticket::{Class, Start};
use super::waiters::{Waiter, Waiters};
use crate::decision::{Decision, Verdict};
use crate::error::Error;
use crate::limiter::Released;
use crate::response::Rejection;
use crate::runtime::Instant;

/// How long after its time a driver may be due. A driver that is due for longer is stalled: its runtime does not run.
const GRACE: Duration = Duration::from_millis(100);

/// The maximum time between two steps of a driver that has asks under way. Their answers wake a driver that runs.
pub(super) const MAX_STEP: Duration = Duration::from_secs(1);

/// How long after its time a charged start can be used: later it would count in the wrong window.
const MAX_LATENESS: Duration = Duration::from_millis(100);

/// What must happen after the lock of the queue is released.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) wakers: Vec<Waker>,
    /// Starts that no request uses. Dropping them releases held costs.
    pub(super) unused: Vec<Start>,
    /// Requests that move to another queue. Their tickets name it.
    pub(super) moved: Vec<Moved>,
    /// Releases for which other queues may ask.
    pub(super) released: Vec<Released>,
    /// How many requests stopped waiting.
    pub(super) ended: usize,
}

/// A request that moves to another queue, in its order of arrival.
pub(super) struct Moved {
    pub(super) waiter: Waiter,
    pub(super) decision: Decision,
    /// The delay that the denied ask accepted, and its time. `None` if an earlier request waits in the other queue.
    pub(super) denied: Option<(Duration, Instant)>,
}

/// The driver's next step.
pub(super) enum Next {
    Ask(AskOrder),
    /// Nothing is to be done before this time.
    Sleep(Option<Instant>),
    Finished,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) id: u64,
    pub(super) waiters: Waiters,
    /// In order of time.
    pub(super) starts: VecDeque<Start>,
    pub(super) pace: Pace,
    pub(super) forecast: Forecast,
    start_interval: StartInterval,
    abandonment: AbandonmentAge,
    /// Releases for which the queue has not asked yet, at most one of each limit.
    pub(super) released: Vec<Released>,
    pub(super) latest: Option<(Decision, [u64; 2], Instant)>,
    /// The task that drives the queue, and its waker.
    pub(super) driver: Option<u64>,
    pub(super) driver_waker: Option<Waker>,
    /// When the driver must take its next step.
    due_at: Option<Instant>,
    /// The first request in the index of releases, and what it needs.
    pub(super) indexed: Option<(u64, Vec<(u64, u64)>)>,
}

impl Queue {
    pub(super) fn new(id: u64, newest_first: bool) -> Self {
        Self { id, waiters: Waiters::new(newest_first), due_at: Some(Instant::now()), ..Self::default() }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.waiters.is_empty() && self.starts.is_empty() && self.pace.under_way == 0
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Joining and leaving
    // -----------------------------------------------------------------------------------------------------------------

    /// Returns the time until a request that joins now starts, `None` if that is unknown.
    pub(super) fn wait_of_new(&self, class: Class, now: Instant) -> Option<Duration> {
        if self.waiters.newest_first || cfg!(queue_rule_off = "position") {
            return Some(Duration::ZERO);
        }
        let by_rate = self.start_interval.wait_behind(self.waiters.open_cost());
        let is_next = self.waiters.has_spare(class);
        let ahead = if is_next { 0 } else { self.waiters.open_cost().saturating_add(self.pace.cost_under_way) };
        // When holds end is unknown, and how much they settle.
        let forecast = if class.hold { None } else { self.wait_behind(ahead, class.cost, now) };
        let Some(forecast) = forecast else { return by_rate };
        // The start is known an ask later than the limiter decides. The rate less a quarter: the average grows at the end of
        // each window.
        Some((forecast + self.pace.ask_time).max(by_rate.unwrap_or_default() * 3 / 4))
    }

    /// Returns the time until the limiter can admit a request of this cost behind so many units.
    pub(super) fn wait_behind(&self, ahead: u64, cost: u64, now: Instant) -> Option<Duration> {
        self.forecast.at(ahead.saturating_add(cost)).map(|at| at.saturating_duration_since(now))
    }

    /// Records the denial of a request that asked when it arrived.
    pub(super) fn denied_before_joining(&mut self, decision: Decision, class: Class, arrived_at: Instant) {
        let now = Instant::now();
        match &mut self.latest {
            // In an existing queue asks are under way, whose results are newer.
            Some(latest) => *latest = (decision, class.key, now),
            None => self.record(decision, class, Duration::ZERO, arrived_at, now),
        }
    }

    /// Records a decision for which the queue has not asked.
    fn record(&mut self, decision: Decision, class: Class, max_delay: Duration, asked_at: Instant, now: Instant) {
        self.forecast.update(&decision, class, max_delay, 0, asked_at);
        if self.latest.replace((decision, class.key, now)).is_none() {
            self.pace.begin(self.forecast.at(class.cost).is_none(), asked_at);
        }
    }

    /// Adds a request that comes from another queue.
    pub(super) fn insert_moved(&mut self, moved: Moved, now: Instant) {
        let Moved { waiter, decision, denied } = moved;
        let is_new = self.latest.is_none();
        if let Some((max_delay, asked_at)) = denied.or(is_new.then_some((Duration::ZERO, now))) {
            self.record(decision, waiter.class, max_delay, asked_at, now);
        }
        self.waiters.insert(waiter);
    }

    /// Adds a start that the limiter admitted.
    pub(super) fn add_start(&mut self, start: Start) {
        let position = self.starts.partition_point(|other| other.at <= start.at);
        self.starts.insert(position, start);
    }

    /// Adds a start that a request received before it joined the queue.
    pub(super) fn add_first_start(&mut self, start: Start, arrived_at: Instant, now: Instant) {
        self.record(start.decision.clone(), start.class, Duration::ZERO, arrived_at, now);
        self.waiters.add_ask(start.class);
        self.add_start(start);
    }

    /// Removes a request that leaves.
    pub(super) fn leave(&mut self, sequence: u64, now: Instant, effects: &mut Effects) {
        if let Some(waiter) = self.remove(self.waiters.place(sequence), effects) {
            self.abandonment.left(now.saturating_duration_since(waiter.arrived_at));
        }
    }

    /// Returns the next request that will probably not leave before its start.
    pub(super) fn next_that_stays(&self, now: Instant) -> Option<u64> {
        // A start for the only key is not lost when its request leaves: the next one uses it.
        if !self.waiters.has_several_keys() || cfg!(queue_rule_off = "leavers") {
            return None;
        }
        self.waiters.next_open_that(|waiter| {
            let time = self.wait_behind(self.pace.cost_under_way, waiter.class.cost, now).unwrap_or_default();
            let time = time.max(self.pace.ask_time);
            let rest = self.abandonment.rest_at(now.saturating_duration_since(waiter.arrived_at));
            let until_deadline = waiter.deadline.map(|deadline| deadline.saturating_duration_since(now));
            [rest, until_deadline].into_iter().flatten().all(|rest| time <= rest)
        })
    }

    /// Removes a request. Another request of its class takes over its ask or start.
    pub(super) fn remove(&mut self, place: u64, effects: &mut Effects) -> Option<Waiter> {
        let waiter = self.waiters.remove(place)?;
        effects.ended += 1;
        Some(waiter)
    }

    /// Removes the oldest request of a key, or of all keys, and rejects it: for a queue that serves the newest first.
    pub(super) fn reject_oldest(&mut self, key: Option<[u64; 2]>, now: Instant, effects: &mut Effects) -> bool {
        let last = self.waiters.last(key);
        last.is_some_and(|last| self.reject(last, now, effects))
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Handing over starts
    // -----------------------------------------------------------------------------------------------------------------

    /// Hands a start to a request of its class, `first` or the next ones.
    fn hand_over(&mut self, start: Start, first: Option<Waiter>, effects: &mut Effects) {
        let (class, at) = (start.class, start.at);
        let (mut reply, mut next) = (Box::new(Ok(start)), first);
        while let Some(waiter) = next {
            effects.ended += 1;
            self.start_interval.record(at, class.cost);
            match waiter.ticket.reply(reply, &mut effects.wakers) {
                Ok(()) => return,
                // The request has left a moment ago.
                Err(returned) => reply = returned,
            }
            next = self.waiters.take_first(class);
        }
        effects.unused.extend(reply.ok());
    }

    /// Takes back a start whose request did not use it, and hands it to the next request.
    pub(super) fn take_back(&mut self, start: Start, now: Instant, effects: &mut Effects) {
        // A held cost counts until it is settled.
        let is_usable = start.class.hold || start.at + MAX_LATENESS >= now;
        let first = if is_usable { self.waiters.take_first(start.class) } else { None };
        self.hand_over(start, first, effects);
    }

    fn hand_over_due(&mut self, now: Instant, effects: &mut Effects) {
        while self.starts.front().is_some_and(|start| start.at <= now)
            && let Some(start) = self.starts.pop_front()
        {
            // A deadline at the time of the start is in time.
            self.expire(start.at.checked_sub(Duration::from_nanos(1)).unwrap_or(start.at), effects);
            let first = self.waiters.take_asked(start.class);
            self.hand_over(start, first, effects);
        }
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Driving
    // -----------------------------------------------------------------------------------------------------------------

    /// Hands over due starts, and returns what the driver must do next.
    pub(super) fn step(&mut self, now: Instant, effects: &mut Effects) -> Next {
        self.hand_over_due(now, effects);
        if let Some(order) = self.next_ask(now) {
            return Next::Ask(order);
        }
        // After the asks: a start at the deadline is in time, and so is an ask that is due then.
        self.expire(now, effects);
        if self.waiters.next_open().is_none() && self.pace.under_way == 0 {
            effects.released.append(&mut self.released);
        }
        if self.is_finished() {
            return Next::Finished;
        }
        let start = self.starts.front().map(|start| start.at);
        let ask = self.waiters.next_open().and_then(|head| self.ask_at(head, now));
        let step = if self.pace.under_way > 0 { now.checked_add(MAX_STEP) } else { None };
        self.due_at = [start, ask, step, self.waiters.earliest_deadline()].into_iter().flatten().min();
        Next::Sleep(self.due_at)
    }

    /// Lets the queue ask at once: capacity was released in this process. Returns the waker of the queue's driver.
    pub(super) fn released(&mut self, released: Option<Released>) -> Option<Waker> {
        if let Some(released) = released {
            match self.released.iter_mut().find(|known| known.limit == released.limit) {
                Some(known) => known.merge(released),
                None => self.released.push(released),
            }
        }
        self.pace.released();
        self.wake_driver(Instant::now())
    }

    /// Returns the waker of the driver, which must take a step.
    pub(super) fn wake_driver(&mut self, now: Instant) -> Option<Waker> {
        self.due_at = Some(self.due_at.map_or(now, |due_at| due_at.min(now)));
        // The driver stores it again in its next step, and must not be woken twice for one.
        self.driver_waker.take()
    }

    /// Returns whether the driver has missed its next step: its runtime is blocked, or runs nothing.
    pub(super) fn is_stalled(&self, now: Instant) -> bool {
        self.due_at.and_then(|due_at| due_at.checked_add(GRACE)).is_some_and(|at| at <= now)
    }

    /// Returns when a waiting request must look again whether the driver is stalled.
    pub(super) fn look_again_after(&self, now: Instant) -> Duration {
        if self.due_at.is_some_and(|due_at| due_at <= now) { GRACE } else { MAX_STEP }
    }

    /// Prepares the queue for another driver, and gives up the asks under way.
    pub(super) fn leave_driver(&mut self, now: Instant) {
        (self.driver, self.driver_waker, self.due_at) = (None, None, Some(now));
        // Their futures are dropped with the driver, so no answer comes that would count down from zero.
        (self.pace.under_way, self.pace.cost_under_way) = (0, 0);
        self.waiters.reset(self.starts.iter().map(|start| start.class));
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Rejecting
    // -----------------------------------------------------------------------------------------------------------------

    /// Rejects the requests whose deadline is not after `now`.
    fn expire(&mut self, now: Instant, effects: &mut Effects) {
        while let Some(expired) = self.waiters.next_expired(now) {
            self.reject(expired, now, effects);
        }
    }

    pub(super) fn reject(&mut self, place: u64, now: Instant, effects: &mut Effects) -> bool {
        let Some(waiter) = self.remove(place, effects) else { return false };
        let wait = self.wait_behind(self.pace.cost_under_way, waiter.class.cost, now).filter(|wait| !wait.is_zero());
        let rejection = self.latest_denial(waiter.class, wait, now).map_or_else(
            || Rejection::Unavailable(Error::unavailable("waiting failed: the limiter did not reply in time")),
            Rejection::OverLimit,
        );
        // A request that has left a moment ago needs no rejection.
        let _ = waiter.ticket.reply(Box::new(Err(rejection)), &mut effects.wakers);
        true
    }

    /// Returns the latest decision of the limiter as a denial at `now`: for `wait`, or for the rest of its own wait.
    pub(super) fn latest_denial(&self, class: Class, wait: Option<Duration>, now: Instant) -> Option<Decision> {
        let (decision, decided_for, at) = self.latest.as_ref()?;
        let decision = decision.aged_by(now.saturating_duration_since(*at));
        // Another key's own limits are not this key's.
        let decision = if *decided_for == class.key { decision } else { decision.most_restrictive_only() };
        let own = match decision.verdict() {
            Verdict::ExceedsLimit => return Some(decision),
            Verdict::Allowed => Duration::ZERO,
            Verdict::AllowedAfter(wait) | Verdict::Denied { retry_after: wait } => wait,
        };
        // When a request in flight ends is unknown, also some time after the limit has said so.
        let own = if self.forecast.is_unknown() { own.max(Duration::from_secs(1)) } else { own };
        let is_estimate = decision.is_estimate() || self.forecast.is_unknown();
        Some(decision.into_denied(class.cost, wait.unwrap_or(own)).with_estimate(is_estimate))
    }
}
