//! When the limiter can admit the next requests of a queue.

use std::time::Duration;

use super::ticket::Class;
use crate::decision::{Decision, LimitSnapshot, LimitStatus, Verdict};
use crate::runtime::Instant;

/// What the latest decision of the queue's limit says of later ones.
///
/// `remaining` units are free at the time of the decision. The others return one after another: the first one at
/// `next_unit`, and all of them by the time at which the key is idle. Later units follow in the same way, one window
/// later.
///
/// The times are those at which to send an ask: the limiter decides as long after that as it did for the latest ask.
#[derive(Debug, Default)]
pub(super) struct Forecast {
    asked_at: Option<Instant>,
    pub(super) remaining: u64,
    /// `None` if held costs make the time unknown.
    next_unit: Option<Instant>,
    /// The time between two units that return.
    step: Duration,
    /// The limit, and its window.
    quota: Option<(u64, Duration)>,
    /// Whether the limiter schedules starts.
    pub(super) schedules: bool,
}

impl Forecast {
    /// Records a decision on a request of this class, for which the limiter was asked at `asked_at` and could schedule a
    /// start up to `max_delay` ahead. `max_waiting` of the remaining units are places of requests that wait.
    pub(super) fn update(
        &mut self,
        decision: &Decision,
        class: Class,
        max_delay: Duration,
        max_waiting: u64,
        asked_at: Instant,
    ) {
        let Class { cost, hold, .. } = class;
        // Limits that all admit a request now do not know yet whether they can schedule another one.
        if decision.verdict() != Verdict::Allowed {
            self.schedules = decision.supports_scheduling() && !hold;
        }
        let snapshot = decision.most_restrictive().map(LimitStatus::snapshot);
        self.asked_at = Some(asked_at);
        self.quota = snapshot.and_then(|snapshot| self.quota_of(&snapshot, decision.verdict()));
        let most = match decision.verdict() {
            // A limit can deny a cost although more remains, such as units that it keeps free.
            Verdict::Denied { .. } => cost.saturating_sub(1),
            Verdict::AllowedAfter(_) => 0,
            _ => u64::MAX,
        };
        let places = if self.schedules { max_waiting } else { 0 };
        self.remaining = snapshot.map_or(0, |snapshot| snapshot.remaining.saturating_sub(places).min(most));
        let interval = self.time_for(1).unwrap_or_default();
        // Which of the units that do not remain has returned after which time. A denial of cost 5 with 2 units left says when
        // the third one has.
        let (number, after) = match decision.verdict() {
            // The end of a hold is unknown, and that of a request in flight.
            Verdict::Denied { .. } if decision.is_estimate() => (1, None),
            Verdict::Denied { retry_after } => {
                let accepted = if self.schedules { max_delay } else { Duration::ZERO };
                (cost.saturating_sub(self.remaining), Some(retry_after.saturating_add(accepted)))
            }
            _ if hold && self.remaining == 0 || snapshot.is_some_and(|snapshot| snapshot.window.is_none()) => (1, None),
            Verdict::AllowedAfter(delay) => (1, Some(delay.saturating_add(interval))),
            _ => (1, Some(snapshot.map_or(Duration::ZERO, |snapshot| snapshot.next_token_after))),
        };
        self.step = match (snapshot, after) {
            _ if self.schedules => interval,
            // The units after that return evenly until the key is idle.
            (Some(snapshot), Some(after)) => {
                let later = snapshot.limit.saturating_sub(self.remaining).saturating_sub(number);
                share(snapshot.reset.saturating_sub(after), 1, later)
            }
            _ => Duration::ZERO,
        };
        self.next_unit = after.and_then(|after| asked_at.checked_add(after)?.checked_sub(self.offset(number)));
    }

    /// Returns the limit, and the time after which a unit returns that is used now.
    ///
    /// That is the window, or longer: a sliding window returns whole blocks, as the reset after an admission shows.
    fn quota_of(&self, snapshot: &LimitSnapshot, verdict: Verdict) -> Option<(u64, Duration)> {
        let LimitSnapshot { limit, window, reset, .. } = *snapshot;
        let latest = if verdict == Verdict::Allowed { reset } else { Duration::ZERO };
        let before = self.quota.filter(|(before, _)| *before == limit).map(|(_, window)| window);
        Some((limit, window?.max(latest).max(before.unwrap_or_default()))).filter(|_| limit > 0)
    }

    /// Whether it is unknown when more than the remaining units are free.
    pub(super) fn is_unknown(&self) -> bool {
        self.next_unit.is_none()
    }

    /// Returns when the limiter can admit so many units in all. `None` if that is unknown.
    pub(super) fn at(&self, units: u64) -> Option<Instant> {
        match units.max(1).saturating_sub(self.remaining) {
            0 => self.asked_at,
            number => self.next_unit?.checked_add(self.offset(number)),
        }
    }

    /// An ask is sent that takes the last one of so many units. The limiter admits it no sooner.
    pub(super) fn asked(&mut self, units: u64, now: Instant) {
        if !self.schedules && units > self.remaining {
            let offset = self.offset(units - self.remaining);
            self.next_unit = self.next_unit.map(|at| now.checked_sub(offset).map_or(at, |earliest| at.max(earliest)));
        }
    }

    /// Returns the time between the return of the next unit and of the `number`th one.
    fn offset(&self, number: u64) -> Duration {
        let Some((limit, window)) = self.quota else { return Duration::ZERO };
        let (windows, steps) = (number.saturating_sub(1) / limit, number.saturating_sub(1) % limit);
        share(window, windows, 1).saturating_add(share(self.step, steps, 1))
    }

    /// Returns the time in which the limit admits this cost.
    pub(super) fn time_for(&self, cost: u64) -> Option<Duration> {
        let (limit, window) = self.quota?;
        Some(share(window, cost, limit))
    }

    pub(super) fn exceeds_limit(&self, cost: u64) -> bool {
        self.quota.is_some_and(|(limit, _)| cost > limit)
    }
}

/// The mean time that a queue needs to start a unit of cost. It is longer than the quota says if other processes use the limit as well.
#[derive(Debug, Default)]
pub(super) struct StartInterval {
    average: Duration,
    starts: u32,
    latest: Option<Instant>,
}

impl StartInterval {
    /// The number of starts after which the average is known.
    const ENOUGH: u32 = 8;

    pub(super) fn record(&mut self, at: Instant, cost: u64) {
        if let Some(latest) = self.latest.replace(at) {
            self.starts = self.starts.saturating_add(1);
            let weight = self.starts.min(32);
            let time = share(at.saturating_duration_since(latest), 1, cost);
            self.average = (self.average * (weight - 1) + time) / weight;
        }
    }

    /// Returns the likely wait of a request behind so many units, if enough have started.
    pub(super) fn wait_behind(&self, ahead: u64) -> Option<Duration> {
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        (self.starts >= Self::ENOUGH && !cfg!(queue_rule_off = "own-rate")).then(|| self.average.saturating_mul(ahead))
    }
}

/// Returns the part `numerator / denominator` of a time.
fn share(time: Duration, numerator: u64, denominator: u64) -> Duration {
    let nanos = time.as_nanos().saturating_mul(numerator.into()) / u128::from(denominator.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
