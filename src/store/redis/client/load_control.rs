//! What a worker task measures of its calls, and decides by: how many calls may be in flight, how large a batch may be,
//! and which operations cannot be answered in time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::{LatestStart, ScriptRun};
use super::batch_weight::BatchWeight;
use super::operation::QueuedOperation;
use super::queue::BatchBounds;
use crate::clock::Timestamp;

pub(super) struct LoadControl {
    deadline: Duration,
    /// The start of the local time scale, in microseconds, on which the server's clock is placed.
    epoch: Instant,
    /// The calls in flight, in the order in which they were sent.
    sent_at: VecDeque<Instant>,
    operations_in_flight: usize,
    call_time: MovingAverage,
    batch_weight: BatchWeight,
    server: ServerClock,
}

/// A call in flight.
pub(super) struct SentCall {
    at: Instant,
    operations: usize,
    weight: usize,
    /// No other call was in flight.
    is_only: bool,
}

impl LoadControl {
    /// The server then always has a call to run, while other calls are on a fast network or their replies are
    /// processed.
    const MIN_CALLS: usize = 4;
    /// After so many deadlines without a reply, the server's clock may have gained any time.
    const MAX_AGE: u32 = 4;

    pub(super) fn new(deadline: Duration) -> Self {
        let now = Instant::now();
        Self {
            deadline,
            epoch: now,
            sent_at: VecDeque::new(),
            operations_in_flight: 0,
            call_time: MovingAverage::default(),
            batch_weight: BatchWeight::new(),
            server: ServerClock::new(now),
        }
    }

    /// Forgets the link and the server, but not the cost of operations: a new connection may lead elsewhere.
    pub(super) fn reset_connection(&mut self) {
        let batch_weight = std::mem::replace(&mut self.batch_weight, BatchWeight::new());
        *self = Self { batch_weight, ..Self::new(self.deadline) };
    }

    /// Whether no call is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.sent_at.is_empty()
    }

    /// Whether another call may be sent for waiting operations of this weight.
    pub(super) fn accepts_call(&self, waiting: usize) -> bool {
        if waiting == 0 || !mistake!(CallsFollowStalledOne) && self.is_stalled() {
            return false;
        }
        self.sent_at.len() < self.max_calls(waiting >= self.batch_weight.max())
    }

    /// The maximum number of calls in flight: one for each millisecond of a usual call, because a batch occupies the server
    /// for 0.5 to 1 ms.
    ///
    /// Full batches may also wait at the server: a third more on a long link, and for a third of the time that remains of the
    /// deadline. A larger part would let the calls slow each other down until the deadline. `overload_tests` has the figures.
    fn max_calls(&self, is_full: bool) -> usize {
        let (usual, least) = (self.call_time.get(), self.server.least_round_trip());
        let queued = (self.deadline.saturating_sub(usual) + least) / 3;
        let calls = if is_full { (usual + queued).as_millis() + 4 } else { usual.as_millis() };
        usize::try_from(calls).unwrap_or(usize::MAX).saturating_add(Self::MIN_CALLS)
    }

    /// Whether a call takes so much longer than usual that the server, or the connection, seems to be stalled.
    ///
    /// Replies arrive in order, so other calls would wait too. Decisions wait in the queue instead, uncharged.
    fn is_stalled(&self) -> bool {
        let usual = self.call_time.get();
        let limit = usual + self.deadline.saturating_sub(usual) / 2;
        self.sent_at.front().is_some_and(|sent_at| sent_at.elapsed() > limit)
    }

    /// Whether the last reply came less than half of a round trip ago. An end of the connection that followed the reply has
    /// not reached the client yet, so a check would find nothing. The check takes a sixth of the rate of a lone caller on a
    /// runtime of two threads: `redis callers 1`.
    pub(super) fn has_just_replied(&self) -> bool {
        self.server.seen_at.is_some_and(|seen_at| seen_at.elapsed() * 2 < self.server.least_round_trip())
    }

    /// Returns how many of these waiting answers are given before the next call is sent: see `worker`.
    pub(super) fn portion(&self, answers: usize) -> usize {
        (answers + self.operations_in_flight).div_ceil(2).min(self.batch_weight.max())
    }

    /// What a batch that is sent now may contain.
    pub(super) fn admission(&self) -> BatchBounds {
        BatchBounds {
            now: Instant::now(),
            deadline: self.deadline,
            call_time: self.call_time.get(),
            is_probe: self.is_idle(),
            max_weight: self.batch_weight.max(),
        }
    }

    /// Returns the latest time of the server at which a script can start and its reply still arrive by `answer_by`.
    ///
    /// `None` if no recent reply shows the server's clock.
    pub(super) fn latest_start(&self, answer_by: Instant) -> Option<LatestStart> {
        let age = self.server.seen_at?.elapsed();
        if age > self.deadline * Self::MAX_AGE && !mistake!(ClockIsTrustedForEver) {
            return None;
        }
        // The margin must not fail decisions that could be answered, if the way back is sometimes slow.
        let reply_by = answer_by - (self.server.excess.get() * 2).min(self.deadline / 4);
        let start = self.micros(reply_by) - self.server.return_micros.get()?;
        let server_time = u64::try_from(start).ok().map(Timestamp::from_micros)?;
        Some(LatestStart { server_time, reply_by })
    }

    pub(super) fn record_sent(&mut self, batch: &[QueuedOperation]) -> SentCall {
        let (at, is_only) = (Instant::now(), self.sent_at.is_empty());
        self.sent_at.push_back(at);
        let weight = batch.iter().map(QueuedOperation::total_weight).sum();
        self.operations_in_flight += batch.len();
        SentCall { at, operations: batch.len(), weight, is_only }
    }

    /// Records the end of a call, and whether the server replied.
    pub(super) fn record_ended(&mut self, call: &SentCall, replied: bool, run: Option<&ScriptRun>) {
        let now = Instant::now();
        self.operations_in_flight = self.operations_in_flight.saturating_sub(call.operations);
        if let (Ok(index), true) = (self.sent_at.binary_search(&call.at), replied || !mistake!(LostCallStaysInFlight)) {
            // Calls that were sent at the same instant are interchangeable.
            self.sent_at.remove(index);
        }
        if !replied {
            return;
        }
        // Nothing was sent but this call, because no other could be answered in time: the estimate is out of date.
        if call.is_only && self.call_time.get() >= self.deadline {
            self.call_time = MovingAverage::default();
        }
        let sent_at = run.map_or(call.at, |run| run.sent_at);
        self.call_time.record(now - sent_at);
        if let Some(run) = run {
            if run.clock_has_gained {
                self.server = ServerClock::new(now);
            }
            let (sent, received) = (self.micros(sent_at), self.micros(now));
            // A script that makes no decisions says nothing about their cost.
            let weight = if run.late > 0 { 0 } else { call.weight };
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

/// The server's clock, as the replies show it. The difference between the two clocks includes an unknown offset.
///
/// If the server's clock gains, the next reply shows the least way back. If it loses, the least way back is too short until
/// it expires, and scripts start later than necessary.
struct ServerClock {
    /// From sending a call to its reply: the least of recent calls.
    round_trip_micros: WindowedMin,
    /// From the start of a script to the arrival of its reply, with the offset: the least of recent calls.
    return_micros: WindowedMin,
    /// How much longer than that it takes on average.
    excess: MovingAverage,
    /// The start of the last script, and its weight.
    last: Option<(i64, usize)>,
    /// When the last reply came.
    seen_at: Option<Instant>,
}

impl ServerClock {
    fn new(now: Instant) -> Self {
        Self {
            round_trip_micros: WindowedMin::new(now),
            return_micros: WindowedMin::new(now),
            excess: MovingAverage::default(),
            last: None,
            seen_at: None,
        }
    }

    fn least_round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip_micros.get().and_then(|least| u64::try_from(least).ok()).unwrap_or(0))
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
        self.seen_at = Some(now);
        let started = i64::try_from(started_at.as_micros()).ok()?;
        self.round_trip_micros.record(received - sent, now);
        self.return_micros.record(received - started, now);
        let least = self.return_micros.get()?;
        self.excess.record(Duration::from_micros(u64::try_from(received - started - least).ok()?));
        let (previous, weight) = self.last.replace((started, weight))?;
        // The way to the server is what remains of the round trip, on the scale of the server's clock.
        let arrived = sent + self.round_trip_micros.get()? - least;
        let span = u64::try_from(started - previous).ok()?;
        (arrived <= previous).then(|| (weight, Duration::from_micros(span)))
    }
}

/// A moving average of times, in which the last few values count.
///
/// After a stall of the server the average must fall quickly, or decisions would fail that can be answered again.
#[derive(Default)]
pub(super) struct MovingAverage(Option<Duration>);

impl MovingAverage {
    pub(super) fn record(&mut self, value: Duration) {
        self.0 = Some(self.0.map_or(value, |mean| (mean * 3 + value) / 4));
    }

    /// Returns the average; zero before the first value.
    pub(super) fn get(&self) -> Duration {
        self.0.unwrap_or_default()
    }
}

/// The least of the values of the last ten to twenty seconds.
///
/// A minimum over all time would keep a value that a change of the route, or of the server's clock, has made invalid.
pub(super) struct WindowedMin {
    current: Option<i64>,
    previous: Option<i64>,
    started_at: Instant,
}

impl WindowedMin {
    const WINDOW: Duration = Duration::from_secs(10);

    pub(super) fn new(now: Instant) -> Self {
        Self { current: None, previous: None, started_at: now }
    }

    /// Adds a value.
    pub(super) fn record(&mut self, value: i64, now: Instant) {
        if now.saturating_duration_since(self.started_at) >= Self::WINDOW {
            self.previous = self.current.take();
            self.started_at = now;
        }
        self.current = Some(self.current.map_or(value, |current| current.min(value)));
    }

    pub(super) fn get(&self) -> Option<i64> {
        self.current.into_iter().chain(self.previous).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, advance};

    use super::{LoadControl, MovingAverage, WindowedMin};
    use crate::clock::Timestamp;
    use crate::store::redis::client::batch::ScriptRun;
    use crate::store::redis::client::completion::Answers;

    #[tokio::test(start_paused = true)]
    async fn connection_is_checked_half_a_round_trip_after_the_last_reply() {
        let ms = Duration::from_millis;
        let mut control = LoadControl::new(ms(50));
        assert!(!control.has_just_replied(), "no reply");
        let (sent_at, sent) = (Instant::now(), control.record_sent(&[]));
        advance(ms(10)).await;
        let (answers, again) = (Answers::default(), Vec::new());
        let started_at = Timestamp::from_micros(1);
        let run = ScriptRun { sent_at, started_at, late: 0, clock_has_gained: false, answers, again };
        control.record_ended(&sent, true, Some(&run));
        advance(ms(4)).await;
        assert!(control.has_just_replied());
        advance(ms(1)).await;
        assert!(!control.has_just_replied());
    }

    #[test]
    fn average_follows_the_last_values() {
        let (mut average, ms) = (MovingAverage::default(), Duration::from_millis);
        assert_eq!(average.get(), Duration::ZERO);
        average.record(ms(20));
        assert_eq!(average.get(), ms(20));
        average.record(ms(60));
        assert_eq!(average.get(), ms(30));
        (0..10).for_each(|_| average.record(ms(20)));
        assert!(average.get() < ms(21), "{:?}", average.get());
    }

    #[test]
    fn old_minimum_expires_after_two_windows() {
        let start = Instant::now();
        let mut min = WindowedMin::new(start);
        assert_eq!(min.get(), None);
        for (windows, value, least) in [(0, 7, 7), (0, 5, 5), (1, 9, 5), (2, 8, 8)] {
            min.record(value, start + WindowedMin::WINDOW * windows);
            assert_eq!(min.get(), Some(least));
        }
    }
}
