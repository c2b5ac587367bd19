//! What a gate learns from responses about the pace of its server.

use std::time::Duration;

use crate::runtime::Instant;

/// The spacing of requests that wait, while nothing remains and the server states no time.
///
/// A server whose limit refills within a second states no time. The gate searches the spacing: rejections double it
/// until requests are served, then each round trip shortens it, down to a fifth above the longest that was rejected.
#[derive(Debug, Default)]
pub(super) struct Spacing {
    /// Zero until the first rejection.
    interval: Duration,
    /// The longest interval that was too short.
    too_short: Duration,
    /// Whether requests of any interval were served.
    is_known: bool,
    /// The requests that were served since the last rejection, and its time.
    served: u32,
    rejected_at: Option<Instant>,
    /// The last change. Requests that started before it say nothing about the interval.
    changed_at: Option<Instant>,
}

impl Spacing {
    /// The first interval, unless requests were further apart when they were rejected.
    const FIRST: Duration = Duration::from_millis(50);
    /// Servers state longer times.
    pub(super) const MAX: Duration = Duration::from_secs(1);
    /// After so many served requests and this time without a rejection, the gate tries a shorter interval: other
    /// clients may have left.
    const TRIED_AGAIN_AFTER: (u32, Duration) = (200, Duration::from_secs(30));

    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// A request that started `gap` after the one before was rejected. `is_spaced`: because of the interval alone.
    pub(super) fn rejected(&mut self, gap: Duration, is_spaced: bool, now: Instant) {
        if self.interval.is_zero() {
            (self.too_short, self.interval) = (gap, (gap * 2).clamp(Self::FIRST, Self::MAX));
        } else if is_spaced {
            self.too_short = self.interval;
            self.interval = if self.is_known { self.interval * 5 / 4 } else { self.interval * 2 }.min(Self::MAX);
        }
        (self.changed_at, self.rejected_at, self.served) = (Some(now), Some(now), 0);
    }

    /// A request that started at this time was served, because of the interval or with more remaining.
    pub(super) fn served(&mut self, started: Instant, is_spaced: bool, now: Instant) {
        self.served += 1;
        let (served, time) = Self::TRIED_AGAIN_AFTER;
        if self.served > served && self.rejected_at.is_some_and(|at| now.saturating_duration_since(at) >= time) {
            (self.rejected_at, self.served, self.too_short) = (Some(now), 0, self.too_short * 9 / 10);
        }
        if self.changed_at.is_none_or(|changed| started >= changed) {
            let part = if is_spaced { 16 } else { 19 };
            let shorter = (self.interval * part / 20).max(self.too_short * 6 / 5);
            (self.interval, self.is_known, self.changed_at) = (shorter.min(self.interval), true, Some(now));
        }
    }
}

/// The time for which nothing remains, as a served response states it: rounded up to a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatedZero {
    /// The stated time after the response, and after the start of its request.
    pub(super) from_response: Instant,
    pub(super) from_start: Instant,
}

/// How long before the end of a stated time requests start.
///
/// A server states whole seconds, so that a time may be up to a second too long. A request that arrives while none
/// waits starts if the time may be over. Requests that wait start at its end at first, then earlier and earlier, until one is
/// rejected.
#[derive(Debug)]
pub(super) struct Lead {
    of_waiting: Duration,
    max: Duration,
    served: u32,
}

impl Default for Lead {
    fn default() -> Self {
        Self { of_waiting: Duration::ZERO, max: Self::ROUNDING, served: 0 }
    }
}

impl Lead {
    pub(super) const ROUNDING: Duration = Duration::from_secs(1);
    /// A served start lengthens the lead by this time.
    const STEP: Duration = Duration::from_millis(200);
    /// After so many served starts the gate tries the longest lead again.
    const TRIED_AGAIN_AFTER: u32 = 500;

    /// Returns when the first waiting request starts.
    pub(super) fn waiting_start(&self, zero: StatedZero) -> Instant {
        zero.from_response.checked_sub(self.of_waiting).unwrap_or(zero.from_response)
    }

    /// Returns the earliest start of a request if none waits.
    pub(super) fn idle_start(&self, zero: StatedZero) -> Instant {
        zero.from_start.checked_sub(self.max).unwrap_or(zero.from_start)
    }

    /// A request that started so long before the end of a stated time was served.
    pub(super) fn served(&mut self, lead: Duration) {
        self.served += 1;
        if self.served >= Self::TRIED_AGAIN_AFTER {
            (self.served, self.max) = (0, Self::ROUNDING);
        }
        self.of_waiting = (self.of_waiting.max(lead) + Self::STEP).min(self.max);
    }

    /// A request that started so long before the end of a stated time was rejected.
    pub(super) fn rejected(&mut self, lead: Duration) {
        self.max = self.max.min(lead / 2);
        (self.of_waiting, self.served) = (self.of_waiting.min(self.max), 0);
    }
}
