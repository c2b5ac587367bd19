//! The limiter under test, in virtual time, and its comparison with the model.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tower_ratelimit::limiter::{Acquire, Outcome, Receipt, Reply};
use tower_ratelimit::{
    Ask, Clock, Decision, DynLimit, FixedWindow, Gcra, Limit, Limiter, ManualClock, Memory, Standing, Timestamp,
    per_key,
};

use crate::model::{Charged, Combined, Expected, Spec};
use crate::schedule::{Op, Step, resolve};

/// A limiter for one key, with the receipts of what it charged.
pub(crate) struct Subject {
    limiter: Memory<Vec<DynLimit<str>>, ManualClock>,
    pub(crate) clock: ManualClock,
    tier: Arc<AtomicUsize>,
    receipts: Vec<Receipt>,
}

impl Subject {
    /// A limiter of several limits, each with its tiers.
    pub(crate) fn new(limits: &[Vec<Spec>], start: u64) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let tier = Arc::new(AtomicUsize::new(0));
        let limits = limits.iter().enumerate().map(|(index, tiers)| dyn_limit(name(index), tiers, &tier)).collect();
        let limiter =
            Memory::builder(limits).max_keys(1).clock(clock.clone()).build().expect("the names of the limits differ");
        Self { limiter, clock, tier, receipts: Vec::new() }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    pub(crate) fn set_clock(&self, now: u64) {
        self.clock.set(Timestamp::from_micros(now).min(Timestamp::LAST));
    }

    pub(crate) fn peek(&self, ask: Ask) -> Decision {
        ready(self.limiter.peek("key", ask))
    }

    pub(crate) fn peek_at(&self, now: u64, ask: Ask) -> Decision {
        let before = self.now();
        self.set_clock(now);
        let decision = self.peek(ask);
        self.set_clock(before);
        decision
    }

    pub(crate) fn acquire(&mut self, ask: Ask) -> Decision {
        let Acquire::Ready(outcome) = self.limiter.acquire("key", ask) else { panic!("memory decides at once") };
        let Outcome { decision, receipt } = outcome.expect("memory never fails");
        self.receipts.extend(receipt);
        decision
    }

    /// Does what `op` says; the decision, if it asked for one.
    pub(crate) fn apply(&mut self, op: Op) -> Option<Decision> {
        match op {
            Op::Clock { now, too_far_back } => {
                self.set_clock(now);
                self.receipts.retain(|_| !too_far_back);
            }
            Op::Tier(tier) => self.tier.store(tier, Ordering::Relaxed),
            Op::Acquire(ask) => return Some(self.acquire(ask)),
            Op::Settle { which, actual } => {
                if let Some(which) = which.checked_rem(self.receipts.len()) {
                    let receipt = self.receipts.swap_remove(which);
                    let reply = if actual == 0 {
                        self.limiter.give_back("key", receipt)
                    } else {
                        self.limiter.settle("key", receipt, actual)
                    };
                    ready(reply);
                }
            }
            Op::Reset => {
                ready(self.limiter.reset("key"));
                self.receipts.clear();
            }
        }
        None
    }
}

fn dyn_limit(name: String, tiers: &[Spec], tier: &Arc<AtomicUsize>) -> DynLimit<str> {
    let tier = Arc::clone(tier);
    match tiers[0] {
        Spec::Bucket { .. } => {
            let tiers: Vec<Gcra> = tiers.iter().map(|&spec| gcra(spec)).collect();
            DynLimit::new(Limit::new(name, per_key(move |_: &str| tiers[tier.load(Ordering::Relaxed) % tiers.len()])))
        }
        Spec::Window { .. } => {
            let tiers: Vec<FixedWindow> = tiers.iter().map(|&spec| fixed_window(spec)).collect();
            DynLimit::new(Limit::new(name, per_key(move |_: &str| tiers[tier.load(Ordering::Relaxed) % tiers.len()])))
        }
    }
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

pub(crate) fn ready<T>(reply: Reply<T>) -> T {
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
    charged: Vec<Vec<Charged>>,
}

impl Pair {
    pub(crate) fn new(limits: &[Vec<Spec>], start: u64) -> Self {
        Self {
            subject: Subject::new(limits, start),
            model: Combined::new(limits.iter().map(|tiers| tiers[0])),
            limits: limits.to_vec(),
            charged: Vec::new(),
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
            Op::Clock { too_far_back, .. } => self.charged.retain(|_| !too_far_back),
            Op::Tier(tier) => self.model.hold_to(self.limits.iter().map(|tiers| tiers[tier % tiers.len()])),
            Op::Acquire(ask) => {
                let (expected, charged) = self.model.acquire(now, ask);
                self.charged.extend(charged);
                return Some(expected);
            }
            Op::Settle { which, actual } => {
                if let Some(which) = which.checked_rem(self.charged.len()) {
                    let charged = self.charged.swap_remove(which);
                    self.model.settle(now, &charged, actual);
                }
            }
            Op::Reset => {
                self.model.forget();
                self.charged.clear();
            }
        }
        None
    }

    /// Takes a step on both and compares all that they say.
    pub(crate) fn agree_on(&mut self, step: Step) -> Result<(), TestCaseError> {
        let now = self.subject.now();
        let op = self.resolve(step);
        if let Op::Acquire(ask) = op {
            self.agree(&self.subject.peek(ask), &self.model.peek(now, ask), ask)?;
        }
        let expected = self.apply_to_model(op, now);
        if let (Op::Acquire(ask), Some(decision), Some(expected)) = (op, self.subject.apply(op), expected) {
            self.agree(&decision, &expected, ask)?;
            return self.agree_on_receipts();
        }
        let ask = Ask::default().every_limit();
        self.agree(&self.subject.peek(ask), &self.model.peek(self.subject.now(), ask), ask)
    }

    fn agree(&self, decision: &Decision, expected: &Expected, ask: Ask) -> Result<(), TestCaseError> {
        let now = self.subject.now();
        let context = || format!("{ask:?} at {now}:\n{decision:?}\n{expected:?}");
        prop_assert_eq!(decision.verdict(), expected.verdict, "the verdict of {}", context());
        prop_assert_eq!(decision.decided_at().as_micros(), now);
        let listed = if ask.every_limit || (ask.every_refusal && !expected.verdict.is_allowed()) {
            (0..expected.standings.len()).collect()
        } else {
            vec![expected.speaking()]
        };
        prop_assert_eq!(decision.standings().len(), listed.len(), "the standings of {}", context());
        for (standing, index) in decision.standings().iter().zip(listed) {
            prop_assert!(stands_as(standing, expected, index), "limit {index} of {}", context());
        }
        let speaking = decision.standing().expect("a limit was consulted");
        prop_assert!(stands_as(speaking, expected, expected.speaking()), "the speaker of {}", context());
        Ok(())
    }

    fn agree_on_receipts(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.subject.receipts.len(), self.charged.len());
        if let (Some(receipt), Some(charged)) = (self.subject.receipts.last(), self.charged.last()) {
            for (until, charged) in receipt.until().iter().zip(charged) {
                prop_assert_eq!(until.as_micros(), charged.until);
                prop_assert_eq!(receipt.cost(), charged.cost);
            }
        }
        Ok(())
    }
}

fn stands_as(standing: &Standing, expected: &Expected, index: usize) -> bool {
    let expected = expected.standings[index];
    standing.name() == name(index) && standing.verdict() == expected.verdict && standing.figures() == expected.figures
}
