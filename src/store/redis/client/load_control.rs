//! What a worker task measures of its calls, and decides by: how many calls may be in flight, how large a batch may be,
//! and which operations cannot be answered in time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::ScriptRun;
use super::batch_weight::BatchWeight;
use super::in_flight::InFlightLimit;
use super::moving_average::MovingAverage;
use super::operation::QueuedOperation;
use super::queue::{BatchBounds, QueueLoad};
use super::windowed_min::WindowedMin;
use crate::clock::Timestamp;

pub(super) struct LoadControl {
    deadline: Duration,
    /// The start of the local time scale, in microseconds, on which the server's clock is placed.
    epoch: Instant,
    /// The calls in flight, in the order in which they were sent.
    sent_at: VecDeque<Instant>,
    calls_with_holds: usize,
    operations_in_flight: usize,
    whole_rounds: u32,
    call_time: MovingAverage,
    limit: InFlightLimit,
    batch_weight: BatchWeight,
    server: ServerClock,
    /// When the first of the last calls was sent whose replies have all come too late.
    late_since: Option<Instant>,
    /// Only a trial is sent: one decision at a time, until a reply comes in time.
    ///
    /// Otherwise a link that is often slower than the deadline would charge nearly every decision without a caller.
    is_on_trial: bool,
}

/// A call in flight.
pub(super) struct SentCall {
    at: Instant,
    operations: usize,
    weight: usize,
    /// The latest deadline of its decisions.
    answer_by: Option<Instant>,
    /// The number of calls in flight, with this one.
    in_flight: usize,
    has_holds: bool,
}

impl LoadControl {
    /// Each call in flight may create a session on the same key, and a key has a limited number of sessions.
    const MAX_CALLS_WITH_HOLDS: usize = 4;
    /// The fewest operations that travel in two calls. Benchmark: `redis callers 8`, 14 %.
    const MIN_SPLIT: usize = 8;
    /// For so many rounds callers are not answered in portions after calls have ended together.
    const WHOLE_ROUNDS: u32 = 8;

    pub(super) fn new(deadline: Duration) -> Self {
        let now = Instant::now();
        Self {
            deadline,
            epoch: now,
            sent_at: VecDeque::new(),
            calls_with_holds: 0,
            operations_in_flight: 0,
            whole_rounds: 0,
            call_time: MovingAverage::default(),
            limit: InFlightLimit::new(deadline, now),
            batch_weight: BatchWeight::new(),
            server: ServerClock::new(now),
            late_since: None,
            is_on_trial: false,
        }
    }

    /// Forgets the link and the server, but not the cost of operations: a new connection may lead elsewhere.
    /// If the last connection was lost (`is_lost`), or its last reply was late, the first call on the new one is a trial.
    pub(super) fn reset_connection(&mut self, is_lost: bool) {
        let batch_weight = std::mem::replace(&mut self.batch_weight, BatchWeight::new());
        let is_on_trial = is_lost || self.is_on_trial || self.late_since.is_some();
        *self = Self { batch_weight, is_on_trial, ..Self::new(self.deadline) };
    }

    /// Whether another call may be sent for the waiting operations.
    pub(super) fn accepts_call(&mut self, waiting: QueueLoad) -> bool {
        let in_flight = self.sent_at.len();
        if waiting.weight == 0 && !waiting.has_renewals || !mistake!(CallsFollowStalledOne) && self.is_stalled() {
            return false;
        }
        if in_flight >= self.limit.full() {
            self.limit.record_limited();
        }
        let is_full = waiting.weight >= self.batch_weight.max();
        in_flight < if is_full { self.limit.full() } else { self.limit.partial() }
            && !(waiting.has_holds && self.calls_with_holds >= Self::MAX_CALLS_WITH_HOLDS)
    }

    /// Whether a call takes so much longer than usual that the server, or the connection, seems to be stalled.
    ///
    /// Replies arrive in order, so other calls would wait too. Decisions wait in the queue instead, uncharged.
    fn is_stalled(&self) -> bool {
        let usual = self.call_time.get();
        let limit = usual + self.deadline.saturating_sub(usual) / 2;
        self.sent_at.front().is_some_and(|sent_at| sent_at.elapsed() > limit)
    }

    /// Returns how many of these waiting answers are given before the next call is sent: see `worker`.
    pub(super) fn portion(&mut self, answers: usize) -> usize {
        let operations = answers + self.operations_in_flight;
        // With long calls the client's own time does not matter.
        if operations < Self::MIN_SPLIT || !self.limit.has_short_calls() {
            return answers;
        }
        if self.operations_in_flight == 0 && self.whole_rounds > 0 {
            self.whole_rounds -= 1;
            return answers.min(self.batch_weight.max());
        }
        operations.div_ceil(2).min(self.batch_weight.max())
    }

    /// Records that all calls have ended together, so that none overlapped with the work of the client.
    pub(super) fn record_together(&mut self) {
        self.whole_rounds = Self::WHOLE_ROUNDS;
    }

    /// What a batch that is sent now may contain.
    pub(super) fn admission(&self) -> BatchBounds {
        BatchBounds {
            now: Instant::now(),
            deadline: self.deadline,
            call_time: self.call_time.get(),
            is_probe: self.sent_at.is_empty(),
            max_weight: self.batch_weight.max(),
            max_decisions: match self.sent_at.len() {
                _ if !self.is_on_trial => usize::MAX,
                0 => 1,
                _ => 0,
            },
        }
    }

    /// Returns the latest time of the server at which a script can start and its reply still arrive by `answer_by`.
    pub(super) fn latest_start(&self, answer_by: Instant) -> Option<Timestamp> {
        // The margin must not fail decisions that could be answered, if the way back is sometimes slow.
        let margin = (self.server.excess.get() * 2).min(self.deadline / 4);
        let start = self.micros(answer_by - margin) - self.server.return_micros.get()?;
        u64::try_from(start).ok().map(Timestamp::from_micros)
    }

    pub(super) fn record_sent(&mut self, batch: &[QueuedOperation]) -> SentCall {
        let at = Instant::now();
        self.sent_at.push_back(at);
        let has_holds = batch.iter().any(QueuedOperation::is_hold);
        self.calls_with_holds += usize::from(has_holds);
        let weight = batch.iter().map(QueuedOperation::total_weight).sum();
        let answer_by = batch.iter().filter_map(|operation| operation.answer_by).max();
        self.operations_in_flight += batch.len();
        SentCall { at, operations: batch.len(), weight, answer_by, in_flight: self.sent_at.len(), has_holds }
    }

    /// Records the end of a call, and whether the server replied.
    pub(super) fn record_ended(&mut self, call: &SentCall, replied: bool, run: Option<&ScriptRun>) {
        let now = Instant::now();
        self.operations_in_flight = self.operations_in_flight.saturating_sub(call.operations);
        if let (Ok(index), true) = (self.sent_at.binary_search(&call.at), replied || !mistake!(LostCallStaysInFlight)) {
            // Calls that were sent at the same instant are interchangeable.
            self.sent_at.remove(index);
        }
        self.calls_with_holds -= usize::from(call.has_holds && (replied || !mistake!(LostCallKeepsPermit)));
        if !replied {
            return;
        }
        let is_uncharged = run.is_some_and(|run| run.late > 0);
        if let Some(answer_by) = call.answer_by.filter(|_| !is_uncharged) {
            self.record_timeliness(call.at, now <= answer_by);
        }
        // Nothing was sent but this call, because no other could be answered in time: the estimate is out of date.
        if call.in_flight == 1 && self.call_time.get() >= self.deadline {
            self.call_time = MovingAverage::default();
        }
        let sent_at = run.map_or(call.at, |run| run.sent_at);
        self.call_time.record(now - sent_at);
        self.limit.record(sent_at, call.in_flight, now);
        if let Some(run) = run {
            let (sent, received) = (self.micros(sent_at), self.micros(now));
            // A script that makes no decisions says nothing about their cost.
            let weight = if run.late > 0 { 0 } else { call.weight };
            if let Some((weight, span)) = self.server.record(sent, received, run.started_at, weight, now) {
                self.batch_weight.record(weight, span);
            }
        }
    }

    /// Records whether the reply to a charging call came in time.
    fn record_timeliness(&mut self, sent_at: Instant, is_timely: bool) {
        if is_timely {
            (self.late_since, self.is_on_trial) = (None, false);
            return;
        }
        // A stall that is shorter than the deadline makes no later call late.
        let since = *self.late_since.get_or_insert(sent_at);
        self.is_on_trial |= sent_at.saturating_duration_since(since) >= self.deadline;
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
