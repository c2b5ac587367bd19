//! The estimate of the wait of a request that joins a queue.

use std::time::Duration;

use super::ticket::Class;
use crate::decision::{Decision, Verdict};
use crate::runtime::Instant;

/// Estimates when a queue's next starts come: by the quota, or by the measured rate if that is lower.
///
/// The estimate is optimistic, so that no request that could be served is rejected on arrival.
#[derive(Debug, Default)]
pub(super) struct Estimate {
    /// From when on the cost of requests that no start covers becomes available. `None` if held costs make that
    /// unknown.
    base: Option<Instant>,
    /// The most restrictive limit: its cost per window.
    quota: Option<(u64, Duration)>,
    /// Whether starts come one by one, as those of a bucket; otherwise all of a window come together.
    is_spaced: bool,
    measured: Measured,
}

impl Estimate {
    /// Records a start at `at`.
    pub(super) fn admitted(&mut self, decision: &Decision, at: Instant, class: Class, now: Instant) {
        self.set_quota(decision);
        self.base = (!class.hold).then_some(at);
        self.measured.admitted(class.cost, now, self.quota.map_or(Duration::ZERO, |(_, window)| window));
    }

    /// Records a denial of a request with this cost that accepted a delay of `max_delay`.
    pub(super) fn denied(&mut self, decision: &Decision, cost: u64, max_delay: Duration, now: Instant) {
        self.set_quota(decision);
        self.base = match decision.verdict() {
            Verdict::Denied { .. } if decision.is_estimate() => None,
            Verdict::Denied { retry_after } if self.is_spaced => {
                let start = now.checked_add(retry_after.saturating_add(max_delay));
                start.and_then(|start| start.checked_sub(self.time_for(cost).unwrap_or_default()))
            }
            Verdict::Denied { retry_after } => now.checked_add(retry_after),
            _ => None,
        };
    }

    /// Starts the measurement anew: without waiting requests, the rate of starts is not that of the limiter.
    pub(super) fn without_waiters(&mut self) {
        self.measured = Measured::default();
    }

    /// Returns the time until a request starts behind others of this cost that no start covers yet.
    pub(super) fn wait_behind(&self, cost_ahead: u64, cost: u64, now: Instant) -> Option<Duration> {
        let by_quota = self.wait_by_quota(cost_ahead, cost, now)?;
        Some(self.measured.time_for(cost_ahead).map_or(by_quota, |by_rate| by_quota.max(by_rate)))
    }

    /// Returns the same time as if no other process used the limit.
    pub(super) fn wait_by_quota(&self, cost_ahead: u64, cost: u64, now: Instant) -> Option<Duration> {
        let base = self.base?;
        let total = cost_ahead.saturating_add(cost);
        let after_base = match self.quota {
            Some(_) if self.is_spaced => self.time_for(total)?,
            Some((limit, window)) => {
                let windows = total.saturating_sub(1) / limit;
                window.saturating_mul(u32::try_from(windows).unwrap_or(u32::MAX))
            }
            None if cost_ahead == 0 => Duration::ZERO,
            None => return None,
        };
        Some(base.checked_add(after_base)?.saturating_duration_since(now))
    }

    /// Whether the limiter schedules starts.
    pub(super) fn is_spaced(&self) -> bool {
        self.is_spaced
    }

    /// Returns the time in which this queue received starts of this cost, as measured.
    pub(super) fn measured_interval(&self, cost: u64) -> Option<Duration> {
        self.measured.time_for(cost)
    }

    /// Returns the time in which the limit admits this cost.
    pub(super) fn time_for(&self, cost: u64) -> Option<Duration> {
        let (limit, window) = self.quota?;
        Some(share(window, cost, limit))
    }

    pub(super) fn exceeds_limit(&self, cost: u64) -> bool {
        self.quota.is_some_and(|(limit, _)| cost > limit)
    }

    fn set_quota(&mut self, decision: &Decision) {
        self.is_spaced = decision.supports_scheduling();
        if let Some(status) = decision.most_restrictive() {
            let snapshot = status.snapshot();
            self.quota = snapshot.window.filter(|_| snapshot.limit > 0).map(|window| (snapshot.limit, window));
        }
    }
}

/// Returns the part `numerator / denominator` of a time.
fn share(time: Duration, numerator: u64, denominator: u64) -> Duration {
    let nanos = time.as_nanos().saturating_mul(numerator.into()) / u128::from(denominator.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// The rate of starts while requests wait, measured over whole windows.
#[derive(Debug, Default)]
struct Measured {
    since: Option<Instant>,
    cost: u64,
    /// The cost and the time of the last complete measurement.
    last: Option<(u64, Duration)>,
}

impl Measured {
    const MIN_TIME: Duration = Duration::from_secs(1);

    fn admitted(&mut self, cost: u64, now: Instant, window: Duration) {
        let Some(since) = self.since else {
            // The first start ends a wait of unknown length, so its cost is not counted.
            self.since = Some(now);
            return;
        };
        self.cost = self.cost.saturating_add(cost);
        let elapsed = now.saturating_duration_since(since);
        if elapsed >= window.max(Self::MIN_TIME) {
            self.last = Some((self.cost, elapsed));
            (self.since, self.cost) = (Some(now), 0);
        }
    }

    fn time_for(&self, cost: u64) -> Option<Duration> {
        let (measured, time) = self.last?;
        (measured > 0).then(|| share(time, cost, measured))
    }
}
