use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use super::pace::{Lead, Spacing, StatedZero};
use super::signal::GateSignal;
use crate::runtime::Instant;

/// The wait after a rejection that states no time.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);
/// A gate that a response has closed for longer lets a request through after this time.
const MAX_PAUSE: Duration = Duration::from_secs(3_600);
/// From this number of gates on, new ones remove those that nothing needs.
const KEPT_GATES: usize = 1_000;
/// How long a start is kept for a request whose future is not polled.
pub(super) const UNUSED_START: Duration = Duration::from_secs(1);

/// The gates of one layer by the hash of their keys.
#[derive(Debug, Default)]
pub(super) struct Gates {
    hasher: RandomState,
    gates: Mutex<AllGates>,
}

#[derive(Debug, Default)]
struct AllGates {
    by_key: HashMap<u64, OneGate>,
    /// The number of gates from which on the next insertion removes those that nothing needs, if it is above [`KEPT_GATES`].
    full_at: usize,
    /// The number of pauses of all gates.
    pauses: u64,
    /// The number of requests that have waited at any gate.
    arrivals: u64,
}

/// A gate. It is open if no request waits and no pause is in force.
#[derive(Debug)]
struct OneGate {
    /// The end of the pause after a rejection.
    opens_at: Instant,
    /// The time for which nothing remains, by a served response.
    zero: Option<StatedZero>,
    /// The number of the pause. Responses to requests that started before it say nothing about the time after it.
    pause: u64,
    last_start: Option<Instant>,
    /// The number of requests that the server would process now, by its last response.
    credit: u64,
    /// The maximum number of requests in flight while requests wait. It is 1 after a pause, and grows by 1 with each
    /// response: it doubles in each round trip.
    window: usize,
    /// The requests in flight that started after the pause, and all.
    in_flight: usize,
    unanswered: u64,
    spacing: Spacing,
    lead: Lead,
    /// Whether the server states times. When it states none, less than a second is left.
    states_times: bool,
    /// The waiting requests in order of arrival.
    waiting: BTreeMap<u64, Option<Waker>>,
    /// The requests that may start.
    starting: BTreeMap<u64, Started>,
}

/// The start of a request, by which its response is judged.
#[derive(Clone, Copy, Debug)]
struct Started {
    at: Instant,
    /// The number of the pause after which the request started.
    pause: u64,
    /// The time since the start before.
    gap: Duration,
    /// Whether only the learned spacing allowed the start.
    is_spaced: bool,
    /// The time before the end of a stated time.
    lead: Option<Duration>,
}

/// A request that passed a gate. Dropped without a signal, the request failed or its future was dropped.
#[derive(Debug)]
pub(super) struct Pass {
    gates: Arc<Gates>,
    key: u64,
    /// `None` after the end.
    started: Option<Started>,
}

/// A waiting request. Dropped, it leaves the queue.
#[derive(Debug)]
pub(super) struct Waiter {
    gates: Arc<Gates>,
    key: u64,
    arrival: u64,
}

impl Gates {
    pub(super) fn hash(&self, key: &impl Hash) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Passes an open gate, or joins the queue.
    pub(super) fn arrive(self: &Arc<Self>, key: u64) -> Result<Pass, Waiter> {
        let now = Instant::now();
        let start = self.with(|gates| {
            let gate = gates.gate(key, now);
            if gate.is_open(now) {
                return Ok(gate.start(now, false));
            }
            gates.arrivals += 1;
            let arrival = gates.arrivals;
            gates.gate(key, now).waiting.insert(arrival, None);
            Err(arrival)
        });
        match start {
            Ok(started) => Ok(Pass::new(self, key, started)),
            Err(arrival) => Err(Waiter { gates: Arc::clone(self), key, arrival }),
        }
    }

    fn signal(&self, key: u64, started: Started, signal: Option<GateSignal>, now: Instant) {
        let wakers = self.with(|gates| {
            let pause = gates.pauses + 1;
            let gate = gates.gate(key, now);
            if gate.end(started, signal, pause, now) {
                gates.pauses = pause;
            }
            let gate = gates.gate(key, now);
            let mut wakers = gate.start_next(now);
            wakers.extend(gate.waker_of_first());
            wakers
        });
        wakers.into_iter().for_each(Waker::wake);
    }

    fn with<T>(&self, f: impl FnOnce(&mut AllGates) -> T) -> T {
        // A panic cannot leave the state half changed: only a waker can panic, and wakers are called without the lock.
        f(&mut self.gates.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AllGates {
    fn gate(&mut self, key: u64, now: Instant) -> &mut OneGate {
        if self.by_key.len() >= self.full_at.max(KEPT_GATES) && !self.by_key.contains_key(&key) {
            self.by_key.retain(|_, gate| !gate.is_idle(now));
            self.full_at = 2 * self.by_key.len();
        }
        let pauses = &mut self.pauses;
        self.by_key.entry(key).or_insert_with(|| {
            *pauses += 1;
            OneGate::new(now, *pauses)
        })
    }
}

impl OneGate {
    fn new(now: Instant, pause: u64) -> Self {
        Self {
            opens_at: now,
            zero: None,
            pause,
            last_start: None,
            credit: 0,
            window: 1,
            in_flight: 0,
            unanswered: 0,
            spacing: Spacing::default(),
            lead: Lead::default(),
            states_times: false,
            waiting: BTreeMap::new(),
            starting: BTreeMap::new(),
        }
    }

    /// Whether a request that arrives passes.
    fn is_open(&self, now: Instant) -> bool {
        let is_zero = self.zero.is_some_and(|zero| now < self.lead.idle_start(zero));
        now >= self.opens_at && !is_zero && self.waiting.is_empty() && self.starting.is_empty()
    }

    /// Whether the gate is as a new one, but for what it has learned.
    fn is_idle(&self, now: Instant) -> bool {
        self.is_open(now) && self.unanswered == 0
    }

    /// Returns when the first waiting request may start, as far as the pauses say.
    fn paused_until(&self) -> Instant {
        self.zero.map_or(self.opens_at, |zero| self.opens_at.max(self.lead.waiting_start(zero)))
    }

    fn start(&mut self, now: Instant, is_spaced: bool) -> Started {
        let gap = self.last_start.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let zero = self.zero.take();
        let lead = zero.map(|zero| zero.from_response.saturating_duration_since(now));
        self.last_start = Some(now);
        (self.in_flight, self.unanswered) = (self.in_flight + 1, self.unanswered + 1);
        self.credit = self.credit.saturating_sub(1);
        Started { at: now, pause: self.pause, gap, is_spaced, lead }
    }

    /// Counts the end of a request. Returns whether the request started after the latest pause.
    fn answered(&mut self, started: Started) -> bool {
        let is_current = started.pause == self.pause;
        self.unanswered = self.unanswered.saturating_sub(1);
        self.in_flight = self.in_flight.saturating_sub(usize::from(is_current));
        is_current
    }

    /// Applies the end of a request. Returns whether a pause begins, which has the number `pause` then.
    fn end(&mut self, started: Started, signal: Option<GateSignal>, pause: u64, now: Instant) -> bool {
        let is_current = self.answered(started);
        let (remaining, zero_for) = match signal {
            None => return false,
            Some(rejected @ (GateSignal::Rejected(_) | GateSignal::TooFast)) => {
                if is_current {
                    match started.lead {
                        Some(lead) => self.lead.rejected(lead),
                        None => self.spacing.rejected(started.gap, started.is_spaced, now),
                    }
                    self.close(pause);
                }
                let wait = match rejected {
                    GateSignal::Rejected(wait) => wait.unwrap_or(DEFAULT_PAUSE).min(MAX_PAUSE),
                    _ if self.states_times => DEFAULT_PAUSE,
                    _ => self.spacing.interval(),
                };
                // If the request started before the pause, the slow start goes on.
                self.opens_at = self.opens_at.max(now.checked_add(wait).unwrap_or(now));
                return is_current;
            }
            Some(GateSignal::ServedLast(time)) => {
                self.states_times = true;
                (Some(0), Some(time.min(MAX_PAUSE)))
            }
            Some(GateSignal::Served { remaining: Some(0) }) if self.states_times => (Some(0), Some(Lead::ROUNDING)),
            Some(GateSignal::Served { remaining }) => (remaining, None),
        };
        if is_current {
            self.window = self.window.saturating_add(1);
            self.credit = remaining.unwrap_or_default().saturating_sub(self.unanswered);
            if started.is_spaced || remaining.is_some_and(|remaining| remaining > 0) {
                self.spacing.served(started.at, started.is_spaced, now);
            }
            if let Some(lead) = started.lead {
                self.lead.served(lead);
            }
        }
        let Some(time) = zero_for else { return false };
        let end = |from: Instant| from.checked_add(time).unwrap_or(from);
        let latest = |end: Instant, known: Option<Instant>| known.map_or(end, |known| known.max(end));
        self.zero = Some(StatedZero {
            from_response: latest(end(now), self.zero.map(|zero| zero.from_response)),
            from_start: latest(end(started.at), self.zero.map(|zero| zero.from_start)),
        });
        if is_current {
            self.close(pause);
        }
        is_current
    }

    /// Begins a pause. Requests that may start and have not started wait again, at their places.
    fn close(&mut self, pause: u64) {
        for (arrival, started) in std::mem::take(&mut self.starting) {
            self.answered(started);
            self.waiting.insert(arrival, None);
        }
        (self.pause, self.credit, self.window, self.in_flight) = (pause, 0, 1, 0);
    }

    /// Returns when the next request may start, `None` if not before a response.
    fn next_start(&self) -> Option<Instant> {
        if self.in_flight >= self.window {
            return None;
        }
        // A server that states times states each zero: until then its responses say what may start.
        let interval = if self.states_times { Spacing::MAX } else { self.spacing.interval() };
        let spaced = match self.last_start {
            // Not for the first request after a pause, and not for one that the server has capacity for.
            Some(last) if self.window > 1 && self.credit == 0 => last.checked_add(interval),
            _ => None,
        };
        Some(self.paused_until().max(spaced.unwrap_or(self.opens_at)))
    }

    /// Lets waiting requests start, and returns their wakers, and the next request's waker if its time has changed.
    fn start_next(&mut self, now: Instant) -> Vec<Waker> {
        // A request whose future is not polled must not block those behind it.
        let is_unused = |started: &Started| now.saturating_duration_since(started.at) >= UNUSED_START;
        while let Some(entry) = self.starting.first_entry().filter(|entry| is_unused(entry.get())) {
            let started = entry.remove();
            self.answered(started);
        }

        let mut wakers = Vec::new();
        while self.next_start().is_some_and(|start| now >= start)
            && let Some((arrival, waker)) = self.waiting.pop_first()
        {
            let is_spaced = self.credit == 0 && self.window > 1;
            let started = self.start(now, is_spaced);
            self.starting.insert(arrival, started);
            wakers.extend(waker);
        }
        if !wakers.is_empty() {
            wakers.extend(self.waker_of_first());
        }
        wakers
    }

    fn waker_of_first(&mut self) -> Option<Waker> {
        self.waiting.first_entry()?.get_mut().take()
    }
}

impl Waiter {
    /// Asks for a start. The waker is called when the request may start earlier than the returned time.
    pub(super) fn start(&self, now: Instant, waker: &Waker) -> Result<Pass, Instant> {
        let (start, wakers) = self.gates.with(|gates| {
            let gate = gates.gate(self.key, now);
            let mut wakers = gate.start_next(now);
            let start = gate.starting.remove(&self.arrival);
            // A start that was not used in time has gone to another request. If the gate has closed since, the request
            // waits again.
            if start.is_none() && (gate.paused_until() > now || gate.waiting.contains_key(&self.arrival)) {
                gate.waiting.insert(self.arrival, Some(waker.clone()));
                let is_first = gate.waiting.first_key_value().is_some_and(|(first, _)| *first == self.arrival);
                let next = gate.next_start().filter(|next| *next > now && is_first);
                let paused_until = Some(gate.paused_until()).filter(|end| *end > now);
                return (Err(next.or(paused_until).or_else(|| now.checked_add(UNUSED_START)).unwrap_or(now)), wakers);
            }
            let start = start.unwrap_or_else(|| gate.start(now, false));
            wakers.extend(gate.start_next(now));
            (Ok(start), wakers)
        });
        wakers.into_iter().for_each(Waker::wake);
        start.map(|started| Pass::new(&self.gates, self.key, started))
    }

    /// Returns how long the gate stays closed.
    pub(super) fn closed_for(&self, now: Instant) -> Duration {
        self.gates.with(|gates| gates.gate(self.key, now).paused_until().saturating_duration_since(now))
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let now = Instant::now();
        let wakers = self.gates.with(|gates| {
            let gate = gates.gate(self.key, now);
            gate.waiting.remove(&self.arrival);
            if let Some(started) = gate.starting.remove(&self.arrival) {
                gate.answered(started);
            }
            let mut wakers = gate.start_next(now);
            wakers.extend(gate.waker_of_first());
            wakers
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Pass {
    fn new(gates: &Arc<Gates>, key: u64, started: Started) -> Self {
        Self { gates: Arc::clone(gates), key, started: Some(started) }
    }

    /// Applies what the response says.
    pub(super) fn finish(mut self, signal: GateSignal) {
        self.end(Some(signal));
    }

    fn end(&mut self, signal: Option<GateSignal>) {
        if let Some(started) = self.started.take() {
            self.gates.signal(self.key, started, signal, Instant::now());
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.end(None);
    }
}
