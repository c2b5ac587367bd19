//! The sequential run: the algorithms, which are pure functions, over a map of states that forgets nothing. No table, no
//! lock, nothing that is done at once.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, Blocks, BucketState, Charge, Log, State};
use tower_ratelimit::{Ask, Decision, Figures, Source, Timestamp, Verdict};

use crate::recording::{Noted, Step};

/// Whose request it is: a user and a group, in either order a part to count by.
pub(crate) type Caller = [u64; 2];

/// A limit: its name, the part of the caller that it counts by, its algorithm.
pub(crate) struct Rule {
    name: &'static str,
    part: fn(&Caller) -> u64,
    kernel: Box<dyn Kernel>,
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
    held: HashMap<(usize, u64), Held>,
    digest: u64,
}

/// What was remembered before a call.
pub(crate) struct Undo(Vec<((usize, u64), Option<Held>)>);

/// What a decision is to be.
struct Expected {
    verdict: Verdict,
    promises_turns: bool,
    standings: Vec<(&'static str, Verdict, Figures)>,
}

impl Model {
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        Self { rules, held: HashMap::new(), digest: 0 }
    }

    /// Stands for all that is remembered: two models with the same digest answer alike.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Makes the call at this time, if its answer is the one that was noted. Else changes nothing.
    pub(crate) fn take_turn(&mut self, step: &Step, now: Timestamp) -> Option<Undo> {
        let mut undo = Undo(Vec::new());
        let is_explained = match step {
            Step::Acquire { caller, ask, decision, receipt } => {
                let (expected, charge) = self.acquire(caller, now, *ask, &mut undo);
                expected.is(decision, now, *ask) && charge == *receipt
            }
            Step::Peek { caller, ask, decision } => {
                let (expected, _) = self.acquire(caller, now, *ask, &mut undo);
                // It says what would be, and so nothing of what a charge leaves.
                self.undo(std::mem::replace(&mut undo, Undo(Vec::new())));
                let figures = self.rules.iter().enumerate().map(|(limit, rule)| {
                    let held = self.held(limit, caller);
                    rule.kernel.figures(&held, now)
                });
                expected.with(figures.collect()).is(decision, now, *ask)
            }
            Step::Settle { caller, limit, charge, actual } => {
                self.settle(caller, *limit, now, *charge, *actual, &mut undo);
                true
            }
            Step::Reset { caller, limit } => {
                self.put(*limit, caller, None, &mut undo);
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
        for (place, held) in before.into_iter().rev() {
            self.swap(place, held);
        }
    }

    fn acquire(&mut self, caller: &Caller, now: Timestamp, ask: Ask, undo: &mut Undo) -> (Expected, Option<Noted>) {
        let states: Vec<Held> = (0..self.rules.len()).map(|limit| self.held(limit, caller)).collect();
        let (verdicts, promises_turns) = self.verdicts(&states, now, ask);
        let verdict = verdicts.iter().copied().fold(Verdict::Allowed, both);
        let delay = match verdict {
            Verdict::Allowed => Some(Duration::ZERO),
            Verdict::AllowedAfter(delay) => Some(delay),
            Verdict::Denied { .. } | Verdict::Never => None,
        };
        let mut receipt = delay.map(|delay| {
            // Who asks for nothing is given no turn.
            let turn = if ask.cost > 0 { now.after(delay) } else { now };
            Noted { charged_at: now, turn, cost: ask.cost, until: vec![now; self.rules.len()] }
        });
        let mut standings = Vec::new();
        for (limit, mut held) in states.into_iter().enumerate() {
            let rule = &self.rules[limit];
            if let (Some(receipt), Some(delay), 1..) = (&mut receipt, delay, ask.cost) {
                held = rule.kernel.commit(&held, now, delay, ask.cost);
                receipt.until[limit] = held.until;
            }
            standings.push((rule.name, verdicts[limit], rule.kernel.figures(&held, now)));
            if delay.is_some() && ask.cost > 0 {
                self.put(limit, caller, Some(held), undo);
            }
        }
        (Expected { verdict, promises_turns, standings }, receipt)
    }

    /// What each limit says, and whether they promise turns.
    ///
    /// Several do if each can, and each owes until the turn of them all; else each is asked whether it lets through at once.
    fn verdicts(&self, states: &[Held], now: Timestamp, ask: Ask) -> (Vec<Verdict>, bool) {
        let say = |ask: Ask| -> Vec<Verdict> {
            self.rules.iter().zip(states).map(|(rule, held)| rule.kernel.peek(held, now, ask)).collect()
        };
        let can_promise = self.rules.iter().all(|rule| rule.kernel.promises_turns());
        if self.rules.len() == 1 {
            return (say(ask), can_promise);
        }
        let at_once = say(ask.within(Duration::ZERO));
        let owe_until = |turn| {
            let mut figures = self.rules.iter().zip(states).map(|(rule, held)| rule.kernel.figures(held, now));
            figures.all(|figures| figures.reset >= turn)
        };
        let promise = can_promise
            && match at_once.iter().copied().fold(Verdict::Allowed, both) {
                Verdict::Denied { retry_after: turn } => owe_until(turn),
                _ => true,
            };
        if promise { (say(ask), true) } else { (at_once, false) }
    }

    fn settle(&mut self, caller: &Caller, limit: usize, now: Timestamp, charge: Charge, actual: u64, undo: &mut Undo) {
        let (held, kernel) = (self.held(limit, caller), &self.rules[limit].kernel);
        let settled = match actual.checked_sub(charge.cost) {
            Some(more) => kernel.commit(&held, now, Duration::ZERO, more),
            // Of who is not remembered there is nothing to give back.
            None if !self.held.contains_key(&self.place(limit, caller)) => return,
            None => kernel.give_back(&held, now, charge, charge.cost - actual),
        };
        self.put(limit, caller, Some(settled), undo);
    }

    fn place(&self, limit: usize, caller: &Caller) -> (usize, u64) {
        (limit, (self.rules[limit].part)(caller))
    }

    fn held(&self, limit: usize, caller: &Caller) -> Held {
        self.held.get(&self.place(limit, caller)).cloned().unwrap_or_else(|| self.rules[limit].kernel.zero())
    }

    fn put(&mut self, limit: usize, caller: &Caller, held: Option<Held>, undo: &mut Undo) {
        let place = self.place(limit, caller);
        let before = self.swap(place, held);
        undo.0.push((place, before));
    }

    fn swap(&mut self, place: (usize, u64), held: Option<Held>) -> Option<Held> {
        let digest = |held: &Option<Held>| held.as_ref().map_or(0, |held| digest_of(&(place, held.digest)));
        let after = digest(&held);
        let before = match held {
            Some(held) => self.held.insert(place, held),
            None => self.held.remove(&place),
        };
        self.digest ^= digest(&before) ^ after;
        before
    }
}

impl Expected {
    fn with(mut self, figures: Vec<Figures>) -> Self {
        for (standing, figures) in self.standings.iter_mut().zip(figures) {
            standing.2 = figures;
        }
        self
    }

    fn is(&self, decision: &Decision, now: Timestamp, ask: Ask) -> bool {
        let told = decision.standings().iter().map(|told| (told.name(), told.verdict(), told.figures()));
        let standings_match = if ask.every_limit || self.standings.len() == 1 {
            told.eq(self.standings.iter().copied())
        } else {
            told.eq(self.loudest())
        };
        standings_match
            && decision.verdict() == self.verdict
            && decision.promises_turns() == self.promises_turns
            && decision.decided_at() == now
            && decision.source() == Source::Store
    }

    /// Who speaks for all: the longest wait, or with none the least remaining; the first of equals.
    fn loudest(&self) -> Option<(&'static str, Verdict, Figures)> {
        let wait = |verdict| match verdict {
            Verdict::Allowed => (0, Duration::ZERO),
            Verdict::AllowedAfter(delay) => (1, delay),
            Verdict::Denied { retry_after } => (2, retry_after),
            Verdict::Never => (3, Duration::ZERO),
        };
        let loudness = |&(_, verdict, figures): &(_, Verdict, Figures)| (wait(verdict), u64::MAX - figures.remaining);
        // `max_by_key` returns the last of equals.
        self.standings.iter().rev().copied().max_by_key(loudness)
    }
}

/// Both must let through.
fn both(one: Verdict, other: Verdict) -> Verdict {
    match (one, other) {
        (Verdict::Never, _) | (_, Verdict::Never) => Verdict::Never,
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
struct Held {
    state: Rc<dyn Any>,
    digest: u64,
    until: Timestamp,
}

impl Held {
    fn new<S: Kept>(state: S) -> Self {
        let (digest, until) = (digest_of(&format!("{state:?}")), Timestamp::from_micros(state.fresh_at()));
        Self { state: Rc::new(state), digest, until }
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
    fn fresh_at(&self) -> u64;
}

impl<const N: usize> Kept for [u64; N] {
    fn zero(_words: usize) -> Self {
        [0; N]
    }

    fn fresh_at(&self) -> u64 {
        self[0]
    }
}

impl Kept for BucketState {
    fn zero(_words: usize) -> Self {
        Self::default()
    }

    fn fresh_at(&self) -> u64 {
        <[u64; 5]>::from(*self)[0]
    }
}

impl Kept for Blocks {
    fn zero(words: usize) -> Self {
        Blocks::zero(words)
    }

    fn fresh_at(&self) -> u64 {
        self[0]
    }
}

impl Kept for Log {
    fn zero(_words: usize) -> Self {
        Log::default()
    }

    fn fresh_at(&self) -> u64 {
        self.fresh_at
    }
}

/// An algorithm, whatever its states are.
trait Kernel {
    fn zero(&self) -> Held;
    fn peek(&self, held: &Held, now: Timestamp, ask: Ask) -> Verdict;
    fn figures(&self, held: &Held, now: Timestamp) -> Figures;
    fn commit(&self, held: &Held, now: Timestamp, delay: Duration, cost: u64) -> Held;
    fn give_back(&self, held: &Held, now: Timestamp, charge: Charge, amount: u64) -> Held;
    fn promises_turns(&self) -> bool;
}

struct Pure<A>(A);

impl<A: Algorithm> Kernel for Pure<A>
where
    A::State: Kept,
{
    fn zero(&self) -> Held {
        Held::new(A::State::zero(self.0.state_words()))
    }

    fn peek(&self, held: &Held, now: Timestamp, ask: Ask) -> Verdict {
        self.0.peek(held.as_state(), now, ask)
    }

    fn figures(&self, held: &Held, now: Timestamp) -> Figures {
        self.0.reading(held.as_state(), now).figures()
    }

    fn commit(&self, held: &Held, now: Timestamp, delay: Duration, cost: u64) -> Held {
        let mut state = held.as_state::<A::State>().clone();
        self.0.commit(&mut state, now, delay, cost);
        Held::new(state)
    }

    fn give_back(&self, held: &Held, now: Timestamp, charge: Charge, amount: u64) -> Held {
        let mut state = held.as_state::<A::State>().clone();
        self.0.give_back(&mut state, now, charge, amount);
        Held::new(state)
    }

    fn promises_turns(&self) -> bool {
        self.0.promises_turns()
    }
}
