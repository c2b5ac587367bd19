//! The model of the sliding log and the sliding window: hits, until when each counts, and by how much. Waits are found
//! by a binary search for the first time at which the request fits.

use std::time::Duration;

use tower_ratelimit::{LimitSnapshot, Quota, Verdict};

use super::{Model, Spec};
use crate::span::{micros, ticks};

#[derive(Clone)]
pub(crate) struct Hits {
    terms: Terms,
    /// The terms of the last charge, by which the hits were counted.
    counted: Terms,
    entries: Vec<Hit>,
    /// The time of the last charge.
    newest: u64,
}

/// The rules by which hits count.
#[derive(Clone, Copy, PartialEq)]
enum Terms {
    SlidingLog { quota: Quota },
    SlidingWindow { quota: Quota, width: u64, blocks: u64, weighted: bool },
}

#[derive(Clone, Copy)]
struct Hit {
    /// The latest possible time of the hit: after the blocks change, it is known only up to a block.
    time: u64,
    weight: u128,
}

impl Terms {
    fn new(spec: Spec) -> Self {
        match spec {
            Spec::SlidingLog { quota } => Self::SlidingLog { quota },
            Spec::SlidingWindow { quota, blocks, weighted } => {
                Self::SlidingWindow { quota, width: micros(quota.period()) / blocks, blocks, weighted }
            }
            _ => panic!("{spec:?} has no hits"),
        }
    }

    fn quota(self) -> Quota {
        let (Self::SlidingLog { quota } | Self::SlidingWindow { quota, .. }) = self;
        quota
    }

    /// Returns the time at which a hit expires.
    fn expires_at(self, time: u64) -> u64 {
        match self {
            Self::SlidingLog { quota } => time + micros(quota.period()),
            Self::SlidingWindow { width, blocks, .. } => (time / width + blocks + 1) * width,
        }
    }

    /// Returns the share of an unexpired hit that counts at `now`, in parts of `whole()`.
    fn share(self, time: u64, now: u64) -> u64 {
        match self {
            Self::SlidingWindow { width, blocks, weighted: true, .. } if now / width - time / width >= blocks => {
                width - now % width
            }
            _ => self.whole(),
        }
    }

    fn whole(self) -> u64 {
        match self {
            Self::SlidingLog { .. } => 1,
            Self::SlidingWindow { width, .. } => width,
        }
    }

    /// Whether hits count alike under both terms: blocks of equal width and number do, whatever the limit.
    fn counts_as(self, other: Self) -> bool {
        match (self, other) {
            (Self::SlidingWindow { width, blocks, .. }, Self::SlidingWindow { width: w, blocks: b, .. }) => {
                (width, blocks) == (w, b)
            }
            _ => self.quota().period() == other.quota().period(),
        }
    }

    /// Returns the maximum time for which a hit counts.
    fn max_lifetime(self) -> u64 {
        match self {
            Self::SlidingLog { quota } => micros(quota.period()),
            Self::SlidingWindow { width, blocks, .. } => width * (blocks + 1),
        }
    }
}

impl Hits {
    pub(crate) fn new(spec: Spec) -> Self {
        let terms = Terms::new(spec);
        Self { terms, counted: terms, entries: Vec::new(), newest: 0 }
    }

    /// Returns the effective time (the newest time in the state, unless it is too far ahead) and the hits that may
    /// count.
    fn at(&self, now: u64) -> (u64, &[Hit]) {
        let at = now.max(self.newest);
        if at - now > self.terms.max_lifetime() { (now, &[]) } else { (at, &self.entries) }
    }

    /// Returns the latest possible time of a hit under the present terms.
    fn time(&self, hit: Hit) -> u64 {
        match self.counted {
            Terms::SlidingWindow { width, .. } if !self.terms.counts_as(self.counted) => {
                ((hit.time / width + 1) * width - 1).min(self.newest)
            }
            _ => hit.time,
        }
    }

    /// Returns the earlier expiry of the terms by which the hit was counted and of the present terms.
    fn expires_at(&self, hit: Hit) -> u64 {
        self.counted.expires_at(hit.time).min(self.terms.expires_at(self.time(hit)))
    }

    /// Returns the usage at `moment`, times `whole()`.
    fn used(&self, hits: &[Hit], moment: u64) -> u128 {
        let live = hits.iter().filter(|&&hit| self.expires_at(hit) > moment);
        live.map(|&hit| hit.weight * u128::from(self.terms.share(self.time(hit), moment))).sum()
    }

    fn idle_at(&self, hits: &[Hit]) -> u64 {
        hits.iter().map(|&hit| self.expires_at(hit)).max().unwrap_or(0)
    }

    /// Returns how long after `now` the cost `wanted` fits. Without further hits it then fits at all later times.
    fn free_after(&self, now: u64, wanted: u64) -> u64 {
        let (at, hits) = self.at(now);
        let whole = u128::from(self.terms.whole());
        let fits = |moment| {
            self.used(hits, moment) + u128::from(wanted) * whole <= u128::from(self.terms.quota().limit()) * whole
        };
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
}

impl Hits {
    fn count(&mut self, now: u64, cost: u64, max_hits: u64) {
        if cost == 0 {
            return;
        }
        let (at, hits) = self.at(now);
        let live = hits.iter().filter(|&&hit| self.expires_at(hit) > at);
        let mut hits: Vec<Hit> = live.map(|&hit| Hit { time: self.time(hit), ..hit }).collect();
        let (weight, is_full) = (u128::from(cost), hits.len() as u64 >= max_hits);
        match hits.last_mut() {
            Some(last) if last.time == at || is_full => *last = Hit { time: at, weight: last.weight + weight },
            _ => hits.push(Hit { time: at, weight }),
        }
        (self.entries, self.counted, self.newest) = (hits, self.terms, at);
    }
}

impl Model for Hits {
    fn set_spec(&mut self, spec: Spec) {
        self.terms = Terms::new(spec);
    }

    fn verdict(&self, now: u64, cost: u64, _max_delay: u64) -> Verdict {
        if cost > self.terms.quota().limit() {
            return Verdict::ExceedsLimit;
        }
        match self.free_after(now, cost) {
            0 => Verdict::Allowed,
            wait => Verdict::Denied { retry_after: ticks(wait) },
        }
    }

    fn snapshot(&self, now: u64) -> LimitSnapshot {
        let (limit, (at, hits)) = (self.terms.quota().limit(), self.at(now));
        let used = self.used(hits, at).div_ceil(u128::from(self.terms.whole()));
        let remaining = u64::try_from(u128::from(limit).saturating_sub(used)).expect("at most the limit");
        let reset = if used == 0 { Duration::ZERO } else { ticks(self.idle_at(hits) - now) };
        let next_token_after =
            if remaining < limit { ticks(self.free_after(now, remaining + 1)) } else { Duration::ZERO };
        LimitSnapshot::new(limit, self.terms.quota().period())
            .with_remaining(remaining)
            .with_reset(reset)
            .with_next_token_after(next_token_after)
    }

    fn charge(&mut self, now: u64, _delay: u64, cost: u64) {
        // A log stores at most `limit` hits: a surcharge beyond them is added to the newest hit.
        let max_hits = if let Terms::SlidingLog { quota } = self.terms { quota.limit() } else { u64::MAX };
        self.count(now, cost, max_hits);
    }

    fn with_held(&self, now: u64, held: u64) -> Box<dyn Model> {
        let mut charged = self.clone();
        charged.count(now, held, u64::MAX);
        Box::new(charged)
    }

    fn reset(&mut self) {
        (self.entries, self.newest) = (Vec::new(), 0);
    }

    fn supports_scheduling(&self) -> bool {
        false
    }

    fn newest(&self) -> u64 {
        self.newest
    }

    fn time_to_full(&self) -> u64 {
        self.terms.max_lifetime()
    }
}
