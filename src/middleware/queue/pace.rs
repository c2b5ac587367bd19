//! How many asks of a queue are under way, and when it asks although the forecast is unknown or far.

use std::time::Duration;

use crate::runtime::Instant;

/// The asks of one queue.
#[derive(Debug, Default)]
pub(super) struct Pace {
    pub(super) under_way: usize,
    pub(super) cost_under_way: u64,
    /// How many asks may be under way beside one. Their number doubles with an admission and falls to one with a denial,
    /// so that processes which share a limit ask about as often as it admits.
    more: usize,
    /// An ask is sent at this time in any case: another process may have released or reset.
    recheck_at: Option<Instant>,
    /// The denials since the last admission or release whose wait is an estimate. Each doubles the time until the next ask.
    estimates: u32,
    /// Capacity was released in this process since the last ask.
    is_released: bool,
    /// A moving average of the time that an ask takes.
    pub(super) ask_time: Duration,
    /// Drawn for each ask.
    random: u8,
}

impl Pace {
    const MAX_UNDER_WAY: usize = 1024;
    const MIN_RECHECK: Duration = Duration::from_millis(100);
    const MAX_RECHECK: Duration = Duration::from_secs(1);
    const MIN_ROUND_TRIP: Duration = Duration::from_micros(50);

    /// A queue begins after a denial. Unless the time of an admission is known, it asks at once: a cost that was held may
    /// have been released before the queue existed.
    pub(super) fn begin(&mut self, is_unknown: bool, asked_at: Instant) {
        self.random = fastrand::u8(..);
        self.recheck_at = if is_unknown { None } else { asked_at.checked_add(self.jittered(Self::MAX_RECHECK)) };
    }

    /// Returns when to send an ask that the limiter can admit at `possible_at`. `None` if an answer comes first.
    pub(super) fn ask_at(&self, possible_at: Option<Instant>, now: Instant) -> Option<Instant> {
        if self.under_way > self.more {
            return None;
        }
        if self.is_released {
            return Some(now);
        }
        match (possible_at, self.recheck_at.filter(|_| self.under_way == 0)) {
            (Some(at), Some(recheck)) => Some(at.min(recheck)),
            (at, recheck) => at.or(recheck).or((self.under_way == 0).then_some(now)),
        }
    }

    /// Whether an ask takes longer than a decision in memory.
    pub(super) fn is_remote(&self) -> bool {
        self.ask_time >= Self::MIN_ROUND_TRIP
    }

    pub(super) fn asked(&mut self, cost: u64) {
        self.is_released = false;
        self.under_way += 1;
        self.cost_under_way = self.cost_under_way.saturating_add(cost);
        self.random = fastrand::u8(..);
    }

    /// Takes back an ask that was not sent.
    pub(super) fn withdrawn(&mut self, cost: u64) {
        self.under_way -= 1;
        self.cost_under_way = self.cost_under_way.saturating_sub(cost);
    }

    pub(super) fn answered(&mut self, cost: u64, asked_at: Instant, now: Instant) {
        self.withdrawn(cost);
        let time = now.saturating_duration_since(asked_at);
        self.ask_time = if self.ask_time.is_zero() { time } else { (self.ask_time * 7 + time) / 8 };
    }

    /// Records an admission: how many more are possible at once, and whether it is unknown when the next one is.
    pub(super) fn admitted(&mut self, more: usize, is_unknown: bool, now: Instant) {
        self.more = (self.more * 2 + 1).max(more.saturating_sub(1)).min(Self::MAX_UNDER_WAY - 1);
        self.estimates = 0;
        self.set_recheck(is_unknown, now);
    }

    /// Records a denial, and whether it is unknown when an admission is possible.
    pub(super) fn denied(&mut self, is_unknown: bool, now: Instant) {
        self.more = if cfg!(queue_rule_off = "one-ask") { Self::MAX_UNDER_WAY } else { 0 };
        self.set_recheck(is_unknown, now);
        self.estimates += u32::from(is_unknown && self.estimates < 4);
    }

    fn set_recheck(&mut self, is_unknown: bool, now: Instant) {
        let recheck = if is_unknown { Self::MIN_RECHECK * (1 << self.estimates) } else { Self::MAX_RECHECK };
        let recheck = recheck.min(Self::MAX_RECHECK);
        self.recheck_at = now.checked_add(self.jittered(recheck));
    }

    /// Capacity was released: one more ask may be sent.
    pub(super) fn released(&mut self) {
        self.is_released = true;
        self.more = self.more.max(self.under_way);
        self.estimates = 0;
    }

    /// Returns a part of a time, drawn for each ask.
    pub(super) fn random_part_of(&self, time: Duration) -> Duration {
        if cfg!(queue_rule_off = "random") { Duration::ZERO } else { time * u32::from(self.random) / 255 }
    }

    /// Returns between 80 and 95 % of a time, so that processes do not ask together.
    fn jittered(&self, time: Duration) -> Duration {
        (time * 19 / 20).saturating_sub(self.random_part_of(time * 3 / 20))
    }
}
