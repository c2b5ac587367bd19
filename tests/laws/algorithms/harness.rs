//! The limiter under test, in virtual time, and its comparison with the model.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tower_ratelimit::algorithm::{Algorithm, State as _};
use tower_ratelimit::limiter::{Held, LimiterFuture, Outcome};
use tower_ratelimit::{
    AcquireOptions, Calendar, Clock, Decision, Detail, DynLimit, FixedWindow, Gcra, Limit, LimitStatus, Limiter,
    ManualClock, Memory, Quota, SlidingLog, SlidingWindow, Timestamp, Weekday, per_key,
};

use crate::model::{Combined, Expected, Spec};
use crate::schedule::{Op, Step, resolve};

/// Returns the state of a fixed window on a never-seen key.
pub(crate) fn no_windows() -> <FixedWindow as Algorithm>::State {
    <FixedWindow as Algorithm>::State::from_numbers(&[])
}

/// The limiter under test with one key, and the guards of its holds.
pub(crate) struct Subject {
    limiter: Memory<str, Vec<DynLimit<str>>>,
    pub(crate) clock: ManualClock,
    tier: Arc<AtomicUsize>,
    guards: Vec<Held>,
}

impl Subject {
    /// Creates a limiter of several limits, each with its tiers.
    pub(crate) fn new(limits: &[Vec<Spec>], start: u64) -> Self {
        Self::with_fixed_costs(limits, &vec![None; limits.len()], start)
    }

    fn with_fixed_costs(limits: &[Vec<Spec>], fixed: &[Option<u64>], start: u64) -> Self {
        let tier = Arc::new(AtomicUsize::new(0));
        let limits = limits.iter().zip(fixed).enumerate();
        let limits = limits.map(|(index, (tiers, fixed))| dyn_limit(name(index), tiers, *fixed, &tier)).collect();
        Self::from_limits(limits, tier, start)
    }

    /// Creates a limiter of one limit with its tiers.
    pub(crate) fn with_tiers<A: Algorithm + Copy>(tiers: &[A], start: u64) -> Self {
        let tier = Arc::new(AtomicUsize::new(0));
        Self::from_limits(vec![limit_of_tiers(name(0), tiers.to_vec(), None, Arc::clone(&tier))], tier, start)
    }

    fn from_limits(limits: Vec<DynLimit<str>>, tier: Arc<AtomicUsize>, start: u64) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let limiter = Memory::builder(limits).max_keys(1).clock(clock.clone()).build().expect("valid limits");
        Self { limiter, clock, tier, guards: Vec::new() }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    pub(crate) fn set_clock(&self, now: u64) {
        self.clock.set(Timestamp::from_micros(now).min(Timestamp::MAX));
    }

    pub(crate) fn peek(&self, options: AcquireOptions) -> Decision {
        ready(self.limiter.peek("key", options))
    }

    pub(crate) fn peek_at(&self, now: u64, options: AcquireOptions) -> Decision {
        let before = self.now();
        self.set_clock(now);
        let decision = self.peek(options);
        self.set_clock(before);
        decision
    }

    pub(crate) fn acquire(&mut self, options: AcquireOptions) -> Decision {
        let Outcome { decision, held, .. } = ready(self.limiter.acquire("key", options));
        self.guards.extend(held);
        decision
    }

    /// Drops every guard, which charges the held cost.
    pub(crate) fn end_holds(&mut self) {
        self.guards.clear();
    }

    fn take(&mut self, which: usize) -> Option<Held> {
        which.checked_rem(self.guards.len()).map(|which| self.guards.swap_remove(which))
    }

    /// Applies `op`. Returns the decision of an acquire or a hold.
    pub(crate) fn apply(&mut self, op: Op) -> Option<Decision> {
        match op {
            Op::Clock { now } => self.set_clock(now),
            Op::Tier(tier) => self.tier.store(tier, Ordering::Relaxed),
            Op::Acquire(options) => return Some(self.acquire(options)),
            Op::Hold(options) => return Some(self.acquire(options.hold())),
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
                    let actual = held.cost().saturating_add(cost);
                    ready(held.settle(actual));
                }
            }
            Op::Drop { which } => drop(self.take(which)),
            Op::Reset => ready(self.limiter.reset("key")),
        }
        None
    }
}

fn dyn_limit(name: String, tiers: &[Spec], fixed: Option<u64>, tier: &Arc<AtomicUsize>) -> DynLimit<str> {
    fn with_tiers<A: Algorithm + Copy>(
        name: String,
        tiers: &[Spec],
        fixed: Option<u64>,
        tier: &Arc<AtomicUsize>,
        make: fn(Spec) -> A,
    ) -> DynLimit<str> {
        limit_of_tiers(name, tiers.iter().map(|&spec| make(spec)).collect(), fixed, Arc::clone(tier))
    }
    match tiers[0] {
        Spec::Bucket { .. } => with_tiers(name, tiers, fixed, tier, gcra),
        Spec::FixedWindow { .. } => with_tiers(name, tiers, fixed, tier, fixed_window),
        Spec::SlidingWindow { .. } => with_tiers(name, tiers, fixed, tier, sliding_window),
        Spec::SlidingLog { .. } => with_tiers(name, tiers, fixed, tier, sliding_log),
    }
}

fn limit_of_tiers<A: Algorithm + Copy>(
    name: String,
    tiers: Vec<A>,
    fixed: Option<u64>,
    tier: Arc<AtomicUsize>,
) -> DynLimit<str> {
    let limit = Limit::new(name, per_key(move |_: &str| tiers[tier.load(Ordering::Relaxed) % tiers.len()]));
    DynLimit::new(match fixed {
        Some(cost) => limit.fixed_cost(cost),
        None => limit,
    })
}

pub(crate) fn gcra(spec: Spec) -> Gcra {
    let Spec::Bucket { quota, burst } = spec else { panic!("{spec:?} is not a bucket") };
    Gcra::new(quota).burst(burst)
}

pub(crate) fn fixed_window(spec: Spec) -> FixedWindow {
    let Spec::FixedWindow { quota, aligned: is_aligned } = spec else { panic!("{spec:?} is not a window") };
    if is_aligned { aligned(quota) } else { FixedWindow::new(quota) }
}

/// Creates windows at multiples of the period. Days, and weeks from the weekday of the epoch, are a calendar's.
pub(crate) fn aligned(quota: Quota) -> FixedWindow {
    let calendar = match quota.period() {
        DAY => Calendar::daily(),
        WEEK => Calendar::weekly_from(Weekday::Thursday),
        _ => return FixedWindow::new(quota).aligned_to_clock(),
    };
    FixedWindow::calendar(quota.limit(), calendar)
}

/// The periods of calendar windows.
pub(crate) const DAY: Duration = Duration::from_secs(86_400);
pub(crate) const WEEK: Duration = Duration::from_secs(7 * 86_400);

pub(crate) fn sliding_window(spec: Spec) -> SlidingWindow {
    let Spec::SlidingWindow { quota, blocks, weighted } = spec else { panic!("{spec:?} has no blocks") };
    let window = SlidingWindow::new(quota).blocks(blocks);
    if weighted { window.weighted() } else { window }
}

pub(crate) fn sliding_log(spec: Spec) -> SlidingLog {
    let Spec::SlidingLog { quota } = spec else { panic!("{spec:?} is not a log") };
    SlidingLog::new(quota)
}

pub(crate) fn ready<T>(future: LimiterFuture<T>) -> T {
    future.try_ready().expect("memory answers immediately").expect("memory never fails")
}

pub(crate) fn name(index: usize) -> String {
    format!("limit {index}")
}

/// The limiter under test and its reference model, which take the same steps.
pub(crate) struct Pair {
    pub(crate) subject: Subject,
    pub(crate) model: Combined,
    limits: Vec<Vec<Spec>>,
    /// The cost of each hold, and the tier by which it was held.
    held: Vec<(u64, usize)>,
    tier: usize,
}

impl Pair {
    pub(crate) fn new(limits: &[Vec<Spec>], start: u64) -> Self {
        Self::with_fixed_costs(limits, &vec![None; limits.len()], start)
    }

    pub(crate) fn with_fixed_costs(limits: &[Vec<Spec>], fixed: &[Option<u64>], start: u64) -> Self {
        Self {
            subject: Subject::with_fixed_costs(limits, fixed, start),
            model: Combined::new(limits.iter().map(|tiers| tiers[0])).with_fixed_costs(fixed),
            limits: limits.to_vec(),
            held: Vec::new(),
            tier: 0,
        }
    }

    /// Converts a step into an operation on the present state.
    pub(crate) fn resolve(&self, step: Step) -> Op {
        resolve(step, &self.model, self.subject.now())
    }

    /// Takes a step on both without comparing them. Returns the decision of an acquire or a hold.
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
                self.model.set_spec(specs_of_tier(&self.limits, tier));
            }
            Op::Acquire(options) => return Some(self.model.acquire(now, options)),
            Op::Hold(options) => {
                let expected = self.model.acquire(now, options.hold());
                self.held.extend(expected.verdict.is_allowed().then_some((options.cost, self.tier)));
                return Some(expected);
            }
            Op::Settle { which, actual } => self.settle(now, which, |_| actual),
            Op::Surcharge { which, cost } => self.settle(now, which, |held| held.saturating_add(cost)),
            Op::Drop { which } => self.settle(now, which, |held| held),
            Op::Reset => self.model.reset(),
        }
        None
    }

    fn settle(&mut self, now: u64, which: usize, actual: impl FnOnce(u64) -> u64) {
        if let Some(which) = which.checked_rem(self.held.len()) {
            let (held, tier) = self.held.swap_remove(which);
            // A guard does not keep the key: its cost is charged by the algorithm that was selected when it was held.
            self.model.set_spec(specs_of_tier(&self.limits, tier));
            self.model.settle(now, held, actual(held));
            self.model.set_spec(specs_of_tier(&self.limits, self.tier));
        }
    }

    /// Takes all steps on both, and compares each decision.
    pub(crate) fn compare_all(mut self, steps: Vec<Step>) -> Result<(), TestCaseError> {
        steps.into_iter().try_for_each(|step| self.step_and_compare(step))
    }

    /// Takes a step on both, and compares the decisions and a peek before and after it.
    pub(crate) fn step_and_compare(&mut self, step: Step) -> Result<(), TestCaseError> {
        let now = self.subject.now();
        let op = self.resolve(step);
        if let Op::Acquire(options) | Op::Hold(options) = op {
            self.compare(&self.subject.peek(options), &self.model.peek(now, options), options)?;
        }
        let expected = self.apply_to_model(op, now);
        let decided = self.subject.apply(op);
        if let (Op::Acquire(options) | Op::Hold(options), Some(decision), Some(expected)) = (op, decided, expected) {
            self.compare(&decision, &expected, options)?;
            prop_assert!(self.subject.guards.iter().map(Held::cost).eq(self.held.iter().map(|held| held.0)));
            return Ok(());
        }
        let options = AcquireOptions::default().detail(Detail::All);
        self.compare(&self.subject.peek(options), &self.model.peek(self.subject.now(), options), options)
    }

    fn compare(&self, decision: &Decision, expected: &Expected, options: AcquireOptions) -> Result<(), TestCaseError> {
        let now = self.subject.now();
        let context = || format!("{options:?} at {now}:\n{decision:?}\n{expected:?}");
        prop_assert_eq!(decision.verdict(), expected.verdict, "verdict of {}", context());
        prop_assert_eq!(decision.is_estimate(), expected.is_estimate, "is_estimate of {}", context());
        prop_assert_eq!(decision.decided_at().as_micros(), now);
        let lists_all = match options.detail {
            Detail::MostRestrictive => false,
            Detail::AllIfDenied => !expected.verdict.is_allowed(),
            _ => true,
        };
        let listed = if lists_all { (0..expected.statuses.len()).collect() } else { vec![expected.most_restrictive()] };
        prop_assert_eq!(decision.limits().len(), listed.len(), "number of limits of {}", context());
        for (status, index) in decision.limits().iter().zip(listed) {
            prop_assert!(matches_expected(status, expected, index), "limit {index} of {}", context());
        }
        let most_restrictive = decision.most_restrictive().expect("a limit was consulted");
        prop_assert!(
            matches_expected(most_restrictive, expected, expected.most_restrictive()),
            "most restrictive limit of {}",
            context()
        );
        Ok(())
    }
}

fn specs_of_tier(limits: &[Vec<Spec>], tier: usize) -> impl Iterator<Item = Spec> + '_ {
    limits.iter().map(move |tiers| tiers[tier % tiers.len()])
}

fn matches_expected(status: &LimitStatus, expected: &Expected, index: usize) -> bool {
    let expected = expected.statuses[index];
    status.name() == name(index) && status.verdict() == expected.verdict && status.snapshot() == expected.snapshot
}
