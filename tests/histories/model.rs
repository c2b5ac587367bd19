//! The sequential run: the algorithms, which are pure functions, over a map of states that drops nothing. No table, no
//! lock, nothing that is done at once.
//!
//! What is held is one number beside the state. A decision sees it as if it were charged at the time of the decision; a hold
//! adds to it; its end takes that off again and charges the actual cost at the time of that.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, Counters, HitLog, State};
use tower_ratelimit::{AcquireOptions, Decision, DecisionSource, LimitSnapshot, Timestamp, Verdict};

use crate::recording::Step;

/// Whose request it is: a user and a group, in either order a part to count by.
pub(crate) type Caller = [u64; 2];

/// A limit: its name, the part of the caller that it counts by, its algorithm.
pub(crate) struct Rule {
    name: &'static str,
    part: fn(&Caller) -> u64,
    kernel: Box<dyn LuaScript>,
}

impl Rule {
    pub(crate) fn new<A: Algorithm>(name: &'static str, algorithm: A, part: fn(&Caller) -> u64) -> Self
    where
        A::State: Kept,
    {
        Self { name, part, kernel: Box::new(Pure(algorithm)) }
    }
}

/// All that is remembered, and what it says of one call after another.
pub(crate) struct Model {
    rules: Vec<Rule>,
    parts: HashMap<(usize, u64), Part>,
    digest: u64,
}

/// What was remembered before a call.
pub(crate) struct Undo(Vec<((usize, u64), Option<Part>)>);

/// What a decision is to be.
struct Expected {
    verdict: Verdict,
    supports_scheduling: bool,
    is_estimate: bool,
    standings: Vec<(&'static str, Verdict, LimitSnapshot)>,
}

impl Model {
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        Self { rules, parts: HashMap::new(), digest: 0 }
    }

    /// Stands for all that is remembered: two models with the same digest answer alike.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Makes the call at this time, if its answer is the one that was noted. Else changes nothing.
    pub(crate) fn take_turn(&mut self, step: &Step, now: Timestamp) -> Option<Undo> {
        let mut undo = Undo(Vec::new());
        let is_explained = match step {
            Step::Acquisition { caller, ask, decision, is_held } => {
                let expected = self.acquire(caller, now, *ask, &mut undo);
                expected.is(decision, now, *ask) && *is_held == (ask.hold && expected.verdict.is_allowed())
            }
            Step::Peek { caller, ask, decision } => {
                let expected = self.acquire(caller, now, *ask, &mut undo);
                // It says what would be, and so nothing of what a charge leaves.
                self.undo(std::mem::replace(&mut undo, Undo(Vec::new())));
                let figures = self.rules.iter().enumerate().map(|(limit, rule)| {
                    let part = self.part(limit, caller);
                    rule.kernel.figures(&part, now)
                });
                expected.with(figures.collect()).is(decision, now, *ask)
            }
            Step::Settle { caller, limit, held, actual } => {
                let part = self.part(*limit, caller);
                // No more is settled than was held.
                let rest = part.held.checked_sub(*held)?;
                let settled = self.rules[*limit].kernel.commit(&part.with_held(rest), now, Duration::ZERO, *actual);
                self.put(*limit, caller, settled, &mut undo);
                true
            }
            Step::Reset { caller, limit } => {
                // What is held is no part of the state.
                let held = self.part(*limit, caller).held;
                let reset = self.rules[*limit].kernel.zero().with_held(held);
                self.put(*limit, caller, reset, &mut undo);
                true
            }
        };
        if !is_explained {
            self.undo(undo);
            return None;
        }
        Some(undo)
    }

    /// As before the call.
    pub(crate) fn undo(&mut self, Undo(before): Undo) {
        for (place, part) in before.into_iter().rev() {
            self.swap(place, part);
        }
    }

    fn acquire(&mut self, caller: &Caller, now: Timestamp, ask: AcquireOptions, undo: &mut Undo) -> Expected {
        let parts: Vec<Part> = (0..self.rules.len()).map(|limit| self.part(limit, caller)).collect();
        let (verdicts, supports_scheduling) = self.verdicts(&parts, now, ask);
        let verdict = verdicts.iter().copied().fold(Verdict::Allowed, both);
        let is_estimate = parts.iter().zip(&verdicts).any(|(part, verdict)| part.held > 0 && !verdict.is_allowed());
        let delay = match verdict {
            Verdict::Allowed => Some(Duration::ZERO),
            Verdict::AllowedAfter(delay) => Some(delay),
            Verdict::Denied { .. } | Verdict::ExceedsLimit => None,
        };
        let mut standings = Vec::new();
        for (limit, mut part) in parts.into_iter().enumerate() {
            let rule = &self.rules[limit];
            if let (Some(delay), 1..) = (delay, ask.cost) {
                let held = part.held;
                part = if ask.hold {
                    part.with_held(held + ask.cost)
                } else {
                    rule.kernel.commit(&part, now, delay, ask.cost)
                };
            }
            standings.push((rule.name, verdicts[limit], rule.kernel.figures(&part, now)));
            if delay.is_some() && ask.cost > 0 {
                self.put(limit, caller, part, undo);
            }
        }
        Expected { verdict, supports_scheduling, is_estimate, standings }
    }

    /// What each limit says, and whether they promise turns.
    ///
    /// Several do if each can, and each owes until the turn of them all; else each is asked whether it lets through at once.
    fn verdicts(&self, parts: &[Part], now: Timestamp, ask: AcquireOptions) -> (Vec<Verdict>, bool) {
        let say = |ask: AcquireOptions| -> Vec<Verdict> {
            self.rules.iter().zip(parts).map(|(rule, part)| rule.kernel.peek(part, now, ask)).collect()
        };
        // A hold starts now, or not at all.
        let ask = if ask.hold { ask.max_delay(Duration::ZERO) } else { ask };
        let can_promise = !ask.hold && self.rules.iter().all(|rule| rule.kernel.supports_scheduling());
        if self.rules.len() == 1 {
            return (say(ask), can_promise);
        }
        let at_once = say(ask.max_delay(Duration::ZERO));
        let owe_until = |turn| {
            let mut figures = self.rules.iter().zip(parts).map(|(rule, part)| rule.kernel.figures(part, now));
            figures.all(|figures| figures.reset >= turn)
        };
        let promise = can_promise
            && match at_once.iter().copied().fold(Verdict::Allowed, both) {
                Verdict::Denied { retry_after: turn } => owe_until(turn),
                _ => true,
            };
        if promise { (say(ask), true) } else { (at_once, false) }
    }

    fn place(&self, limit: usize, caller: &Caller) -> (usize, u64) {
        (limit, (self.rules[limit].part)(caller))
    }

    fn part(&self, limit: usize, caller: &Caller) -> Part {
        self.parts.get(&self.place(limit, caller)).cloned().unwrap_or_else(|| self.rules[limit].kernel.zero())
    }

    fn put(&mut self, limit: usize, caller: &Caller, part: Part, undo: &mut Undo) {
        let place = self.place(limit, caller);
        let before = self.swap(place, Some(part));
        undo.0.push((place, before));
    }

    fn swap(&mut self, place: (usize, u64), part: Option<Part>) -> Option<Part> {
        let digest = |part: &Option<Part>| part.as_ref().map_or(0, |part| digest_of(&(place, part.digest, part.held)));
        let after = digest(&part);
        let before = match part {
            Some(part) => self.parts.insert(place, part),
            None => self.parts.remove(&place),
        };
        self.digest ^= digest(&before) ^ after;
        before
    }
}

impl Expected {
    fn with(mut self, figures: Vec<LimitSnapshot>) -> Self {
        for (standing, figures) in self.standings.iter_mut().zip(figures) {
            standing.2 = figures;
        }
        self
    }

    fn is(&self, decision: &Decision, now: Timestamp, ask: AcquireOptions) -> bool {
        let told = decision.limits().iter().map(|told| (told.name(), told.verdict(), told.snapshot()));
        let standings_match = if ask.all_limits || self.standings.len() == 1 {
            told.eq(self.standings.iter().copied())
        } else {
            told.eq(self.loudest())
        };
        standings_match
            && decision.verdict() == self.verdict
            && decision.supports_scheduling() == self.supports_scheduling
            && decision.is_estimate() == self.is_estimate
            && decision.decided_at() == now
            && decision.source() == DecisionSource::Store
    }

    /// Who speaks for all: the longest wait, or with none the least remaining; the first of equals.
    fn loudest(&self) -> Option<(&'static str, Verdict, LimitSnapshot)> {
        let wait = |verdict| match verdict {
            Verdict::Allowed => (0, Duration::ZERO),
            Verdict::AllowedAfter(delay) => (1, delay),
            Verdict::Denied { retry_after } => (2, retry_after),
            Verdict::ExceedsLimit => (3, Duration::ZERO),
        };
        let loudness =
            |&(_, verdict, figures): &(_, Verdict, LimitSnapshot)| (wait(verdict), u64::MAX - figures.remaining);
        // `max_by_key` returns the last of equals.
        self.standings.iter().rev().copied().max_by_key(loudness)
    }
}

/// Both must let through.
fn both(one: Verdict, other: Verdict) -> Verdict {
    match (one, other) {
        (Verdict::ExceedsLimit, _) | (_, Verdict::ExceedsLimit) => Verdict::ExceedsLimit,
        (Verdict::Denied { retry_after: one }, Verdict::Denied { retry_after: other }) => {
            Verdict::Denied { retry_after: one.max(other) }
        }
        (denied @ Verdict::Denied { .. }, _) | (_, denied @ Verdict::Denied { .. }) => denied,
        (Verdict::AllowedAfter(one), Verdict::AllowedAfter(other)) => Verdict::AllowedAfter(one.max(other)),
        (after @ Verdict::AllowedAfter(_), _) | (_, after @ Verdict::AllowedAfter(_)) => after,
        (Verdict::Allowed, Verdict::Allowed) => Verdict::Allowed,
    }
}

/// What a limit remembers of a part. Never changed: what follows it is another one.
#[derive(Clone)]
struct Part {
    state: Rc<dyn Any>,
    digest: u64,
    /// The sum of what is held.
    held: u64,
}

impl Part {
    fn new<S: Kept>(state: S, held: u64) -> Self {
        let digest = digest_of(&format!("{state:?}"));
        Self { state: Rc::new(state), digest, held }
    }

    fn with_held(self, held: u64) -> Self {
        Self { held, ..self }
    }

    fn as_state<S: Kept>(&self) -> &S {
        self.state.downcast_ref().expect("one limit's states are of one type")
    }
}

fn digest_of(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// The states that there are.
pub(crate) trait Kept: State + Debug {
    fn zero(words: usize) -> Self;
}

impl<const N: usize> Kept for [u64; N] {
    fn zero(_words: usize) -> Self {
        [0; N]
    }
}

impl Kept for Counters {
    fn zero(words: usize) -> Self {
        Counters::zero(words)
    }
}

impl Kept for HitLog {
    fn zero(_words: usize) -> Self {
        HitLog::default()
    }
}

/// An algorithm, whatever its states are. What is held counts as if it were charged now.
trait LuaScript {
    fn zero(&self) -> Part;
    fn peek(&self, part: &Part, now: Timestamp, ask: AcquireOptions) -> Verdict;
    fn figures(&self, part: &Part, now: Timestamp) -> LimitSnapshot;
    fn commit(&self, part: &Part, now: Timestamp, delay: Duration, cost: u64) -> Part;
    fn supports_scheduling(&self) -> bool;
}

struct Pure<A>(A);

impl<A: Algorithm> Pure<A>
where
    A::State: Kept,
{
    fn charged(&self, state: &A::State, now: Timestamp, delay: Duration, cost: u64) -> A::State {
        let mut state = state.clone();
        self.0.commit(&mut state, now, delay, cost);
        state
    }

    fn with_held(&self, part: &Part, now: Timestamp) -> A::State {
        self.charged(part.as_state(), now, Duration::ZERO, part.held)
    }
}

impl<A: Algorithm> LuaScript for Pure<A>
where
    A::State: Kept,
{
    fn zero(&self) -> Part {
        Part::new(A::State::zero(self.0.counter_words()), 0)
    }

    fn peek(&self, part: &Part, now: Timestamp, ask: AcquireOptions) -> Verdict {
        self.0.peek(&self.with_held(part, now), now, ask)
    }

    fn figures(&self, part: &Part, now: Timestamp) -> LimitSnapshot {
        self.0.reading(&self.with_held(part, now), now).compute()
    }

    fn commit(&self, part: &Part, now: Timestamp, delay: Duration, cost: u64) -> Part {
        Part::new(self.charged(part.as_state(), now, delay, cost), part.held)
    }

    fn supports_scheduling(&self) -> bool {
        self.0.supports_scheduling()
    }
}
