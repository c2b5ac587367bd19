//! A limiter with its open holds, and random operations on it.

use std::time::Duration;

use tower_ratelimit::limiter::Held;
use tower_ratelimit::{
    AcquireOptions, Calendar, Clock as _, Detail, DynLimit, FixedWindow, Gcra, LeakyQueue, Limit, Limiter, ManualClock,
    Memory, Quota, SlidingLog, SlidingWindow, TokenBucket, per_key,
};

use crate::immediate::{memory, ready};
use crate::random::Random;

pub(super) type Limits = Vec<DynLimit<u64>>;
pub(super) type Counts = Memory<u64, Limits>;

pub(super) const KEYS: u64 = 6;

/// The limits of scenario `kind`, with the quota of `tier`: 0, or 1 for a quota after a deploy.
pub(super) fn limits(kind: u64, tier: u64) -> Limits {
    let quota = Quota::new(5 + 3 * tier, Duration::from_millis(900 + 400 * tier));
    let small = Quota::new(3, Duration::from_millis(700));
    match kind % 10 {
        0 => vec![DynLimit::new(Gcra::new(quota).burst(4))],
        1 => vec![DynLimit::new(TokenBucket::new(quota))],
        2 => vec![DynLimit::new(LeakyQueue::new(quota).max_waiting(4))],
        3 => vec![DynLimit::new(FixedWindow::new(quota))],
        4 => vec![DynLimit::new(FixedWindow::new(quota).aligned_to_clock())],
        5 => vec![DynLimit::new(SlidingWindow::new(quota).blocks(4))],
        6 => vec![DynLimit::new(SlidingWindow::new(quota).blocks(2).weighted())],
        7 => vec![DynLimit::new(SlidingLog::new(quota))],
        9 => vec![DynLimit::new(FixedWindow::calendar(quota.limit(), Calendar::monthly_on(15)))],
        _ => vec![
            DynLimit::new(Limit::new("all", Gcra::new(quota).burst(9)).keyed_by(|_: &u64| ())),
            DynLimit::new(Limit::new("half", SlidingLog::new(quota)).keyed_by(|key: &u64| key % 2).shadow()),
            DynLimit::new(Limit::new(
                "tier",
                per_key(move |key: &u64| FixedWindow::new(if *key < 3 { quota } else { small })),
            )),
        ],
    }
}

pub(super) fn names(kind: u64) -> &'static [&'static str] {
    if kind % 10 == 8 { &["all", "half", "tier"] } else { &["default"] }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Advance(u64),
    Acquire {
        key: u64,
        cost: u64,
        max_delay: u64,
    },
    Hold {
        key: u64,
        cost: u64,
    },
    /// Ends one of the open holds.
    Settle {
        index: usize,
        actual: u64,
    },
    EndAll,
    Block {
        key: u64,
        limit: usize,
        millis: u64,
    },
    SetUsage {
        key: u64,
        limit: usize,
        used: u64,
    },
    Reset {
        key: u64,
    },
}

impl Op {
    pub(super) fn any(random: &mut Random) -> Self {
        let key = random.below(KEYS);
        match random.below(40) {
            0..=9 => Self::Advance(random.below(400_000)),
            10..=12 => Self::Hold { key, cost: random.below(4) },
            13..=16 => Self::Settle { index: random.index(8), actual: random.below(5) },
            17 => Self::Block { key, limit: random.index(3), millis: random.below(900) },
            18 => Self::SetUsage { key, limit: random.index(3), used: random.below(9) },
            19 => Self::Reset { key },
            _ => Self::Acquire { key, cost: random.below(3), max_delay: 300 * random.below(2) },
        }
    }
}

pub(super) struct World {
    pub(super) kind: u64,
    pub(super) clock: ManualClock,
    pub(super) limiter: Counts,
    pub(super) open: Vec<Held>,
}

impl World {
    pub(super) fn new(kind: u64) -> Self {
        // Seconds before the end of a month of the calendar: the 15th of January 2020.
        let clock = ManualClock::at(ManualClock::START.saturating_add(Duration::from_secs(14 * 86_400 - 5)));
        let limiter = memory(limits(kind, 0), &clock);
        Self { kind, clock, limiter, open: Vec::new() }
    }

    /// Runs an operation, and returns what a caller sees of it.
    pub(super) fn run(&mut self, op: Op) -> String {
        let name = |limit: usize| names(self.kind)[limit % names(self.kind).len()];
        let done = |reply: Result<(), tower_ratelimit::Error>| reply.expect("an operation in memory");
        match op {
            Op::Advance(micros) => self.clock.advance(Duration::from_micros(micros)),
            Op::Acquire { key, cost, max_delay } => {
                let options = AcquireOptions::cost(cost).max_delay(Duration::from_millis(max_delay));
                return format!("{:?}", self.limiter.check(&key, options.detail(Detail::All)));
            }
            Op::Hold { key, cost } => {
                let options = AcquireOptions::cost(cost).detail(Detail::All);
                let outcome = ready(self.limiter.hold(&key, options));
                self.open.extend(outcome.held);
                return format!("{:?}", outcome.decision);
            }
            Op::Settle { index, actual } if !self.open.is_empty() => {
                let held = self.open.remove(index % self.open.len());
                let _ = held.settle(actual).try_ready();
            }
            Op::Settle { .. } => {}
            Op::EndAll => self.open.clear(),
            Op::Block { key, limit, millis } => {
                let blocked = self.limiter.block(name(limit), &key, Duration::from_millis(millis));
                done(blocked.try_ready().expect("ready"));
            }
            Op::SetUsage { key, limit, used } => {
                done(self.limiter.set_usage(name(limit), &key, used).try_ready().expect("ready"));
            }
            Op::Reset { key } => done(self.limiter.reset(&key).try_ready().expect("ready")),
        }
        String::new()
    }

    pub(super) fn save(&self) -> Vec<u8> {
        let mut file = Vec::new();
        self.limiter.save(&mut file).expect("saved");
        file
    }

    /// The next process: the limiter of a file, with no open holds.
    pub(super) fn restart(&mut self, file: &[u8]) {
        let builder = Memory::builder(limits(self.kind, 0)).max_keys(100).clock(self.clock.clone());
        self.limiter = builder.restore(file).build().expect("restored");
        self.open.clear();
    }

    /// What callers would see of each key now.
    pub(super) fn look(&self) -> Vec<String> {
        let options = AcquireOptions::default().max_delay(Duration::ZERO).detail(Detail::All);
        let look = |key| self.limiter.peek(&key, options).try_ready().expect("ready").expect("a decision");
        (0..KEYS).map(|key| format!("{:?} {:?}", look(key), self.clock.now())).collect()
    }
}
