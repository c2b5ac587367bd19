//! Decisions in memory equal those of the reference models, on the limits and the schedule that the input encodes.

use std::time::Duration;

use tower_ratelimit::{Gcra, Quota, SlidingWindow};

use crate::harness::Pair;
use crate::model::Spec;
use crate::schedule::{Cost, Event, Gap, MaxDelay, Step};

const MAX_STEPS: usize = 60;

/// Panics if a field of a decision differs from the model's.
pub(crate) fn check(input: &[u8]) {
    let mut input = Input(input);
    let start = [0, 1, 1_790_000_000_000_000][input.below_usize(3)];
    let limits: Vec<Vec<Spec>> = (0..=input.below(3)).map(|_| input.tiers()).collect();
    let mut pair = Pair::new(&limits, start);
    let mut steps = Vec::new();
    while !input.0.is_empty() && steps.len() < MAX_STEPS {
        steps.push(input.step());
        if let Err(difference) = pair.step_and_compare(steps[steps.len() - 1]) {
            panic!("{difference}\nlimits {limits:?}, start {start}, steps {steps:?}");
        }
    }
}

/// The rest of the input. Its end reads as zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    fn below_usize(&mut self, end: u8) -> usize {
        usize::from(self.below(end))
    }

    /// A number of any order of magnitude up to `max`, at least 1.
    fn number(&mut self, max: u64) -> u64 {
        let bits = u32::from(self.byte()) % (max.ilog2() + 1);
        let digits = u64::from(self.byte()) << 8 | u64::from(self.byte());
        (1_u64 << bits | digits & ((1 << bits) - 1)).min(max)
    }

    fn offset(&mut self) -> i64 {
        i64::from(self.below(3)) - 1
    }

    /// Up to three configurations of one limit, which is always of the same algorithm.
    fn tiers(&mut self) -> Vec<Spec> {
        let (algorithm, count) = (self.below(4), self.below(3));
        (0..=count).map(|_| self.spec(algorithm)).collect()
    }

    fn spec(&mut self, algorithm: u8) -> Spec {
        // Small numbers, so that few steps reach the boundaries; buckets with any.
        let (max_limit, max_period) = if algorithm == 0 { (1_000_000_000, 1 << 52) } else { (40, 4_000) };
        let (limit, period) = (self.number(max_limit), self.number(max_period));
        let quota = Quota::new(limit, Duration::from_micros(period));
        match algorithm {
            0 => self.bucket(quota),
            1 => Spec::FixedWindow { quota, aligned: self.below(2) == 1 },
            2 => self.blocks(quota),
            _ => Spec::SlidingLog { quota },
        }
    }

    fn bucket(&mut self, quota: Quota) -> Spec {
        let burst = self.number(40);
        let is_valid = Gcra::try_new(quota).and_then(|bucket| bucket.try_burst(burst)).is_ok();
        Spec::Bucket { quota: if is_valid { quota } else { Quota::per_second(3) }, burst }
    }

    fn blocks(&mut self, quota: Quota) -> Spec {
        let (blocks, weighted) = (self.number(12), self.below(2) == 1);
        let window = SlidingWindow::new(quota).try_blocks(blocks).ok();
        let is_valid = window.is_some_and(|window| !weighted || window.try_weighted().is_ok());
        // One block is always valid.
        Spec::SlidingWindow { quota, blocks: if is_valid { blocks } else { 1 }, weighted: is_valid && weighted }
    }

    fn step(&mut self) -> Step {
        match self.below(16) {
            0..=4 => Step::Wait(self.gap()),
            5 => Step::Back(self.gap()),
            6..=9 => Step::Acquire { cost: self.cost(), max_delay: self.max_delay(), all_limits: self.below(2) == 1 },
            10 | 11 => Step::Hold { cost: self.cost(), max_delay: self.max_delay(), all_limits: self.below(2) == 1 },
            12 => Step::Settle { which: self.below_usize(4), actual: self.cost() },
            13 => match self.below(3) {
                0 => Step::Release { which: self.below_usize(4) },
                1 => Step::Drop { which: self.below_usize(4) },
                _ => Step::Surcharge { which: self.below_usize(4), cost: u64::from(self.below(6)) },
            },
            14 => Step::Tier(self.below_usize(3)),
            _ => Step::Reset,
        }
    }

    fn gap(&mut self) -> Gap {
        match self.below(3) {
            0 => Gap::Ticks(u64::from(self.byte())),
            1 => Gap::Share(u64::from(self.byte()) * 2),
            _ => {
                let event = match self.below(5) {
                    0 => Event::Retry(self.cost()),
                    1 => Event::Reset,
                    2 => Event::MoreAfter,
                    3 => Event::Newest,
                    _ => Event::Oldest,
                };
                Gap::Until(event, self.offset())
            }
        }
    }

    fn cost(&mut self) -> Cost {
        match self.below(4) {
            0 => Cost::Exactly(u64::from(self.below(6))),
            1 => Cost::Share(u64::from(self.byte())),
            2 => Cost::Remaining(self.offset()),
            _ => Cost::Capacity(self.offset()),
        }
    }

    fn max_delay(&mut self) -> MaxDelay {
        match self.below(4) {
            0 | 1 => MaxDelay::None,
            2 => MaxDelay::Enough(self.offset()),
            _ if self.below(2) == 0 => MaxDelay::Share(u64::from(self.byte())),
            _ => MaxDelay::Unlimited,
        }
    }
}
