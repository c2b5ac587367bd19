//! The model of the sliding window: for each period and number of blocks that has charged the key, the hits since then.
//! Waits are found by a binary search for the first time at which the request fits.

use std::time::Duration;

use tower_ratelimit::{LimitSnapshot, Quota, Verdict};

use super::{Model, Spec};
use crate::span::{micros, ticks};

#[derive(Clone)]
#[allow(clippy::struct_field_names, reason = "the rings of several layouts")]
pub(crate) struct Rings {
    quota: Quota,
    blocks: Blocks,
    weighted: bool,
    rings: Vec<Ring>,
    /// The time of the last charge.
    newest: u64,
}

#[derive(Clone, Copy, PartialEq)]
struct Blocks {
    width: u64,
    count: u64,
}

impl Blocks {
    fn span(self) -> u64 {
        self.width * (self.count + 1)
    }

    fn expires_at(self, time: u64) -> u64 {
        (time / self.width + self.count + 1) * self.width
    }

    /// The words of its state.
    fn words(self) -> u64 {
        self.count + 7
    }
}

#[derive(Clone)]
struct Ring {
    blocks: Blocks,
    /// The time and the weight of each hit. The time of a hit from another ring is the first possible one.
    hits: Vec<(u64, u128)>,
    /// No hit of the newest block is earlier.
    first_at: u64,
}

impl Ring {
    fn idle_at(&self) -> u64 {
        self.hits.iter().map(|hit| self.blocks.expires_at(hit.0)).max().unwrap_or(0)
    }

    fn charge(&mut self, at: u64, cost: u64) {
        let block = at / self.blocks.width;
        self.hits.retain(|hit| self.blocks.expires_at(hit.0) > at);
        if self.hits.iter().all(|hit| hit.0 / self.blocks.width < block) {
            self.first_at = at;
        }
        self.hits.push((at, cost.into()));
    }
}

/// A hit under the present terms.
#[derive(Clone, Copy)]
struct Counted {
    time: u64,
    expires_at: u64,
    weight: u128,
}

impl Rings {
    pub(crate) fn new(spec: Spec) -> Self {
        let Spec::SlidingWindow { quota, blocks, weighted } = spec else { panic!("{spec:?} is not a sliding window") };
        let blocks = Blocks { width: micros(quota.period()) / blocks, count: blocks };
        Self { quota, blocks, weighted, rings: Vec::new(), newest: 0 }
    }

    /// Returns the effective time (the newest time in the state, unless it is too far ahead) and the rings that count.
    fn at(&self, now: u64) -> (u64, Vec<&Ring>) {
        let at = now.max(self.newest);
        if at - now > self.blocks.span() {
            return (now, Vec::new());
        }
        (at, self.rings.iter().filter(|ring| ring.idle_at() > at).collect())
    }

    /// Returns the hits that count from now on.
    fn counted(&self, now: u64) -> Vec<Counted> {
        let (at, live) = self.at(now);
        let own = self.blocks;
        let rank = |ring: &&Ring| {
            let span = ring.blocks.span();
            let covers = span >= own.span();
            (ring.blocks != own, !covers, if covers { span } else { u64::MAX - span })
        };
        let ring = self.rings.iter().min_by_key(rank).filter(|ring| !live.is_empty() && ring.idle_at() > at);
        let Some(ring) = ring else { return Vec::new() };
        let newest = self.newest / ring.blocks.width;
        let hits = ring.hits.iter().map(|&(time, weight)| {
            let block = time / ring.blocks.width;
            let start = block * ring.blocks.width;
            let first = if block == newest { start.max(ring.first_at) } else { start };
            let time = if ring.blocks == own { time } else { first };
            Counted { time, expires_at: own.expires_at(time).min(ring.blocks.expires_at(start)), weight }
        });
        hits.filter(|hit| hit.expires_at > at).collect()
    }

    /// Returns when there is a place for the ring of the present terms.
    fn full_until(&self, now: u64) -> Option<u64> {
        let (at, rings) = self.at(now);
        if rings.is_empty() || rings.iter().any(|ring| ring.blocks == self.blocks) {
            return None;
        }
        let fits = |moment: u64| {
            let left = rings.iter().filter(|ring| ring.idle_at() > moment);
            let words: u64 = left.clone().map(|ring| ring.blocks.words()).sum();
            left.count() < 4 && words + self.blocks.words() <= 134
        };
        let idle_times = rings.iter().map(|ring| ring.idle_at()).filter(|moment| fits(*moment));
        if fits(at) { None } else { idle_times.min() }
    }

    /// Returns the usage, times the width of a block.
    fn used(&self, hits: &[Counted], moment: u64) -> u128 {
        let Blocks { width, count } = self.blocks;
        let share = |time: u64| {
            let is_oldest = self.weighted && moment / width - time / width >= count;
            if is_oldest { width - moment % width } else { width }
        };
        let live = hits.iter().filter(|hit| hit.expires_at > moment);
        live.map(|hit| hit.weight * u128::from(share(hit.time))).sum()
    }

    /// Returns how long after `now` the cost fits. Without further hits it then fits at all later times.
    fn free_after(&self, now: u64, cost: u64) -> u64 {
        let (hits, full_until) = (self.counted(now), self.full_until(now).filter(|_| cost > 0));
        let width = u128::from(self.blocks.width);
        let fits = |moment| {
            let used = self.used(&hits, moment) + u128::from(cost) * width;
            used <= u128::from(self.quota.limit()) * width && full_until.is_none_or(|full| full <= moment)
        };
        let (mut early, _) = self.at(now);
        if fits(early) {
            return 0;
        }
        let idle_at = hits.iter().map(|hit| hit.expires_at).max().unwrap_or(0);
        let mut late = idle_at.max(full_until.unwrap_or(0));
        while late - early > 1 {
            let middle = early + (late - early) / 2;
            if fits(middle) { late = middle } else { early = middle }
        }
        late - now
    }

    fn count(&mut self, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let (at, full_until) = (self.at(now).0, self.full_until(now));
        let adopted = self.counted(now);
        let mut rings: Vec<Ring> = self.at(now).1.into_iter().cloned().collect();
        if full_until.is_none() && !rings.iter().any(|ring| ring.blocks == self.blocks) {
            let hits = adopted.iter().map(|hit| (hit.time, hit.weight)).collect();
            rings.push(Ring { blocks: self.blocks, hits, first_at: at / self.blocks.width * self.blocks.width });
        }
        for ring in &mut rings {
            ring.charge(at, cost);
        }
        (self.rings, self.newest) = (rings, at);
    }
}

impl Model for Rings {
    fn set_spec(&mut self, spec: Spec) {
        let Self { quota, blocks, weighted, .. } = Self::new(spec);
        (self.quota, self.blocks, self.weighted) = (quota, blocks, weighted);
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
        let (limit, hits) = (self.quota.limit(), self.counted(now));
        let used = self.used(&hits, self.at(now).0).div_ceil(u128::from(self.blocks.width));
        let mut remaining = u64::try_from(u128::from(limit).saturating_sub(used)).expect("at most the limit");
        let mut idle_at = hits.iter().map(|hit| hit.expires_at).max().unwrap_or(now);
        if let Some(full_until) = self.full_until(now) {
            (remaining, idle_at) = (0, idle_at.max(full_until));
        }
        let more = if remaining < limit { ticks(self.free_after(now, remaining + 1)) } else { Duration::ZERO };
        LimitSnapshot::new(limit, self.quota.period())
            .with_remaining(remaining)
            .with_reset(ticks(idle_at - now))
            .with_next_token_after(more)
    }

    fn charge(&mut self, now: u64, _delay: u64, cost: u64) {
        self.count(now, cost);
    }

    fn with_held(&self, now: u64, held: u64) -> Box<dyn Model> {
        let mut charged = self.clone();
        charged.count(now, held);
        Box::new(charged)
    }

    fn reset(&mut self) {
        (self.rings, self.newest) = (Vec::new(), 0);
    }

    fn supports_scheduling(&self) -> bool {
        false
    }

    fn newest(&self) -> u64 {
        self.newest
    }

    fn time_to_full(&self) -> u64 {
        self.blocks.span()
    }
}
