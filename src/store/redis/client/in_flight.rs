use std::time::Duration;

use tokio::time::Instant;

use super::windowed_min::WindowedMin;

/// The maximum number of calls in flight, which follows the round trip and the server's service time.
///
/// This is a gradient limit, as in Netflix's `concurrency-limits` and FAST TCP (Jin, Wei, Low 2004). Once per round trip
///
/// ```text
/// limit = limit * target call time / mean call time + QUEUED
/// ```
///
/// The target is the least call time, and a quarter of it, or of the time that then remains until the deadline. While
/// calls are faster than the target, the server is not busy all the time, and the limit grows. Once calls wait at the
/// server, the call time grows with the limit, and the limit settles where calls take a little longer than the target.
/// On a new connection the limit doubles in each round trip, until a round trip takes longer than the target (the slow
/// start of TCP).
///
/// The least call time is only known while few calls are in flight. If more calls were in flight for a whole window of
/// [`WindowedMin`], the limit falls to the minimum for about one round trip, as in BBR.
pub(super) struct InFlightLimit {
    limit: f64,
    starts_slowly: bool,
    /// In microseconds.
    deadline: f64,
    /// The least call time, in microseconds.
    least: WindowedMin,
    /// No call of the current window was sent with few calls in flight.
    needs_sample: bool,
    round: Round,
}

/// The calls since the last change of the limit.
struct Round {
    started_at: Instant,
    calls: u32,
    sum: Duration,
    /// Operations have waited because of the limit.
    was_limited: bool,
}

impl Round {
    fn new(started_at: Instant) -> Self {
        Self { started_at, calls: 0, sum: Duration::ZERO, was_limited: false }
    }
}

impl InFlightLimit {
    /// The server then always has a call to run, while other calls are on a fast network or their replies are
    /// processed.
    pub(super) const MIN: usize = 4;
    /// The limit before the first round trip.
    const INITIAL: f64 = 32.0;
    const MAX: f64 = 2048.0;
    /// The number of calls that wait at the server, so that it is never idle.
    const QUEUED: f64 = 4.0;

    pub(super) fn new(deadline: Duration, now: Instant) -> Self {
        Self {
            limit: Self::INITIAL,
            starts_slowly: true,
            deadline: deadline.as_secs_f64() * 1e6,
            least: WindowedMin::new(now),
            needs_sample: false,
            round: Round::new(now),
        }
    }

    /// The maximum number of calls in flight if the next one is a full batch.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between MIN and MAX")]
    pub(super) fn full(&self) -> usize {
        let limit = self.limit as usize;
        if self.needs_sample { limit.min(self.few()) } else { limit }
    }

    /// The maximum number of calls in flight if the next one is not a full batch: at most two for each millisecond of
    /// the round trip, because smaller batches cost the server more. One for each millisecond is always allowed: a call
    /// takes less than a millisecond, so these calls do not overload the server.
    pub(super) fn partial(&self) -> usize {
        self.full().clamp(Self::MIN + self.millis(), self.few())
    }

    /// The number of calls with which the call time is about the least one.
    fn few(&self) -> usize {
        Self::MIN + 2 * self.millis()
    }

    /// Whether the least call time is below two milliseconds.
    pub(super) fn has_short_calls(&self) -> bool {
        self.millis() < 2
    }

    fn millis(&self) -> usize {
        usize::try_from(self.least.get().unwrap_or(0) / 1000).unwrap_or(0)
    }

    /// Records that operations wait because of the limit.
    pub(super) fn record_limited(&mut self) {
        self.round.was_limited = true;
    }

    /// Records a reply to a call that was sent as one of `in_flight` calls.
    pub(super) fn record(&mut self, sent_at: Instant, in_flight: usize, now: Instant) {
        let elapsed = now.saturating_duration_since(sent_at);
        let begins = self.least.record(i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX), now);
        self.needs_sample = (self.needs_sample || begins) && in_flight > self.few();
        self.round.calls += 1;
        self.round.sum += elapsed;
        // The reply shows the effect of the last change.
        if sent_at >= self.round.started_at {
            self.end_round(now);
        }
    }

    fn end_round(&mut self, now: Instant) {
        let round = std::mem::replace(&mut self.round, Round::new(now));
        let mean = round.sum.as_secs_f64() * 1e6 / f64::from(round.calls);
        #[allow(clippy::cast_precision_loss, reason = "a time of some seconds")]
        let least = self.least.get().unwrap_or(0).max(1) as f64;
        let target = least + least.min(self.deadline - least).max(0.0) / 4.0;
        self.starts_slowly &= mean <= target;
        // A mean of zero makes this infinite, and never NaN: `clamp` bounds it.
        let limit = if self.starts_slowly { self.limit * 2.0 } else { self.limit * (target / mean) + Self::QUEUED };
        // A limit that was not reached says nothing about a larger one.
        if limit < self.limit || round.was_limited {
            // At most halved: one slow round says little. `QUEUED` keeps the limit above zero.
            self.limit = limit.clamp(self.limit / 2.0, Self::MAX);
        }
    }
}
