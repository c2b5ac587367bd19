//! When the limiter can admit the next requests of a queue.

use std::time::Duration;

use super::ticket::Class;
use crate::decision::{Decision, Verdict};
use crate::runtime::Instant;

/// What the latest decision of the queue's limit says of later ones.
///
/// `remaining` units are free now. The others return one after another: the next one at `next_unit`, and all of them by
/// the time at which the key is idle. Later units follow in the same way, one window later.
///
/// The times are those at which to send an ask: the limiter decides as long after that as it did for the latest ask.
#[derive(Debug, Default)]
pub(super) struct Forecast {
    remaining: u64,
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
    /// start up to `max_delay` ahead.
    pub(super) fn update(&mut self, decision: &Decision, class: Class, max_delay: Duration, asked_at: Instant) {
        let Class { cost, hold, .. } = class;
        let mut next_unit = Duration::ZERO;
        (self.remaining, self.step) = (0, Duration::ZERO);
        if let Some(status) = decision.most_restrictive() {
            let snapshot = status.snapshot();
            self.quota = snapshot.window.filter(|_| snapshot.limit > 0).map(|window| (snapshot.limit, window));
            (self.remaining, next_unit) = (snapshot.remaining, snapshot.next_token_after);
            let used = snapshot.limit.saturating_sub(snapshot.remaining);
            self.step = share(snapshot.reset.saturating_sub(next_unit), 1, used.saturating_sub(1));
        }
        self.schedules = decision.supports_scheduling() && !hold;
        self.next_unit = match decision.verdict() {
            // The end of a hold is unknown.
            Verdict::Denied { .. } if decision.is_estimate() => None,
            Verdict::Denied { retry_after } => {
                // A cost that the limit denies for another reason, such as units that it keeps free.
                self.remaining = self.remaining.min(cost.saturating_sub(1));
                let wait = if self.schedules { retry_after.saturating_add(max_delay) } else { retry_after };
                let offset = self.offset(cost.saturating_sub(self.remaining));
                asked_at.checked_add(wait).and_then(|at| at.checked_sub(offset))
            }
            _ if hold && self.remaining == 0 => None,
            _ => asked_at.checked_add(next_unit),
        };
    }

    /// Returns when the limiter can admit so many units in all. `None` if that is unknown.
    pub(super) fn at(&self, units: u64) -> Option<Instant> {
        let next_unit = self.next_unit?;
        let returned = units.saturating_sub(self.remaining);
        if returned == 0 { Some(next_unit) } else { next_unit.checked_add(self.offset(returned)) }
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

/// Returns the part `numerator / denominator` of a time.
fn share(time: Duration, numerator: u64, denominator: u64) -> Duration {
    let nanos = time.as_nanos().saturating_mul(numerator.into()) / u128::from(denominator.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
