//! The model of the fixed window: the current window and its usage.

use std::time::Duration;

use tower_ratelimit::{LimitSnapshot, Quota, Verdict};

use super::{Model, Spec};
use crate::span::{micros, ticks};

#[derive(Clone)]
pub(crate) struct Window {
    quota: Quota,
    aligned: bool,
    open: Option<Open>,
}

#[derive(Clone, Copy)]
struct Open {
    start: u64,
    /// The end according to the quota that started the window.
    end: u64,
    used: u128,
    newest: u64,
}

impl Window {
    pub(crate) fn new(quota: Quota, aligned: bool) -> Self {
        Self { quota, aligned, open: None }
    }

    /// Returns the current window and the effective time: the newest in the state, unless it is too far ahead.
    fn open_at(&self, now: u64) -> (Option<Open>, u64) {
        let Some(open) = self.open else { return (None, now) };
        let at = now.max(open.newest);
        if at - now > self.time_to_full() {
            return (None, now);
        }
        (Some(open).filter(|open| at < self.closes(open)), at)
    }

    /// Returns the end of a window: by the quota that started it or by the present quota, whichever is earlier.
    fn closes(&self, open: &Open) -> u64 {
        open.end.min(open.start + micros(self.quota.period()))
    }

    fn used_at(&self, now: u64) -> u128 {
        self.open_at(now).0.map_or(0, |open| open.used)
    }

    fn rest(&self, now: u64) -> Duration {
        self.open_at(now).0.map_or(Duration::ZERO, |open| ticks(self.closes(&open) - now))
    }
}

impl Model for Window {
    fn set_spec(&mut self, spec: Spec) {
        let Spec::FixedWindow { quota, aligned } = spec else { panic!("{spec:?} is not a fixed window") };
        (self.quota, self.aligned) = (quota, aligned);
    }

    fn verdict(&self, now: u64, cost: u64, _max_delay: u64) -> Verdict {
        if cost > self.quota.limit() {
            Verdict::ExceedsLimit
        } else if self.used_at(now) + u128::from(cost) <= u128::from(self.quota.limit()) {
            Verdict::Allowed
        } else {
            Verdict::Denied { retry_after: self.rest(now) }
        }
    }

    fn snapshot(&self, now: u64) -> LimitSnapshot {
        let left = u128::from(self.quota.limit()).saturating_sub(self.used_at(now));
        LimitSnapshot::new(self.quota.limit(), self.quota.period())
            .with_remaining(u64::try_from(left).expect("at most the limit"))
            .with_reset(self.rest(now))
            .with_next_token_after(self.rest(now))
    }

    fn charge(&mut self, now: u64, _delay: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let (open, at) = self.open_at(now);
        let period = micros(self.quota.period());
        let start = if self.aligned { at / period * period } else { at };
        // A charge counts until its calendar window ends, whatever quota started the window.
        let open = match open {
            Some(open) if self.aligned && self.closes(&open) < start + period => {
                Open { start, end: start + period, ..open }
            }
            Some(open) => open,
            None => Open { start, end: start + period, used: 0, newest: at },
        };
        self.open = Some(Open { used: open.used + u128::from(cost), newest: at, ..open });
    }

    fn with_held(&self, now: u64, held: u64) -> Box<dyn Model> {
        let mut charged = self.clone();
        charged.charge(now, 0, held);
        Box::new(charged)
    }

    fn reset(&mut self) {
        self.open = None;
    }

    fn supports_scheduling(&self) -> bool {
        false
    }

    fn newest(&self) -> u64 {
        self.open.map_or(0, |open| open.newest)
    }

    fn time_to_full(&self) -> u64 {
        micros(self.quota.period())
    }
}
