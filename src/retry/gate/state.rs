use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use super::signal::GateSignal;
use crate::runtime::Instant;

/// The wait after a rejection that states no time.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);
/// A gate that a response has closed for longer lets a request through after this time.
const MAX_PAUSE: Duration = Duration::from_secs(3_600);
/// From this number of gates on, a new one removes those that nothing needs.
const KEPT_GATES: usize = 1_000;
/// How long a start is kept for a request whose future is not polled.
pub(super) const UNUSED_START: Duration = Duration::from_secs(1);

/// The gates of one layer by the hash of their keys. An open gate takes no memory.
#[derive(Debug, Default)]
pub(super) struct Gates {
    hasher: RandomState,
    gates: Mutex<Closed>,
}

#[derive(Debug, Default)]
struct Closed {
    by_key: HashMap<u64, ClosedGate>,
    /// The number of pauses of all gates.
    pauses: u64,
    /// The number of requests that have waited at any gate.
    arrivals: u64,
}

/// A gate from a pause until all requests that waited have started.
#[derive(Debug)]
struct ClosedGate {
    opens_at: Instant,
    /// The number of the pause. Responses to requests that started before it do not open the gate further.
    pause: u64,
    /// The number of requests that the server would process now, by its last response.
    remaining: u64,
    /// The maximum number of requests in flight. It is 1 after a pause, and grows by 1 with each response: it doubles in
    /// each round trip.
    window: usize,
    in_flight: usize,
    /// The waiting requests in order of arrival.
    waiting: BTreeMap<u64, Option<Waker>>,
    /// The requests that may start, and since when.
    starting: BTreeMap<u64, Instant>,
}

/// A request that passed a gate. Dropped without a signal, the request failed or its future was dropped.
#[derive(Debug)]
pub(super) struct Pass {
    gates: Arc<Gates>,
    key: u64,
    /// The number of the pause after which the request started, `None` if the gate was open.
    pause: Option<u64>,
}

/// A waiting request. Dropped, it leaves the queue.
#[derive(Debug)]
pub(super) struct Waiter {
    gates: Arc<Gates>,
    key: u64,
    arrival: u64,
}

/// The result of asking for a start.
pub(super) enum Start {
    Now(Pass),
    /// Not before this time, except if the waker is called.
    NotBefore(Instant),
}

impl Gates {
    pub(super) fn hash(&self, key: &impl Hash) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Returns how long the gate stays closed.
    pub(super) fn closed_for(&self, key: u64, now: Instant) -> Duration {
        self.with(|closed| {
            closed.by_key.get(&key).map_or(Duration::ZERO, |gate| gate.opens_at.saturating_duration_since(now))
        })
    }

    /// Passes an open gate, or joins the queue.
    pub(super) fn arrive(self: &Arc<Self>, key: u64) -> Result<Pass, Waiter> {
        let arrival = self.with(|closed| {
            let gate = closed.by_key.get_mut(&key)?;
            closed.arrivals += 1;
            gate.waiting.insert(closed.arrivals, None);
            Some(closed.arrivals)
        });
        match arrival {
            None => Ok(Pass { gates: Arc::clone(self), key, pause: None }),
            Some(arrival) => Err(Waiter { gates: Arc::clone(self), key, arrival }),
        }
    }

    fn signal(&self, key: u64, started_after: Option<u64>, signal: Option<GateSignal>, now: Instant) {
        let pause = match signal {
            None | Some(GateSignal::Served { .. }) => None,
            Some(GateSignal::ServedLast(pause)) => Some(pause),
            Some(GateSignal::Rejected(pause)) => Some(pause.unwrap_or(DEFAULT_PAUSE)),
        };
        let opens_at = pause.and_then(|pause| now.checked_add(pause.min(MAX_PAUSE)));
        let wakers = self.with(|closed| {
            if let Some(gate) = closed.by_key.get_mut(&key) {
                let is_of_this_pause = started_after == Some(gate.pause);
                if is_of_this_pause {
                    gate.in_flight = gate.in_flight.saturating_sub(1);
                }
                match opens_at {
                    Some(opens_at) if is_of_this_pause => {
                        closed.pauses += 1;
                        gate.close_again(opens_at, closed.pauses);
                    }
                    // The request started before the pause, so the slow start goes on.
                    Some(opens_at) => gate.opens_at = gate.opens_at.max(opens_at),
                    None if is_of_this_pause => gate.grow(signal),
                    None => {}
                }
            } else if let Some(opens_at) = opens_at {
                closed.close(key, opens_at, now);
            }
            closed.start_next(key, now)
        });
        wakers.into_iter().for_each(Waker::wake);
    }

    fn with<T>(&self, f: impl FnOnce(&mut Closed) -> T) -> T {
        // A panic cannot leave the state half changed: only a waker can panic, and wakers are called without the lock.
        f(&mut self.gates.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Closed {
    fn close(&mut self, key: u64, opens_at: Instant, now: Instant) {
        // A gate at which nothing arrives after its pause is left in the map.
        if self.by_key.len() >= KEPT_GATES {
            self.by_key.retain(|_, gate| gate.opens_at > now || !gate.waiting.is_empty() || !gate.starting.is_empty());
        }
        self.pauses += 1;
        self.by_key.insert(key, ClosedGate::new(opens_at, self.pauses));
    }

    /// Lets waiting requests start as far as the window allows, and returns their wakers. Removes the gate if nothing
    /// waits any more.
    fn start_next(&mut self, key: u64, now: Instant) -> Vec<Waker> {
        let Some(gate) = self.by_key.get_mut(&key) else { return Vec::new() };
        if now < gate.opens_at {
            return Vec::new();
        }
        let wakers = gate.start_next(now);
        // Not before the first response after the pause: an open gate would let any number of requests start.
        if gate.waiting.is_empty() && gate.starting.is_empty() && gate.window > 1 {
            self.by_key.remove(&key);
        }
        wakers
    }
}

impl ClosedGate {
    fn new(opens_at: Instant, pause: u64) -> Self {
        Self {
            opens_at,
            pause,
            remaining: u64::MAX,
            window: 1,
            in_flight: 0,
            waiting: BTreeMap::new(),
            starting: BTreeMap::new(),
        }
    }

    fn close_again(&mut self, opens_at: Instant, pause: u64) {
        self.opens_at = self.opens_at.max(opens_at);
        (self.pause, self.remaining, self.window, self.in_flight) = (pause, u64::MAX, 1, 0);
        // Requests that may start and have not started wait again, at their places.
        self.waiting.extend(std::mem::take(&mut self.starting).into_keys().map(|arrival| (arrival, None)));
    }

    fn grow(&mut self, signal: Option<GateSignal>) {
        if let Some(GateSignal::Served { remaining }) = signal {
            self.window = self.window.saturating_add(1);
            self.remaining = remaining.unwrap_or(u64::MAX).max(1);
        }
    }

    fn start_next(&mut self, now: Instant) -> Vec<Waker> {
        // A request whose future is not polled must not block those behind it.
        let unused = |since: Instant| now.saturating_duration_since(since) >= UNUSED_START;
        let before = self.starting.len();
        self.starting.retain(|_, since| !unused(*since));
        self.in_flight = self.in_flight.saturating_sub(before - self.starting.len());

        let mut wakers = Vec::new();
        // Each request in flight may take a part of what remains.
        let window = self.window.min(usize::try_from(self.remaining).unwrap_or(usize::MAX));
        while self.in_flight < window
            && let Some((arrival, waker)) = self.waiting.pop_first()
        {
            self.in_flight += 1;
            self.starting.insert(arrival, now);
            wakers.extend(waker);
        }
        wakers
    }
}

impl Waiter {
    /// Asks for a start. The waker is called when the request may start earlier than the returned time.
    pub(super) fn start(&self, now: Instant, waker: &Waker) -> Start {
        let (start, wakers) = self.gates.with(|closed| {
            let mut wakers = closed.start_next(self.key, now);
            let Some(gate) = closed.by_key.get_mut(&self.key) else { return (Ok(None), wakers) };
            let is_starting = gate.starting.remove(&self.arrival).is_some();
            // A start that was not used in time has gone to another request. If the gate has closed since, the request
            // waits again.
            if !is_starting && (gate.opens_at > now || gate.waiting.contains_key(&self.arrival)) {
                gate.waiting.insert(self.arrival, Some(waker.clone()));
                let retry_at = if gate.opens_at > now { Some(gate.opens_at) } else { now.checked_add(UNUSED_START) };
                return (Err(retry_at.unwrap_or(now)), wakers);
            }
            gate.in_flight += usize::from(!is_starting);
            let pause = gate.pause;
            wakers.extend(closed.start_next(self.key, now));
            (Ok(Some(pause)), wakers)
        });
        wakers.into_iter().filter(|other| !other.will_wake(waker)).for_each(Waker::wake);
        match start {
            Ok(pause) => Start::Now(Pass { gates: Arc::clone(&self.gates), key: self.key, pause }),
            Err(not_before) => Start::NotBefore(not_before),
        }
    }

    /// Returns how long the gate stays closed.
    pub(super) fn closed_for(&self, now: Instant) -> Duration {
        self.gates.closed_for(self.key, now)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let now = Instant::now();
        let wakers = self.gates.with(|closed| {
            let Some(gate) = closed.by_key.get_mut(&self.key) else { return Vec::new() };
            gate.waiting.remove(&self.arrival);
            if gate.starting.remove(&self.arrival).is_some() {
                gate.in_flight = gate.in_flight.saturating_sub(1);
            }
            closed.start_next(self.key, now)
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Pass {
    /// Applies what the response says.
    pub(super) fn finish(mut self, signal: GateSignal) {
        self.end(Some(signal));
    }

    fn end(&mut self, signal: Option<GateSignal>) {
        self.gates.signal(self.key, self.pause, signal, Instant::now());
        // An ended pass belongs to no pause, so its drop changes nothing.
        self.pause = None;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.pause.is_some() {
            self.end(None);
        }
    }
}
