//! The model of the sliding log: hits, until when each counts, and by how much. Waits are found by a binary search for the
//! first time at which the request fits.

use std::time::Duration;

use tower_ratelimit::{LimitSnapshot, Quota, Verdict};

use super::{Model, Spec};
use crate::span::{micros, ticks};

#[derive(Clone)]
pub(crate) struct Hits {
    quota: Quota,
    entries: Vec<Hit>,
    /// The time of the last charge.
    newest: u64,
    kept: Kept,
}

/// The longest period and the largest limit of the charges, in two generations.
#[derive(Clone, Copy, Default)]
struct Kept {
    present: (u64, u64),
    previous: (u64, u64),
    ends: u64,
}

impl Kept {
    fn period(self) -> u64 {
        self.present.0.max(self.previous.0)
    }

    fn limit(self) -> u64 {
        self.present.1.max(self.previous.1)
    }

    fn charge(&mut self, quota: Quota, at: u64) {
        if at >= self.ends {
            *self = Self { present: (0, 0), previous: self.present, ends: at + self.present.0 };
        }
        let (period, limit) = self.present;
        self.present = (period.max(micros(quota.period())), limit.max(quota.limit()));
    }
}

#[derive(Clone, Copy)]
struct Hit {
    time: u64,
    weight: u128,
}

impl Hits {
    pub(crate) fn new(spec: Spec) -> Self {
        let Spec::SlidingLog { quota } = spec else { panic!("{spec:?} is not a log") };
        Self { quota, entries: Vec::new(), newest: 0, kept: Kept::default() }
    }

    /// Returns the effective time (the newest time in the state, unless it is too far ahead) and the hits that may
    /// count.
    fn at(&self, now: u64) -> (u64, &[Hit]) {
        let at = now.max(self.newest);
        if at - now > micros(self.quota.period()) { (now, &[]) } else { (at, &self.entries) }
    }

    fn expires_at(&self, hit: Hit) -> u64 {
        hit.time + micros(self.quota.period()).min(self.kept.period())
    }

    fn used(&self, hits: &[Hit], moment: u64) -> u128 {
        hits.iter().filter(|&&hit| self.expires_at(hit) > moment).map(|hit| hit.weight).sum()
    }

    fn idle_at(&self, hits: &[Hit]) -> u64 {
        hits.iter().map(|&hit| self.expires_at(hit)).max().unwrap_or(0)
    }

    /// Returns how long after `now` the cost `wanted` fits. Without further hits it then fits at all later times.
    fn free_after(&self, now: u64, wanted: u64) -> u64 {
        let (at, hits) = self.at(now);
        let fits = |moment| self.used(hits, moment) + u128::from(wanted) <= u128::from(self.quota.limit());
        if fits(at) {
            return 0;
        }
        let (mut early, mut late) = (at, self.idle_at(hits));
        while late - early > 1 {
            let middle = early + (late - early) / 2;
            if fits(middle) { late = middle } else { early = middle }
        }
        late - now
    }

    /// Counts a hit. With `merges`, the oldest hits beyond the limit count with the hit after them.
    fn count(&mut self, now: u64, cost: u64, merges: bool) {
        if cost == 0 {
            return;
        }
        let at = self.at(now).0;
        let idle_at = self.newest + self.kept.period();
        if at < self.newest || idle_at <= at {
            (self.entries, self.kept) = (Vec::new(), Kept::default());
        }
        let period = self.kept.period();
        self.entries.retain(|hit| hit.time + period > at);
        self.kept.charge(self.quota, at);
        match self.entries.last_mut() {
            Some(last) if last.time == at => last.weight += u128::from(cost),
            _ => self.entries.push(Hit { time: at, weight: cost.into() }),
        }
        self.newest = at;
        while merges && self.entries.len() as u64 > self.kept.limit() {
            let oldest = self.entries.remove(0);
            self.entries[0].weight += oldest.weight;
        }
    }
}

impl Model for Hits {
    fn set_spec(&mut self, spec: Spec) {
        self.quota = Self::new(spec).quota;
    }

    fn verdict(&self, now: u64, cost: u64, _max_delay: u64) -> Verdict {
        if cost > self.quota.limit() {
            return Verdict::ExceedsLimit;
        }
        match self.free_after(now, cost) {
            0 => Verdict::Allowed,
            wait => Verdict::Denied { retry_after: ticks(wait) },
        }
    }

    fn snapshot(&self, now: u64) -> LimitSnapshot {
        let (limit, (at, hits)) = (self.quota.limit(), self.at(now));
        let used = self.used(hits, at);
        let remaining = u64::try_from(u128::from(limit).saturating_sub(used)).expect("at most the limit");
        let reset = if used == 0 { Duration::ZERO } else { ticks(self.idle_at(hits) - now) };
        let next_token_after =
            if remaining < limit { ticks(self.free_after(now, remaining + 1)) } else { Duration::ZERO };
        LimitSnapshot::new(limit, self.quota.period())
            .with_remaining(remaining)
            .with_reset(reset)
            .with_next_token_after(next_token_after)
    }

    fn charge(&mut self, now: u64, _delay: u64, cost: u64) {
        self.count(now, cost, true);
    }

    fn with_held(&self, now: u64, held: u64) -> Box<dyn Model> {
        let mut charged = self.clone();
        charged.count(now, held, false);
        Box::new(charged)
    }

    fn reset(&mut self) {
        (self.entries, self.newest, self.kept) = (Vec::new(), 0, Kept::default());
    }

    fn supports_scheduling(&self) -> bool {
        false
    }

    fn newest(&self) -> u64 {
        self.newest
    }

    fn time_to_full(&self) -> u64 {
        micros(self.quota.period())
    }
}
