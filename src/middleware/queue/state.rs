//! One queue: waiting requests in order of arrival, and the starts that the limiter has admitted for them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::estimate::Estimate;
use super::pace::Pace;
use super::ticket::{Class, Reply, Start, Ticket};
use crate::decision::{AcquireOptions, Decision, Verdict};
use crate::error::Error;
use crate::limiter::{Outcome, ReleaseOnDrop};
use crate::runtime::Instant;

/// How far ahead the queue asks for starts. One start may be booked beyond it.
pub(super) const HORIZON: Duration = Duration::from_millis(100);

/// A waiting request in its queue.
pub(super) struct Waiter {
    pub(super) ticket: Arc<Ticket>,
    pub(super) class: Class,
    options: AcquireOptions,
    /// `None` if the limiter bounds the wait.
    deadline: Option<Instant>,
    /// Whether an ask under way or a start covers the request.
    is_covered: bool,
}

impl Waiter {
    pub(super) fn new(ticket: Arc<Ticket>, class: Class, options: AcquireOptions, deadline: Option<Instant>) -> Self {
        Self { ticket, class, options, deadline, is_covered: false }
    }
}

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

/// What must happen after the lock of the queue is released.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) wakers: Vec<Waker>,
    /// Starts that no request uses. Dropping them releases held costs.
    pub(super) unused: Vec<Start>,
    /// Requests that another limit has denied. Their tickets name its queue.
    pub(super) moved: Vec<(Waiter, Decision)>,
    /// How many requests stopped waiting.
    pub(super) ended: usize,
}

/// The driver's next step.
pub(super) enum Next {
    Ask(AskOrder),
    /// Nothing is to be done before this time.
    Sleep(Option<Instant>),
    Finished,
}

pub(super) struct Queue {
    id: u64,
    newest_first: bool,
    /// In order of arrival.
    waiters: VecDeque<Waiter>,
    /// The number of waiting requests of each key.
    per_key: HashMap<[u64; 2], usize, foldhash::fast::RandomState>,
    /// In order of time.
    starts: VecDeque<Start>,
    /// The classes of asks under way and of starts whose request has left.
    spare: Vec<Class>,
    pace: Pace,
    estimate: Estimate,
    /// No deadline is earlier.
    earliest_deadline: Option<Instant>,
    latest: Option<(Decision, [u64; 2], Instant)>,
    /// The task that drives the queue, and its waker.
    pub(super) driver: Option<u64>,
    pub(super) driver_waker: Option<Waker>,
}

impl Queue {
    pub(super) fn new(id: u64, newest_first: bool) -> Self {
        Self {
            id,
            newest_first,
            waiters: VecDeque::new(),
            per_key: HashMap::default(),
            starts: VecDeque::new(),
            spare: Vec::new(),
            pace: Pace::new(id),
            estimate: Estimate::default(),
            earliest_deadline: None,
            latest: None,
            driver: None,
            driver_waker: None,
        }
    }

    pub(super) fn waiting_of(&self, key: [u64; 2]) -> usize {
        self.per_key.get(&key).copied().unwrap_or(0)
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.waiters.is_empty() && self.starts.is_empty() && self.pace.in_flight == 0
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Joining and leaving
    // -----------------------------------------------------------------------------------------------------------------

    /// Returns the time until a request that joins now starts.
    pub(super) fn wait_of_new(&self, class: Class, now: Instant) -> Option<Duration> {
        if self.newest_first {
            return Some(Duration::ZERO);
        }
        if class.hold {
            // The requests ahead may settle less than they hold, or nothing.
            return self.estimate.wait_behind(0, 0, now);
        }
        let uncovered = self.waiters.iter().filter(|waiter| !waiter.is_covered);
        let ahead = uncovered.map(|waiter| waiter.class.cost).fold(self.pace.in_flight_cost, u64::saturating_add);
        self.estimate.wait_behind(ahead, class.cost, now)
    }

    /// Returns the time in which the limit admits this cost.
    pub(super) fn time_for(&self, cost: u64) -> Option<Duration> {
        self.estimate.time_for(cost)
    }

    pub(super) fn exceeds_limit(&self, cost: u64) -> bool {
        self.estimate.exceeds_limit(cost)
    }

    /// Whether requests of several keys wait, which cannot use each other's starts.
    fn is_mixed(&self) -> bool {
        self.per_key.len() > 1
    }

    /// Records the denial of a request that asked before it joins.
    pub(super) fn denied_before_joining(&mut self, decision: &Decision, class: Class, now: Instant) {
        if self.latest.is_none() {
            self.estimate.denied(decision, class.cost, Duration::ZERO, now);
            self.set_pace_of_denial(decision, !decision.supports_scheduling() || class.hold, now);
        }
        self.latest = Some((decision.clone(), class.key, now));
    }

    pub(super) fn insert(&mut self, mut waiter: Waiter) {
        waiter.is_covered = self.take_spare(waiter.class);
        self.earliest_deadline = earlier(self.earliest_deadline, waiter.deadline);
        *self.per_key.entry(waiter.class.key).or_default() += 1;
        let position = self.waiters.partition_point(|other| other.ticket.sequence < waiter.ticket.sequence);
        self.waiters.insert(position, waiter);
    }

    /// Adds a start that the limiter admitted. `now` is the time of the decision.
    pub(super) fn add_start(&mut self, start: Start, now: Instant) {
        self.estimate.admitted(&start.decision, start.at, start.class, now);
        let position = self.starts.partition_point(|other| other.at <= start.at);
        self.starts.insert(position, start);
    }

    /// Adds a start that a request received before it joined the queue.
    pub(super) fn add_first_start(&mut self, start: Start, now: Instant) {
        self.latest = Some((start.decision.clone(), start.class.key, now));
        self.spare.push(start.class);
        self.add_start(start, now);
    }

    /// Removes a request that leaves.
    pub(super) fn leave(&mut self, sequence: u64, effects: &mut Effects) {
        if let Some(position) = self.position_of(sequence) {
            self.remove(position, effects);
        }
    }

    /// Removes a request. Another request of its class takes over its ask or start.
    fn remove(&mut self, position: usize, effects: &mut Effects) -> Waiter {
        let waiter = self.waiters.remove(position).expect("the position of a waiter");
        effects.ended += 1;
        self.forget_key(waiter.class.key);
        if waiter.is_covered {
            self.pass_cover(waiter.class);
        }
        if self.waiters.is_empty() {
            self.estimate.without_waiters();
            self.earliest_deadline = None;
        }
        waiter
    }

    fn forget_key(&mut self, key: [u64; 2]) {
        if let Some(count) = self.per_key.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.per_key.remove(&key);
            }
        }
    }

    /// Removes the oldest request of a key, or of all keys, and rejects it: for a queue that serves the newest first.
    pub(super) fn reject_oldest(&mut self, key: Option<[u64; 2]>, now: Instant, effects: &mut Effects) -> bool {
        let matches = |waiter: &Waiter| key.is_none_or(|key| waiter.class.key == key);
        let Some(position) = self.waiters.iter().position(matches) else { return false };
        self.reject(position, now, effects);
        true
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Covers: each ask under way and each start belongs to one request of its class, or is spare.
    // -----------------------------------------------------------------------------------------------------------------

    fn take_spare(&mut self, class: Class) -> bool {
        let position = self.spare.iter().position(|spare| *spare == class);
        position.map(|position| self.spare.swap_remove(position)).is_some()
    }

    /// Gives an ask or start, whose request has left, to the next request of the class.
    fn pass_cover(&mut self, class: Class) {
        match self.next_in_order(|waiter| !waiter.is_covered && waiter.class == class) {
            Some(position) => self.waiters[position].is_covered = true,
            None => self.spare.push(class),
        }
    }

    /// Removes one cover of a class: an ask was denied, or a start is used.
    fn remove_cover(&mut self, class: Class) {
        if self.take_spare(class) {
            return;
        }
        let is_covered = |waiter: &&mut Waiter| waiter.is_covered && waiter.class == class;
        let last = if self.newest_first {
            self.waiters.iter_mut().find(is_covered)
        } else {
            self.waiters.iter_mut().rev().find(is_covered)
        };
        if let Some(waiter) = last {
            waiter.is_covered = false;
        }
    }

    /// Returns the position of the first request in the order of service that matches.
    fn next_in_order(&self, matches: impl Fn(&Waiter) -> bool) -> Option<usize> {
        if self.newest_first { self.waiters.iter().rposition(matches) } else { self.waiters.iter().position(matches) }
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Handing over starts
    // -----------------------------------------------------------------------------------------------------------------

    /// Hands a start to the first request of its class. Returns the start if there is none.
    fn hand_over(&mut self, start: Start, effects: &mut Effects) -> Option<Start> {
        let class = start.class;
        let mut reply = Box::new(Reply::Start(start));
        while let Some(position) = self.next_in_order(|waiter| waiter.class == class) {
            let waiter = self.remove(position, effects);
            match waiter.ticket.reply(reply, &mut effects.wakers) {
                Ok(()) => return None,
                // The request has left a moment ago.
                Err(returned) => reply = returned,
            }
        }
        match *reply {
            Reply::Start(start) => Some(start),
            _ => unreachable!("a start was to be handed over"),
        }
    }

    /// Takes back a start whose request did not use it, and hands it to the next request.
    pub(super) fn take_back(&mut self, start: Start, now: Instant, effects: &mut Effects) {
        // A charge counts at its start: used much later, it would count in the wrong window. A held cost counts until
        // it is settled.
        let is_usable = start.class.hold || start.at + HORIZON >= now;
        let unused = if is_usable { self.hand_over(start, effects) } else { Some(start) };
        effects.unused.extend(unused);
    }

    fn hand_over_due(&mut self, now: Instant, effects: &mut Effects) {
        while self.starts.front().is_some_and(|start| start.at <= now) {
            let Some(start) = self.starts.pop_front() else { return };
            let class = start.class;
            let unused = self.hand_over(start, effects);
            // The request's own cover has passed to another request, or is spare.
            self.remove_cover(class);
            effects.unused.extend(unused);
        }
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Asking
    // -----------------------------------------------------------------------------------------------------------------

    /// Hands over due starts, and returns what the driver must do next.
    pub(super) fn step(&mut self, now: Instant, effects: &mut Effects) -> Next {
        self.hand_over_due(now, effects);
        if let Some(order) = self.next_ask(now) {
            return Next::Ask(order);
        }
        self.expire(now, effects);
        if self.is_finished() {
            return Next::Finished;
        }
        let start = self.starts.front().map(|start| start.at);
        let ask = self.next_waiter().and_then(|position| self.next_ask_at(position, now));
        Next::Sleep(earlier(earlier(start, ask), self.earliest_deadline))
    }

    fn next_waiter(&self) -> Option<usize> {
        self.next_in_order(|waiter| !waiter.is_covered)
    }

    /// Returns the time of the next ask, `None` if it depends on the results of asks under way.
    fn next_ask_at(&self, position: usize, now: Instant) -> Option<Instant> {
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

    fn next_ask(&mut self, now: Instant) -> Option<AskOrder> {
        let position = self.next_waiter()?;
        if self.next_ask_at(position, now).is_none_or(|at| at > now) {
            return None;
        }
        let is_mixed = self.is_mixed();
        let lead = if is_mixed { self.pace.lead().min(HORIZON) } else { HORIZON };
        let waiter = &mut self.waiters[position];
        let books = !waiter.class.hold && !self.pace.is_booking && !is_mixed;
        let remaining = waiter.deadline.map(|deadline| deadline.saturating_duration_since(now));
        let max_delay = if waiter.class.hold {
            Some(Duration::ZERO)
        } else if books {
            remaining
        } else {
            Some(remaining.map_or(lead, |remaining| remaining.min(lead)))
        };
        waiter.is_covered = true;
        self.pace.asked(waiter.class.cost, books);
        let asked_at = now;
        let options = AcquireOptions { max_delay, ..waiter.options };
        let Waiter { ref ticket, class, deadline, .. } = *waiter;
        Some(AskOrder { ticket: Arc::clone(ticket), options, class, books, deadline, asked_at })
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
                self.remove_cover(order.class);
                if let Some(position) = self.position_of(order.ticket.sequence) {
                    let waiter = self.remove(position, effects);
                    let _ = waiter.ticket.reply(Box::new(Reply::Failed(error)), &mut effects.wakers);
                }
            }
        }
    }

    fn on_denied(&mut self, order: &AskOrder, decision: Decision, now: Instant, effects: &mut Effects) {
        self.remove_cover(order.class);
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
            let waits = !schedules || (!order.books && self.is_mixed());
            self.set_pace_of_denial(&decision, waits, now);
        } else {
            self.pace.denied(None, now);
        }
        let position = self.position_of(order.ticket.sequence);
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
    fn set_pace_of_denial(&mut self, decision: &Decision, waits: bool, now: Instant) {
        let retry_after = decision.retry_after().filter(|_| waits);
        self.pace.denied(retry_after.map(|wait| (wait, decision.is_estimate())), now);
    }

    fn position_of(&self, sequence: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&sequence, |waiter| waiter.ticket.sequence).ok()
    }

    /// Lets the queue ask at once: capacity was released in this process.
    pub(super) fn released(&mut self) {
        self.pace.released();
    }

    /// Gives up the asks under way, whose driver is gone. Only starts cover requests then.
    pub(super) fn abort(&mut self) {
        self.pace.abort();
        self.spare.clear();
        self.waiters.iter_mut().for_each(|waiter| waiter.is_covered = false);
        let classes: Vec<Class> = self.starts.iter().map(|start| start.class).collect();
        for class in classes {
            self.pass_cover(class);
        }
    }

    pub(super) fn take_starts(&mut self) -> Vec<Start> {
        self.starts.drain(..).collect()
    }

    pub(super) fn wake_waiters(&self, effects: &mut Effects) {
        effects.wakers.extend(self.waiters.iter().filter_map(|waiter| waiter.ticket.take_waker()));
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Rejecting
    // -----------------------------------------------------------------------------------------------------------------

    /// Rejects the requests whose deadline has passed.
    fn expire(&mut self, now: Instant, effects: &mut Effects) {
        if self.earliest_deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        let is_due = |waiter: &Waiter| waiter.deadline.is_some_and(|deadline| deadline <= now);
        while let Some(position) = self.waiters.iter().position(is_due) {
            self.reject(position, now, effects);
        }
        self.earliest_deadline = self.waiters.iter().filter_map(|waiter| waiter.deadline).min();
    }

    fn reject(&mut self, position: usize, now: Instant, effects: &mut Effects) {
        let waiter = self.remove(position, effects);
        let denial = self.latest_denial(waiter.class.key, now);
        let reply = denial.map_or_else(
            || Reply::Failed(Error::unavailable("waiting failed: the limiter did not reply in time")),
            Reply::Denied,
        );
        let _ = waiter.ticket.reply(Box::new(reply), &mut effects.wakers);
    }

    /// Returns the latest decision of the limiter as a denial at `now`.
    pub(super) fn latest_denial(&self, key: [u64; 2], now: Instant) -> Option<Decision> {
        let (decision, decided_for, at) = self.latest.as_ref()?;
        let elapsed = now.saturating_duration_since(*at);
        // Another key's own limits are not this key's.
        let decision = if *decided_for == key { decision.clone() } else { decision.most_restrictive_only() };
        let wait = match decision.verdict() {
            Verdict::ExceedsLimit => return Some(decision),
            Verdict::Allowed => Duration::ZERO,
            Verdict::AllowedAfter(wait) | Verdict::Denied { retry_after: wait } => wait.saturating_sub(elapsed),
        };
        Some(decision.into_denied(wait.max(Duration::from_micros(1))))
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn later(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.max(b)
}
