//! The model of the fixed window: a window for each period that has charged the key, and the usage since its start.

use std::time::Duration;

use tower_ratelimit::{LimitSnapshot, Quota, Verdict};

use super::{Model, Spec};
use crate::harness::{DAY, WEEK};
use crate::span::{micros, ticks};

#[derive(Clone)]
pub(crate) struct Window {
    quota: Quota,
    aligned: bool,
    /// The windows that may be open.
    windows: Vec<Open>,
    newest: u64,
}

#[derive(Clone, Copy)]
struct Open {
    first_hit: u64,
    end: u64,
    aligned: bool,
    used: u128,
}

impl Window {
    const MAX_WINDOWS: usize = 4;

    pub(crate) fn new(quota: Quota, aligned: bool) -> Self {
        Self { quota, aligned, windows: Vec::new(), newest: 0 }
    }

    fn period(&self) -> u64 {
        micros(self.quota.period())
    }

    /// Returns the open windows and the effective time: the newest in the state, unless it is too far ahead.
    fn open_at(&self, now: u64) -> (Vec<Open>, u64) {
        let at = now.max(self.newest);
        if at - now > self.time_to_full() {
            return (Vec::new(), now);
        }
        (self.windows.iter().copied().filter(|window| at < window.end).collect(), at)
    }

    /// Returns start and end of the window that a hit opens.
    fn window_at(&self, at: u64) -> (u64, u64) {
        let start = if self.aligned { at / self.period() * self.period() } else { at };
        (start, start + self.period())
    }

    /// Whether the window has counted all hits of the present terms' window at a time.
    fn is_own(&self, window: &Open, at: u64) -> bool {
        let (start, end) = self.window_at(at);
        if self.aligned {
            window.aligned && window.end == end && window.first_hit >= start
        } else {
            !window.aligned && window.end - window.first_hit == self.period()
        }
    }

    /// Returns until when each usage counts for the present terms, and the usage.
    fn counting(&self, now: u64) -> Vec<(u64, u128)> {
        let (open, at) = self.open_at(now);
        // Aligned days and weeks are a calendar's, in which other windows count until the window of the last charge
        // ends.
        let is_calendar = self.aligned && [DAY, WEEK].contains(&self.quota.period());
        let latest = if is_calendar { self.window_at(self.newest).1 } else { u64::MAX };
        let end = |window: &Open| {
            let others = window.end.min(window.first_hit + self.period()).min(latest);
            if self.is_own(window, at) { window.end } else { others }
        };
        let mut counting: Vec<_> =
            open.iter().map(|window| (end(window), window.used)).filter(|(end, _)| *end > at).collect();
        if open.len() == Self::MAX_WINDOWS && !open.iter().any(|window| self.is_own(window, at)) {
            let first_end = open.iter().map(|window| window.end).min();
            counting.extend(first_end.map(|end| (end, u128::from(self.quota.limit()))));
        }
        counting
    }

    fn used_at(&self, now: u64) -> u128 {
        self.counting(now).into_iter().map(|(_, used)| used).max().unwrap_or(0)
    }

    /// Returns the time from which a cost fits.
    fn wait(&self, now: u64, cost: u64) -> u64 {
        let spare = u128::from(self.quota.limit() - cost);
        let too_full = self.counting(now).into_iter().filter(|(_, used)| *used > spare);
        too_full.map(|(end, _)| end - now).max().unwrap_or(0)
    }
}

impl Model for Window {
    fn set_spec(&mut self, spec: Spec) {
        let Spec::FixedWindow { quota, aligned } = spec else { panic!("{spec:?} is not a fixed window") };
        (self.quota, self.aligned) = (quota, aligned);
    }

    fn verdict(&self, now: u64, cost: u64, _max_delay: u64) -> Verdict {
        if cost > self.quota.limit() {
            return Verdict::ExceedsLimit;
        }
        match self.wait(now, cost) {
            0 => Verdict::Allowed,
            wait => Verdict::Denied { retry_after: ticks(wait) },
        }
    }

    fn snapshot(&self, now: u64) -> LimitSnapshot {
        let limit = self.quota.limit();
        let left = u128::from(limit).saturating_sub(self.used_at(now));
        let left = u64::try_from(left).expect("at most the limit");
        let reset = self.counting(now).into_iter().map(|(end, _)| end - now).max().unwrap_or(0);
        let more = if left == limit { Duration::ZERO } else { ticks(self.wait(now, left + 1)) };
        LimitSnapshot::new(limit, self.quota.period())
            .with_remaining(left)
            .with_reset(ticks(reset))
            .with_next_token_after(more)
    }

    fn charge(&mut self, now: u64, _delay: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let (mut open, at) = self.open_at(now);
        if open.len() < Self::MAX_WINDOWS && !open.iter().any(|window| self.is_own(window, at)) {
            open.push(Open { first_hit: at, end: self.window_at(at).1, aligned: self.aligned, used: 0 });
        }
        for window in &mut open {
            window.used += u128::from(cost);
        }
        (self.windows, self.newest) = (open, at);
    }

    fn with_held(&self, now: u64, held: u64) -> Box<dyn Model> {
        let mut charged = self.clone();
        charged.charge(now, 0, held);
        Box::new(charged)
    }

    fn reset(&mut self) {
        (self.windows, self.newest) = (Vec::new(), 0);
    }

    fn supports_scheduling(&self) -> bool {
        false
    }

    fn newest(&self) -> u64 {
        self.newest
    }

    fn time_to_full(&self) -> u64 {
        self.period()
    }
}
