//! The usage of a key at a time, from the closed forms that the documentation of each algorithm states.

use std::time::Duration;

use super::Quota;
use crate::store::redis::RedisLimit;
use crate::store::redis::lease::server_model::KeyUsage;
use crate::store::redis::script::LimitInfo;
use crate::{FixedWindow, Gcra, Limit, SlidingLog, SlidingWindow};

/// The period of windows, in microseconds. A schedule has several.
const PERIOD: u64 = 60_000;
const BLOCKS: u64 = 6;
const WIDTH: u64 = PERIOD / BLOCKS;

/// A unit: usages are in millionths.
const UNIT: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Bucket,
    FixedWindow,
    AlignedWindow,
    SlidingWindow,
    WeightedWindow,
    SlidingLog,
}

impl Kind {
    pub(super) const ALL: [Self; 6] = [
        Self::Bucket,
        Self::FixedWindow,
        Self::AlignedWindow,
        Self::SlidingWindow,
        Self::WeightedWindow,
        Self::SlidingLog,
    ];

    /// Returns the crate's limit.
    pub(super) fn info(self, name: &'static str, quota: &Quota) -> LimitInfo {
        macro_rules! info {
            ($algorithm:expr) => {{
                let limit = Limit::new(name, $algorithm);
                RedisLimit::<str>::new(if quota.is_shadow { limit.shadow() } else { limit }).0.info()
            }};
        }
        let in_period = crate::Quota::new(quota.burst, Duration::from_micros(PERIOD));
        let sliding = SlidingWindow::new(in_period).blocks(BLOCKS);
        match self {
            Self::Bucket => info!(Gcra::new(crate::Quota::per_second(quota.rate)).burst(quota.burst)),
            Self::FixedWindow => info!(FixedWindow::new(in_period)),
            Self::AlignedWindow => info!(FixedWindow::new(in_period).aligned_to_clock()),
            Self::SlidingWindow => info!(sliding),
            Self::WeightedWindow => info!(sliding.weighted()),
            Self::SlidingLog => info!(SlidingLog::new(in_period)),
        }
    }
}

/// What was charged to a key. The times do not decrease.
pub(super) struct Charges {
    kind: Kind,
    quota: &'static Quota,
    /// Times, and amounts in millionths of a unit.
    amounts: Vec<(u64, u64)>,
    /// The starts of all fixed windows.
    windows: Vec<u64>,
}

impl KeyUsage for Charges {
    fn charge(&mut self, at: u64, units: u64) {
        match self.kind {
            // One amount that drains.
            Kind::Bucket => self.amounts = vec![(at, self.used(at))],
            // A window starts at the first hit, and lasts one period.
            Kind::FixedWindow if units > 0 && self.window(at).is_none() => self.windows.push(at),
            _ => {}
        }
        if units > 0 {
            self.amounts.retain(|(time, _)| self.kind == Kind::Bucket || time + 2 * PERIOD > at);
            self.amounts.push((at, units * UNIT));
        }
    }

    fn has_room(&self, now: u64, units: u64) -> bool {
        self.used(now) + units * UNIT <= self.quota.burst * UNIT
    }

    fn is_idle(&self, now: u64) -> bool {
        self.used(now) == 0
    }
}

impl Charges {
    pub(super) fn new(kind: Kind, quota: &'static Quota) -> Self {
        Self { kind, quota, amounts: Vec::new(), windows: Vec::new() }
    }

    /// Returns the usage at a time that is not before the last charge.
    fn used(&self, now: u64) -> u64 {
        let (block, rest) = (now / WIDTH, now % WIDTH);
        let counted = |&(time, amount): &(u64, u64)| match self.kind {
            Kind::Bucket => amount,
            Kind::FixedWindow if self.window(now).is_some_and(|start| start <= time) => amount,
            Kind::AlignedWindow if time / PERIOD == now / PERIOD => amount,
            Kind::WeightedWindow if block - time / WIDTH == BLOCKS => amount / WIDTH * (WIDTH - rest),
            Kind::SlidingWindow | Kind::WeightedWindow if block - time / WIDTH <= BLOCKS => amount,
            Kind::SlidingLog if now < time + PERIOD => amount,
            _ => 0,
        };
        let sum: u64 = self.amounts.iter().map(counted).sum();
        match self.amounts.first() {
            Some((since, _)) if self.kind == Kind::Bucket => sum.saturating_sub(self.quota.rate * (now - since)),
            _ => sum,
        }
    }

    /// Returns the start of the last fixed window, if that is open at a time.
    fn window(&self, now: u64) -> Option<u64> {
        self.windows.last().copied().filter(|start| now < start + PERIOD)
    }

    /// Returns the units that a log of times admits beyond the bound, on a key with these charges.
    ///
    /// Units that a process has spent are charged later, or still held. In each closed form a later charge counts for
    /// no less, so the form holds for the admissions themselves. Only the windows of a
    /// [`FixedWindow`](Kind::FixedWindow) depend on the charges: each of them admits the limit.
    pub(super) fn beyond(&self, log: &[u64]) -> u64 {
        if self.kind == Kind::FixedWindow {
            let admitted = |start: &u64| log.iter().filter(|at| (*start..start + PERIOD).contains(at)).count() as u64;
            return self.windows.iter().map(|start| admitted(start).saturating_sub(self.quota.burst)).sum();
        }
        let mut admissions = Self::new(self.kind, self.quota);
        let is_beyond = |at: &&u64| {
            admissions.charge(**at, 1);
            admissions.used(**at) > self.quota.burst * UNIT
        };
        log.iter().filter(is_beyond).count() as u64
    }
}
