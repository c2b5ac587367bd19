//! The sequential model: the pure algorithms over a map of states, without table, locks, eviction or fast paths.
//!
//! The held cost is one number beside the state. A decision counts it as if it were charged at the time of the
//! decision. A hold adds to it. The end of a hold subtracts the held cost and charges the actual cost at that time.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, State};
use tower_ratelimit::{AcquireOptions, Decision, DecisionSource, Detail, LimitSnapshot, Timestamp, Verdict};

use super::recording::Step;
use crate::algorithm_ext::AlgorithmExt as _;

/// A user and a group. A limit counts by one of them or by both.
pub(crate) type Caller = [u64; 2];

/// A limit: its name, its sub-key and its algorithm.
pub(crate) struct Rule {
    name: &'static str,
    sub_key: fn(&Caller) -> u64,
    algorithm: Box<dyn ErasedAlgorithm>,
}

impl Rule {
    pub(crate) fn new<A: Algorithm>(name: &'static str, algorithm: A, sub_key: fn(&Caller) -> u64) -> Self
    where
        A::State: Kept,
    {
        Self { name, sub_key, algorithm: Box::new(Pure(algorithm)) }
    }
}

/// The states of all limits, and the expected result of each call.
pub(crate) struct Model {
    rules: Vec<Rule>,
    entries: HashMap<(usize, u64), Entry>,
    digest: u64,
}

/// The states before a call.
pub(crate) struct Undo(Vec<((usize, u64), Option<Entry>)>);

/// The expected content of a decision.
struct Expected {
    verdict: Verdict,
    supports_scheduling: bool,
    is_estimate: bool,
    statuses: Vec<(&'static str, Verdict, LimitSnapshot)>,
}

impl Model {
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        Self { rules, entries: HashMap::new(), digest: 0 }
    }

    /// A digest of all states. Models with equal digests give equal results.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Makes the call at this time if its expected result equals the recorded one. Otherwise changes nothing.
    pub(crate) fn apply(&mut self, step: &Step, now: Timestamp) -> Option<Undo> {
        let mut undo = Undo(Vec::new());
        let is_explained = match step {
            Step::LimiterFuture { caller, options, decision, is_held } => {
                let expected = self.acquire(caller, now, *options, &mut undo);
                expected.is(decision, now, *options) && *is_held == (options.hold && expected.verdict.is_allowed())
            }
            Step::Peek { caller, options, decision } => {
                let expected = self.acquire(caller, now, *options, &mut undo);
                // `peek` returns the verdict before a charge, and the figures without one.
                self.undo(std::mem::replace(&mut undo, Undo(Vec::new())));
                let figures = self.rules.iter().enumerate().map(|(limit, rule)| {
                    let entry = self.state_of(limit, caller);
                    rule.algorithm.figures(&entry, now)
                });
                expected.with(figures.collect()).is(decision, now, *options)
            }
            Step::Settle { caller, limit, held, actual } => {
                let entry = self.state_of(*limit, caller);
                // The actual cost never exceeds the held cost here.
                let rest = entry.held.checked_sub(*held)?;
                let settled = self.rules[*limit].algorithm.charge(&entry.with_held(rest), now, Duration::ZERO, *actual);
                self.put(*limit, caller, settled, &mut undo);
                true
            }
            Step::Reset { caller, limit } => {
                // The held cost is not part of the state, so a reset keeps it.
                let held = self.state_of(*limit, caller).held;
                let reset = self.rules[*limit].algorithm.zero().with_held(held);
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

    /// Restores the states before the call.
    pub(crate) fn undo(&mut self, Undo(before): Undo) {
        for (state_key, entry) in before.into_iter().rev() {
            self.swap(state_key, entry);
        }
    }

    fn acquire(&mut self, caller: &Caller, now: Timestamp, options: AcquireOptions, undo: &mut Undo) -> Expected {
        let entries: Vec<Entry> = (0..self.rules.len()).map(|limit| self.state_of(limit, caller)).collect();
        let (verdicts, supports_scheduling) = self.verdicts(&entries, now, options);
        let verdict = verdicts.iter().copied().fold(Verdict::Allowed, both);
        let is_estimate = entries.iter().zip(&verdicts).any(|(entry, verdict)| entry.held > 0 && !verdict.is_allowed());
        let delay = match verdict {
            Verdict::Allowed => Some(Duration::ZERO),
            Verdict::AllowedAfter(delay) => Some(delay),
            Verdict::Denied { .. } | Verdict::ExceedsLimit => None,
        };
        let mut statuses = Vec::new();
        for (limit, mut entry) in entries.into_iter().enumerate() {
            let rule = &self.rules[limit];
            if let (Some(delay), 1..) = (delay, options.cost) {
                let held = entry.held;
                entry = if options.hold {
                    entry.with_held(held + options.cost)
                } else {
                    rule.algorithm.charge(&entry, now, delay, options.cost)
                };
            }
            statuses.push((rule.name, verdicts[limit], rule.algorithm.figures(&entry, now)));
            if delay.is_some() && options.cost > 0 {
                self.put(limit, caller, entry, undo);
            }
        }
        Expected { verdict, supports_scheduling, is_estimate, statuses }
    }

    /// Returns each limit's verdict and whether the transaction supports scheduling.
    ///
    /// A transaction is scheduled only if every limit supports scheduling and stays in use until the other limits start.
    /// Otherwise each limit decides without delay.
    fn verdicts(&self, entries: &[Entry], now: Timestamp, options: AcquireOptions) -> (Vec<Verdict>, bool) {
        let verdicts_for = |options: AcquireOptions| -> Vec<Verdict> {
            self.rules.iter().zip(entries).map(|(rule, entry)| rule.algorithm.peek(entry, now, options)).collect()
        };
        // A hold has no scheduled start.
        let options = if options.hold { options.max_delay(Duration::ZERO) } else { options };
        let can_schedule = !options.hold && self.rules.iter().all(|rule| rule.algorithm.supports_scheduling());
        if self.rules.len() == 1 {
            return (verdicts_for(options), can_schedule);
        }
        let immediate = verdicts_for(options.max_delay(Duration::ZERO));
        let waits = immediate.iter().map(|verdict| match *verdict {
            Verdict::Denied { retry_after } => retry_after,
            _ => Duration::ZERO,
        });
        let waits: Vec<Duration> = waits.collect();
        let is_in_use_until_others_start = |limit: usize| {
            let others = waits.iter().enumerate().filter(|(other, _)| *other != limit).map(|(_, wait)| *wait);
            // A held cost is no usage that a charge adds to.
            let charged = self.rules[limit].algorithm.figures(&entries[limit].clone().with_held(0), now);
            charged.reset >= others.max().unwrap_or_default()
        };
        let exceeds = immediate.contains(&Verdict::ExceedsLimit);
        let schedule = can_schedule && (exceeds || (0..self.rules.len()).all(is_in_use_until_others_start));
        if schedule { (verdicts_for(options), true) } else { (immediate, false) }
    }

    fn state_key(&self, limit: usize, caller: &Caller) -> (usize, u64) {
        (limit, (self.rules[limit].sub_key)(caller))
    }

    fn state_of(&self, limit: usize, caller: &Caller) -> Entry {
        self.entries.get(&self.state_key(limit, caller)).cloned().unwrap_or_else(|| self.rules[limit].algorithm.zero())
    }

    fn put(&mut self, limit: usize, caller: &Caller, entry: Entry, undo: &mut Undo) {
        let state_key = self.state_key(limit, caller);
        let before = self.swap(state_key, Some(entry));
        undo.0.push((state_key, before));
    }

    fn swap(&mut self, state_key: (usize, u64), entry: Option<Entry>) -> Option<Entry> {
        let digest =
            |entry: &Option<Entry>| entry.as_ref().map_or(0, |entry| digest_of(&(state_key, entry.digest, entry.held)));
        let after = digest(&entry);
        let before = match entry {
            Some(entry) => self.entries.insert(state_key, entry),
            None => self.entries.remove(&state_key),
        };
        self.digest ^= digest(&before) ^ after;
        before
    }
}

impl Expected {
    fn with(mut self, figures: Vec<LimitSnapshot>) -> Self {
        for (standing, figures) in self.statuses.iter_mut().zip(figures) {
            standing.2 = figures;
        }
        self
    }

    fn is(&self, decision: &Decision, now: Timestamp, options: AcquireOptions) -> bool {
        let actual = decision.limits().iter().map(|actual| (actual.name(), actual.verdict(), actual.snapshot()));
        let statuses_match = if options.detail == Detail::All || self.statuses.len() == 1 {
            actual.eq(self.statuses.iter().copied())
        } else {
            actual.eq(self.most_restrictive())
        };
        statuses_match
            && decision.verdict() == self.verdict
            && decision.supports_scheduling() == self.supports_scheduling
            && decision.is_estimate() == self.is_estimate
            && decision.decided_at() == now
            && decision.source() == DecisionSource::Store
    }

    /// The most restrictive limit: the longest wait, otherwise the least remaining; the first of equal ones.
    fn most_restrictive(&self) -> Option<(&'static str, Verdict, LimitSnapshot)> {
        let wait = |verdict| match verdict {
            Verdict::Allowed => (0, Duration::ZERO),
            Verdict::AllowedAfter(delay) => (1, delay),
            Verdict::Denied { retry_after } => (2, retry_after),
            Verdict::ExceedsLimit => (3, Duration::ZERO),
        };
        let loudness =
            |&(_, verdict, figures): &(_, Verdict, LimitSnapshot)| (wait(verdict), u64::MAX - figures.remaining);
        // `max_by_key` returns the last of equals.
        self.statuses.iter().rev().copied().max_by_key(loudness)
    }
}

/// The verdict if both limits must allow.
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

/// The state of one sub-key under one limit. Immutable: a transition creates a new value.
#[derive(Clone)]
struct Entry {
    state: Rc<dyn Any>,
    digest: u64,
    /// The sum of held costs.
    held: u64,
}

impl Entry {
    fn new<S: Kept>(state: S, held: u64) -> Self {
        let digest = digest_of(&format!("{state:?}"));
        Self { state: Rc::new(state), digest, held }
    }

    fn with_held(self, held: u64) -> Self {
        Self { held, ..self }
    }

    fn as_state<S: Kept>(&self) -> &S {
        self.state.downcast_ref().expect("a limit's states have one type")
    }
}

fn digest_of(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// The kinds of state.
pub(crate) trait Kept: State + Debug {
    fn zero(words: usize) -> Self;
}

impl<S: State + Debug> Kept for S {
    fn zero(words: usize) -> Self {
        let mut state = Self::empty();
        state.clear(words);
        state
    }
}

/// An algorithm with its state type erased. The held cost counts as if it were charged now.
trait ErasedAlgorithm {
    fn zero(&self) -> Entry;
    fn peek(&self, entry: &Entry, now: Timestamp, options: AcquireOptions) -> Verdict;
    fn figures(&self, entry: &Entry, now: Timestamp) -> LimitSnapshot;
    fn charge(&self, entry: &Entry, now: Timestamp, delay: Duration, cost: u64) -> Entry;
    fn supports_scheduling(&self) -> bool;
}

struct Pure<A>(A);

impl<A: Algorithm> Pure<A>
where
    A::State: Kept,
{
    fn charged(&self, state: &A::State, now: Timestamp, delay: Duration, cost: u64) -> A::State {
        let mut state = state.clone();
        self.0.charge(&mut state, now, delay, cost);
        state
    }

    fn with_held(&self, entry: &Entry, now: Timestamp) -> A::State {
        self.charged(entry.as_state(), now, Duration::ZERO, entry.held)
    }
}

impl<A: Algorithm> ErasedAlgorithm for Pure<A>
where
    A::State: Kept,
{
    fn zero(&self) -> Entry {
        Entry::new(A::State::zero(self.0.counter_words()), 0)
    }

    fn peek(&self, entry: &Entry, now: Timestamp, options: AcquireOptions) -> Verdict {
        self.0.peek(&self.with_held(entry, now), now, options)
    }

    fn figures(&self, entry: &Entry, now: Timestamp) -> LimitSnapshot {
        self.0.snapshot(&self.with_held(entry, now), now).compute()
    }

    fn charge(&self, entry: &Entry, now: Timestamp, delay: Duration, cost: u64) -> Entry {
        Entry::new(self.charged(entry.as_state(), now, delay, cost), entry.held)
    }

    fn supports_scheduling(&self) -> bool {
        self.0.supports_scheduling()
    }
}
