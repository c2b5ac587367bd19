//! The sliding log and the sliding window: hits, and until when and how much of each counts. All else is found by searching
//! for the first moment at which it holds.

use std::time::Duration;

use tower_ratelimit::{LimitSnapshot, Quota, Verdict};

use super::{Model, Spec};
use crate::span::{micros, ticks};

#[derive(Clone)]
pub(crate) struct Hits {
    terms: Terms,
    /// The terms that the hits were last counted under: those of the last charge.
    counted: Terms,
    remembered: Vec<Hit>,
    /// The time of the last charge.
    newest: u64,
}

/// How hits count.
#[derive(Clone, Copy, PartialEq)]
enum Terms {
    HitLog { quota: Quota },
    Counters { quota: Quota, width: u64, blocks: u64, weighted: bool },
}

#[derive(Clone, Copy)]
struct Hit {
    /// The latest time at which it can have been: in blocks that is known to a block only, once they have changed.
    time: u64,
    weight: u128,
}

impl Terms {
    fn new(spec: Spec) -> Self {
        match spec {
            Spec::HitLog { quota } => Self::HitLog { quota },
            Spec::Counters { quota, blocks, weighted } => {
                Self::Counters { quota, width: micros(quota.period()) / blocks, blocks, weighted }
            }
            _ => panic!("{spec:?} has no hits"),
        }
    }

    fn quota(self) -> Quota {
        let (Self::HitLog { quota } | Self::Counters { quota, .. }) = self;
        quota
    }

    /// Until when a hit counts at all.
    fn counts_until(self, time: u64) -> u64 {
        match self {
            Self::HitLog { quota } => time + micros(quota.period()),
            Self::Counters { width, blocks, .. } => (time / width + blocks + 1) * width,
        }
    }

    /// The share of a hit that counts at `now`, before it has expired: so many of `whole()`.
    fn share(self, time: u64, now: u64) -> u64 {
        match self {
            Self::Counters { width, blocks, weighted: true, .. } if now / width - time / width >= blocks => {
                width - now % width
            }
            _ => self.whole(),
        }
    }

    fn whole(self) -> u64 {
        match self {
            Self::HitLog { .. } => 1,
            Self::Counters { width, .. } => width,
        }
    }

    /// Counters of equal width and number are equal, whatever they limit.
    fn has_same_sub_key(self, other: Self) -> bool {
        match (self, other) {
            (Self::Counters { width, blocks, .. }, Self::Counters { width: w, blocks: b, .. }) => {
                (width, blocks) == (w, b)
            }
            _ => self.quota().period() == other.quota().period(),
        }
    }

    /// The longest that a hit counts.
    fn longest(self) -> u64 {
        match self {
            Self::HitLog { quota } => micros(quota.period()),
            Self::Counters { width, blocks, .. } => width * (blocks + 1),
        }
    }
}

impl Hits {
    pub(crate) fn new(spec: Spec) -> Self {
        let terms = Terms::new(spec);
        Self { terms, counted: terms, remembered: Vec::new(), newest: 0 }
    }

    /// The time to decide at, the newest that was seen unless it is too far ahead, and what may count then.
    fn at(&self, now: u64) -> (u64, &[Hit]) {
        let at = now.max(self.newest);
        if at - now > self.terms.longest() { (now, &[]) } else { (at, &self.remembered) }
    }

    /// The latest time of a hit, for the present terms.
    fn time(&self, hit: Hit) -> u64 {
        match self.counted {
            Terms::Counters { width, .. } if !self.terms.has_same_sub_key(self.counted) => {
                ((hit.time / width + 1) * width - 1).min(self.newest)
            }
            _ => hit.time,
        }
    }

    /// As long as both the terms that it was last counted under and the present ones say.
    fn counts_until(&self, hit: Hit) -> u64 {
        self.counted.counts_until(hit.time).min(self.terms.counts_until(self.time(hit)))
    }

    /// What is used at `moment`, times `whole()`.
    fn used(&self, hits: &[Hit], moment: u64) -> u128 {
        let live = hits.iter().filter(|&&hit| self.counts_until(hit) > moment);
        live.map(|&hit| hit.weight * u128::from(self.terms.share(self.time(hit), moment))).sum()
    }

    fn idle_at(&self, hits: &[Hit]) -> u64 {
        hits.iter().map(|&hit| self.counts_until(hit)).max().unwrap_or(0)
    }

    /// How long after `now` so much is free: with no more hits that then holds for good.
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
    fn count(&mut self, now: u64, cost: u64, most: u64) {
        if cost == 0 {
            return;
        }
        let (at, hits) = self.at(now);
        let live = hits.iter().filter(|&&hit| self.counts_until(hit) > at);
        let mut hits: Vec<Hit> = live.map(|&hit| Hit { time: self.time(hit), ..hit }).collect();
        let (weight, is_full) = (u128::from(cost), hits.len() as u64 >= most);
        match hits.last_mut() {
            Some(last) if last.time == at || is_full => *last = Hit { time: at, weight: last.weight + weight },
            _ => hits.push(Hit { time: at, weight }),
        }
        (self.remembered, self.counted, self.newest) = (hits, self.terms, at);
    }
}

impl Model for Hits {
    fn hold_to(&mut self, spec: Spec) {
        self.terms = Terms::new(spec);
    }

    fn verdict(&self, now: u64, cost: u64, _patience: u64) -> Verdict {
        if cost > self.terms.quota().limit() {
            return Verdict::ExceedsLimit;
        }
        match self.free_after(now, cost) {
            0 => Verdict::Allowed,
            wait => Verdict::Denied { retry_after: ticks(wait) },
        }
    }

    fn figures(&self, now: u64) -> LimitSnapshot {
        let (limit, (at, hits)) = (self.terms.quota().limit(), self.at(now));
        let used = self.used(hits, at).div_ceil(u128::from(self.terms.whole()));
        let remaining = u64::try_from(u128::from(limit).saturating_sub(used)).expect("at most the limit");
        let reset = if used == 0 { Duration::ZERO } else { ticks(self.idle_at(hits) - now) };
        let next_token_after =
            if remaining < limit { ticks(self.free_after(now, remaining + 1)) } else { Duration::ZERO };
        LimitSnapshot { limit, window: self.terms.quota().period(), remaining, reset, next_token_after }
    }

    fn charge(&mut self, now: u64, _delay: u64, cost: u64) {
        // A log has no room for more hits than its limit: a surcharge counts with the newest one.
        let most = if let Terms::HitLog { quota } = self.terms { quota.limit() } else { u64::MAX };
        self.count(now, cost, most);
    }

    fn with_held(&self, now: u64, held: u64) -> Box<dyn Model> {
        let mut charged = self.clone();
        charged.count(now, held, u64::MAX);
        Box::new(charged)
    }

    fn forget(&mut self) {
        (self.remembered, self.newest) = (Vec::new(), 0);
    }

    fn supports_scheduling(&self) -> bool {
        false
    }

    fn newest(&self) -> u64 {
        self.newest
    }

    fn time_to_full(&self) -> u64 {
        self.terms.longest()
    }
}
