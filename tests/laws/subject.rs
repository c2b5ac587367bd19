//! The limiter under test, in virtual time, and its comparison with the model.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Acquisition, Held, LimiterFuture, Outcome};
use tower_ratelimit::{
    AcquireOptions, Clock, Decision, Detail, DynLimit, FixedWindow, Gcra, Limit, LimitStatus, Limiter, ManualClock,
    Memory, SlidingLog, SlidingWindow, Timestamp, per_key,
};

use crate::model::{Combined, Expected, Spec};
use crate::schedule::{Op, Step, resolve};

/// A limiter for one key, with the guards of what it holds.
pub(crate) struct Subject {
    limiter: Memory<Vec<DynLimit<str>>, ManualClock>,
    pub(crate) clock: ManualClock,
    tier: Arc<AtomicUsize>,
    guards: Vec<Held>,
}

impl Subject {
    /// A limiter of several limits, each with its tiers.
    pub(crate) fn new(limits: &[Vec<Spec>], start: u64) -> Self {
        let tier = Arc::new(AtomicUsize::new(0));
        let limits = limits.iter().enumerate().map(|(index, tiers)| dyn_limit(name(index), tiers, &tier)).collect();
        Self::with(limits, tier, start)
    }

    /// A limiter of one limit with its tiers.
    pub(crate) fn of_tiers<A: Algorithm + Copy>(tiers: &[A], start: u64) -> Self {
        let tier = Arc::new(AtomicUsize::new(0));
        Self::with(vec![tiered(name(0), tiers.to_vec(), Arc::clone(&tier))], tier, start)
    }

    fn with(limits: Vec<DynLimit<str>>, tier: Arc<AtomicUsize>, start: u64) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let limiter =
            Memory::builder(limits).max_keys(1).clock(clock.clone()).build().expect("the names of the limits differ");
        Self { limiter, clock, tier, guards: Vec::new() }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    pub(crate) fn set_clock(&self, now: u64) {
        self.clock.set(Timestamp::from_micros(now).min(Timestamp::LAST));
    }

    pub(crate) fn peek(&self, ask: AcquireOptions) -> Decision {
        ready(self.limiter.peek("key", ask))
    }

    pub(crate) fn peek_at(&self, now: u64, ask: AcquireOptions) -> Decision {
        let before = self.now();
        self.set_clock(now);
        let decision = self.peek(ask);
        self.set_clock(before);
        decision
    }

    pub(crate) fn acquire(&mut self, ask: AcquireOptions) -> Decision {
        let Acquisition::Ready(outcome) = self.limiter.acquire("key", ask) else { panic!("memory decides at once") };
        let Outcome { decision, held } = outcome.expect("memory never fails");
        self.guards.extend(held);
        decision
    }

    /// Drops every guard, which charges what it held.
    pub(crate) fn end_holds(&mut self) {
        self.guards.clear();
    }

    fn take(&mut self, which: usize) -> Option<Held> {
        which.checked_rem(self.guards.len()).map(|which| self.guards.swap_remove(which))
    }

    /// Does what `op` says; the decision, if it asked for one.
    pub(crate) fn apply(&mut self, op: Op) -> Option<Decision> {
        match op {
            Op::Clock { now } => self.set_clock(now),
            Op::Tier(tier) => self.tier.store(tier, Ordering::Relaxed),
            Op::Acquisition(ask) => return Some(self.acquire(ask)),
            Op::Hold(ask) => return Some(self.acquire(ask.hold())),
            Op::Settle { which, actual: 0 } => {
                if let Some(held) = self.take(which) {
                    ready(held.release());
                }
            }
            Op::Settle { which, actual } => {
                if let Some(held) = self.take(which) {
                    ready(held.settle(actual));
                }
            }
            Op::Surcharge { which, cost } => {
                if let Some(held) = self.take(which) {
                    let actual = held.cost() + cost;
                    ready(held.settle(actual));
                }
            }
            Op::Drop { which } => drop(self.take(which)),
            Op::Reset => ready(self.limiter.reset("key")),
        }
        None
    }
}

fn dyn_limit(name: String, tiers: &[Spec], tier: &Arc<AtomicUsize>) -> DynLimit<str> {
    fn of<A: Algorithm + Copy>(
        name: String,
        tiers: &[Spec],
        tier: &Arc<AtomicUsize>,
        make: fn(Spec) -> A,
    ) -> DynLimit<str> {
        tiered(name, tiers.iter().map(|&spec| make(spec)).collect(), Arc::clone(tier))
    }
    match tiers[0] {
        Spec::Bucket { .. } => of(name, tiers, tier, gcra),
        Spec::Window { .. } => of(name, tiers, tier, fixed_window),
        Spec::Counters { .. } => of(name, tiers, tier, sliding_window),
        Spec::HitLog { .. } => of(name, tiers, tier, sliding_log),
    }
}

fn tiered<A: Algorithm + Copy>(name: String, tiers: Vec<A>, tier: Arc<AtomicUsize>) -> DynLimit<str> {
    DynLimit::new(Limit::new(name, per_key(move |_: &str| tiers[tier.load(Ordering::Relaxed) % tiers.len()])))
}

pub(crate) fn gcra(spec: Spec) -> Gcra {
    let Spec::Bucket { quota, burst } = spec else { panic!("{spec:?} is not a bucket") };
    Gcra::new(quota).burst(burst)
}

pub(crate) fn fixed_window(spec: Spec) -> FixedWindow {
    let Spec::Window { quota, aligned } = spec else { panic!("{spec:?} is not a window") };
    let window = FixedWindow::new(quota);
    if aligned { window.aligned_to_clock() } else { window }
}

pub(crate) fn sliding_window(spec: Spec) -> SlidingWindow {
    let Spec::Counters { quota, blocks, weighted } = spec else { panic!("{spec:?} has no blocks") };
    let window = SlidingWindow::new(quota).blocks(blocks);
    if weighted { window.weighted() } else { window }
}

pub(crate) fn sliding_log(spec: Spec) -> SlidingLog {
    let Spec::HitLog { quota } = spec else { panic!("{spec:?} is not a log") };
    SlidingLog::new(quota)
}

pub(crate) fn ready<T>(reply: LimiterFuture<T>) -> T {
    reply.try_ready().expect("memory is ready at once").expect("memory never fails")
}

pub(crate) fn name(index: usize) -> String {
    format!("limit {index}")
}

/// The limiter and the model, side by side.
pub(crate) struct Pair {
    pub(crate) subject: Subject,
    pub(crate) model: Combined,
    limits: Vec<Vec<Spec>>,
    /// What is held, and the tier that it was held by.
    held: Vec<(u64, usize)>,
    tier: usize,
}

impl Pair {
    pub(crate) fn new(limits: &[Vec<Spec>], start: u64) -> Self {
        Self {
            subject: Subject::new(limits, start),
            model: Combined::new(limits.iter().map(|tiers| tiers[0])),
            limits: limits.to_vec(),
            held: Vec::new(),
            tier: 0,
        }
    }

    /// What a step means now.
    pub(crate) fn resolve(&self, step: Step) -> Op {
        resolve(step, &self.model, self.subject.now())
    }

    /// Takes a step on both without comparing them; what was decided, if it asked for a decision.
    pub(crate) fn step(&mut self, step: Step) -> Option<Decision> {
        let op = self.resolve(step);
        self.apply_to_model(op, self.subject.now());
        self.subject.apply(op)
    }

    fn apply_to_model(&mut self, op: Op, now: u64) -> Option<Expected> {
        match op {
            Op::Clock { .. } => {}
            Op::Tier(tier) => {
                self.tier = tier;
                self.model.hold_to(of_tier(&self.limits, tier));
            }
            Op::Acquisition(ask) => return Some(self.model.acquire(now, ask)),
            Op::Hold(ask) => {
                let expected = self.model.acquire(now, ask.hold());
                self.held.extend(expected.verdict.is_allowed().then_some((ask.cost, self.tier)));
                return Some(expected);
            }
            Op::Settle { which, actual } => self.settle(now, which, |_| actual),
            Op::Surcharge { which, cost } => self.settle(now, which, |held| held + cost),
            Op::Drop { which } => self.settle(now, which, |held| held),
            Op::Reset => self.model.forget(),
        }
        None
    }

    fn settle(&mut self, now: u64, which: usize, actual: impl FnOnce(u64) -> u64) {
        if let Some(which) = which.checked_rem(self.held.len()) {
            let (held, tier) = self.held.swap_remove(which);
            // The key is not known any more: its cost is charged by the algorithm that was chosen for it.
            self.model.hold_to(of_tier(&self.limits, tier));
            self.model.settle(now, held, actual(held));
            self.model.hold_to(of_tier(&self.limits, self.tier));
        }
    }

    /// Takes a step on both and compares all that they say.
    pub(crate) fn agree_on(&mut self, step: Step) -> Result<(), TestCaseError> {
        let now = self.subject.now();
        let op = self.resolve(step);
        if let Op::Acquisition(ask) | Op::Hold(ask) = op {
            self.agree(&self.subject.peek(ask), &self.model.peek(now, ask), ask)?;
        }
        let expected = self.apply_to_model(op, now);
        let decided = self.subject.apply(op);
        if let (Op::Acquisition(ask) | Op::Hold(ask), Some(decision), Some(expected)) = (op, decided, expected) {
            self.agree(&decision, &expected, ask)?;
            prop_assert!(self.subject.guards.iter().map(Held::cost).eq(self.held.iter().map(|held| held.0)));
            return Ok(());
        }
        let ask = AcquireOptions::default().detail(Detail::All);
        self.agree(&self.subject.peek(ask), &self.model.peek(self.subject.now(), ask), ask)
    }

    fn agree(&self, decision: &Decision, expected: &Expected, ask: AcquireOptions) -> Result<(), TestCaseError> {
        let now = self.subject.now();
        let context = || format!("{ask:?} at {now}:\n{decision:?}\n{expected:?}");
        prop_assert_eq!(decision.verdict(), expected.verdict, "the verdict of {}", context());
        prop_assert_eq!(decision.is_estimate(), expected.is_estimate, "the estimate of {}", context());
        prop_assert_eq!(decision.decided_at().as_micros(), now);
        let listed =
            if ask.detail == Detail::All || (ask.detail == Detail::AllIfDenied && !expected.verdict.is_allowed()) {
                (0..expected.standings.len()).collect()
            } else {
                vec![expected.speaking()]
            };
        prop_assert_eq!(decision.limits().len(), listed.len(), "the standings of {}", context());
        for (standing, index) in decision.limits().iter().zip(listed) {
            prop_assert!(stands_as(standing, expected, index), "limit {index} of {}", context());
        }
        let speaking = decision.most_restrictive().expect("a limit was consulted");
        prop_assert!(stands_as(speaking, expected, expected.speaking()), "the speaker of {}", context());
        Ok(())
    }
}

fn of_tier(limits: &[Vec<Spec>], tier: usize) -> impl Iterator<Item = Spec> + '_ {
    limits.iter().map(move |tiers| tiers[tier % tiers.len()])
}

fn stands_as(standing: &LimitStatus, expected: &Expected, index: usize) -> bool {
    let expected = expected.standings[index];
    standing.name() == name(index) && standing.verdict() == expected.verdict && standing.figures() == expected.figures
}
