//! Several limits together: a request passes if every limit allows it, and only then is any of them charged.

use std::time::Duration;

use tower_ratelimit::{AcquireOptions, LimitSnapshot, Verdict};

use super::{Bucket, Hits, Model, Spec, Window};
use crate::span::micros;

pub(crate) struct Combined {
    pub(crate) limits: Vec<Box<dyn Model>>,
    /// The sum of what is held, on each limit.
    held: u64,
}

/// What a decision must say.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) verdict: Verdict,
    /// Whether something is held on a limit that denies.
    pub(crate) is_estimate: bool,
    pub(crate) standings: Vec<ExpectedStanding>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ExpectedStanding {
    pub(crate) verdict: Verdict,
    pub(crate) figures: LimitSnapshot,
}

impl Combined {
    pub(crate) fn new(specs: impl IntoIterator<Item = Spec>) -> Self {
        let limit = |spec| -> Box<dyn Model> {
            match spec {
                Spec::Bucket { quota, burst } => Box::new(Bucket::new(quota, burst)),
                Spec::Window { quota, aligned } => Box::new(Window::new(quota, aligned)),
                Spec::Counters { .. } | Spec::HitLog { .. } => Box::new(Hits::new(spec)),
            }
        };
        Self { limits: specs.into_iter().map(limit).collect(), held: 0 }
    }

    pub(crate) fn hold_to(&mut self, specs: impl IntoIterator<Item = Spec>) {
        for (limit, spec) in self.limits.iter_mut().zip(specs) {
            limit.hold_to(spec);
        }
    }

    /// The limits as a decision sees them: what is held counts as if it were charged now.
    pub(crate) fn seen(&self, now: u64) -> Vec<Box<dyn Model>> {
        self.limits.iter().map(|limit| limit.with_held(now, self.held)).collect()
    }

    pub(crate) fn peek(&self, now: u64, ask: AcquireOptions) -> Expected {
        let limits = self.seen(now);
        // A later turn is promised by all limits or by none, and only if all owe at least until then.
        let at_once = limits.iter().map(|limit| limit.verdict(now, ask.cost, 0));
        let turn = match at_once.max_by_key(strictness) {
            Some(Verdict::Denied { retry_after }) => retry_after,
            _ => Duration::ZERO,
        };
        let promises = |limit: &dyn Model| limit.supports_scheduling() && limit.figures(now).reset >= turn;
        // A hold starts now, or not at all.
        let all_promise = !ask.hold && limits.iter().all(|limit| promises(&**limit));
        let patience = ask.max_delay.filter(|_| all_promise).map_or(0, micros);
        let standings: Vec<_> = limits
            .iter()
            .map(|limit| ExpectedStanding {
                verdict: limit.verdict(now, ask.cost, patience),
                figures: limit.figures(now),
            })
            .collect();
        let verdict = standings.iter().map(|standing| standing.verdict).max_by_key(strictness);
        let verdict = verdict.unwrap_or(Verdict::Allowed);
        Expected { verdict, is_estimate: self.held > 0 && !verdict.is_allowed(), standings }
    }

    /// As [`peek`](Self::peek), and charges or holds if the request is allowed: the figures are those after it.
    pub(crate) fn acquire(&mut self, now: u64, ask: AcquireOptions) -> Expected {
        let mut expected = self.peek(now, ask);
        if !expected.verdict.is_allowed() {
            return expected;
        }
        if ask.hold {
            self.held += ask.cost;
        } else {
            let delay = if let Verdict::AllowedAfter(delay) = expected.verdict { micros(delay) } else { 0 };
            self.limits.iter_mut().for_each(|limit| limit.charge(now, delay, ask.cost));
        }
        for (limit, standing) in self.seen(now).iter().zip(&mut expected.standings) {
            standing.figures = limit.figures(now);
        }
        expected
    }

    pub(crate) fn settle(&mut self, now: u64, held: u64, actual: u64) {
        self.held -= held;
        self.limits.iter_mut().for_each(|limit| limit.charge(now, 0, actual));
    }

    /// What is held stays held.
    pub(crate) fn forget(&mut self) {
        self.limits.iter_mut().for_each(|limit| limit.forget());
    }
}

impl Expected {
    /// The standing that speaks: the longest wait, then the least remaining, then the first.
    pub(crate) fn speaking(&self) -> usize {
        let order = |&index: &usize| {
            let standing = &self.standings[index];
            (strictness(&standing.verdict), std::cmp::Reverse((standing.figures.remaining, index)))
        };
        (0..self.standings.len()).max_by_key(order).expect("there is a limit")
    }
}

/// Verdicts from the mildest to the strictest.
fn strictness(verdict: &Verdict) -> (u8, Duration) {
    match *verdict {
        Verdict::Allowed => (0, Duration::ZERO),
        Verdict::AllowedAfter(delay) => (1, delay),
        Verdict::Denied { retry_after } => (2, retry_after),
        Verdict::ExceedsLimit => (3, Duration::ZERO),
    }
}
