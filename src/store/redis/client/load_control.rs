//! What a worker task measures of its calls, and decides by: how many calls may be in flight, how large a batch may be,
//! and which operations cannot be answered in time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::ScriptRun;
use super::batch_weight::BatchWeight;
use super::in_flight::InFlightLimit;
use super::moving_average::MovingAverage;
use super::queue::Admission;
use super::windowed_min::WindowedMin;
use crate::clock::Timestamp;

pub(super) struct LoadControl {
    deadline: Duration,
    /// The start of the local time scale, in microseconds, on which the server's clock is placed.
    epoch: Instant,
    /// The calls in flight, in the order in which they were sent.
    sent_at: VecDeque<Instant>,
    call_time: MovingAverage,
    limit: InFlightLimit,
    batch_weight: BatchWeight,
    server: ServerClock,
}

/// A call in flight.
#[derive(Clone, Copy)]
pub(super) struct SentCall {
    at: Instant,
    weight: usize,
    /// The number of calls in flight, with this one.
    in_flight: usize,
}

impl LoadControl {
    pub(super) fn new(deadline: Duration) -> Self {
        let now = Instant::now();
        Self {
            deadline,
            epoch: now,
            sent_at: VecDeque::new(),
            call_time: MovingAverage::default(),
            limit: InFlightLimit::new(deadline, now),
            batch_weight: BatchWeight::new(),
            server: ServerClock::new(now),
        }
    }

    /// Forgets the link and the server, but not the cost of operations: a new connection may lead elsewhere.
    pub(super) fn reset_connection(&mut self) {
        let batch_weight = std::mem::replace(&mut self.batch_weight, BatchWeight::new());
        *self = Self { batch_weight, ..Self::new(self.deadline) };
    }

    /// Whether another call may be sent, if the waiting operations have this weight.
    pub(super) fn accepts_call(&mut self, waiting: usize) -> bool {
        let in_flight = self.sent_at.len();
        if waiting > 0 && in_flight >= self.limit.full() {
            self.limit.record_limited();
        }
        let max = if waiting >= self.batch_weight.max() { self.limit.full() } else { self.limit.partial() };
        waiting > 0 && in_flight < max
    }

    /// What a batch that is sent now may contain.
    pub(super) fn admission(&self) -> Admission {
        let now = Instant::now();
        // Replies arrive in order, so a call takes at least as long as an earlier call has waited by now.
        let oldest = self.sent_at.front().map_or(Duration::ZERO, |sent_at| now - *sent_at);
        Admission {
            now,
            deadline: self.deadline,
            call_time: self.call_time.get().max(oldest),
            is_probe: self.sent_at.is_empty(),
            max_weight: self.batch_weight.max(),
        }
    }

    /// Returns the latest time of the server at which a script can start and its reply still arrive by `answer_by`.
    pub(super) fn latest_start(&self, answer_by: Instant) -> Option<Timestamp> {
        // The margin must not fail decisions that could be answered, if the way back is sometimes slow.
        let margin = (self.server.excess.get() * 2).min(self.deadline / 4);
        let start = self.micros(answer_by - margin) - self.server.return_micros.get()?;
        u64::try_from(start).ok().map(Timestamp::from_micros)
    }

    pub(super) fn record_sent(&mut self, weight: usize) -> SentCall {
        let at = Instant::now();
        self.sent_at.push_back(at);
        SentCall { at, weight, in_flight: self.sent_at.len() }
    }

    /// Records the end of a call, and whether the server replied.
    pub(super) fn record_ended(&mut self, call: SentCall, replied: bool, run: Option<&ScriptRun>) {
        let now = Instant::now();
        if let Ok(index) = self.sent_at.binary_search(&call.at) {
            self.sent_at.remove(index);
        }
        if !replied {
            return;
        }
        // Nothing was sent but this call, because no other could be answered in time: the estimate is out of date.
        if call.in_flight == 1 && self.call_time.get() >= self.deadline {
            self.call_time = MovingAverage::default();
        }
        self.call_time.record(now - call.at);
        self.limit.record(call.at, call.in_flight, now);
        if let Some(run) = run {
            let (sent, received) = (self.micros(call.at), self.micros(now));
            // A script that makes no decisions says nothing about their cost.
            let weight = if run.was_late { 0 } else { call.weight };
            if let Some((weight, span)) = self.server.record(sent, received, run.started_at, weight, now) {
                self.batch_weight.record(weight, span);
            }
        }
    }

    fn micros(&self, at: Instant) -> i64 {
        let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        match at.checked_duration_since(self.epoch) {
            Some(span) => micros(span),
            None => -micros(self.epoch - at),
        }
    }
}

/// The server's clock, as the replies show it. All differences between the two clocks include the same unknown offset.
struct ServerClock {
    /// From sending a call to the start of its script: the least of recent calls.
    travel_micros: WindowedMin,
    /// From the start of a script to the arrival of its reply: the least of recent calls.
    return_micros: WindowedMin,
    /// How much longer than that it takes on average.
    excess: MovingAverage,
    /// The start of the last script, and its weight.
    last: Option<(i64, usize)>,
}

impl ServerClock {
    fn new(now: Instant) -> Self {
        Self {
            travel_micros: WindowedMin::new(now),
            return_micros: WindowedMin::new(now),
            excess: MovingAverage::default(),
            last: None,
        }
    }

    /// Records a call. Returns the weight of the call before it, and for how long that one occupied the server, if this
    /// call was waiting meanwhile.
    fn record(
        &mut self,
        sent: i64,
        received: i64,
        started_at: Timestamp,
        weight: usize,
        now: Instant,
    ) -> Option<(usize, Duration)> {
        let started = i64::try_from(started_at.as_micros()).ok()?;
        self.travel_micros.record(started - sent, now);
        self.return_micros.record(received - started, now);
        let excess = received - started - self.return_micros.get()?;
        self.excess.record(Duration::from_micros(u64::try_from(excess).ok()?));
        let (previous, weight) = self.last.replace((started, weight))?;
        let arrived = sent + self.travel_micros.get()?;
        let span = u64::try_from(started - previous).ok()?;
        (arrived <= previous).then(|| (weight, Duration::from_micros(span)))
    }
}
