//! The model of several limits: a request is allowed if every limit allows it, and is charged to all or to none.

use std::time::Duration;

use tower_ratelimit::{AcquireOptions, LimitSnapshot, Verdict};

use super::{Bucket, Hits, Model, Rings, Spec, Window};
use crate::span::micros;

pub(crate) struct Combined {
    pub(crate) limits: Vec<Box<dyn Model>>,
    /// For each limit its fixed cost, if it has one.
    fixed: Vec<Option<u64>>,
    /// For each limit the sum of the held costs.
    held: Vec<u64>,
}

/// The decision that the model expects.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) verdict: Verdict,
    /// Whether a hold may cause the denial.
    pub(crate) is_estimate: bool,
    pub(crate) statuses: Vec<ExpectedStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ExpectedStatus {
    pub(crate) verdict: Verdict,
    pub(crate) snapshot: LimitSnapshot,
}

impl Combined {
    pub(crate) fn new(specs: impl IntoIterator<Item = Spec>) -> Self {
        let limit = |spec| -> Box<dyn Model> {
            match spec {
                Spec::Bucket { quota, burst } => Box::new(Bucket::new(quota, burst)),
                Spec::FixedWindow { quota, aligned } => Box::new(Window::new(quota, aligned)),
                Spec::SlidingWindow { .. } => Box::new(Rings::new(spec)),
                Spec::SlidingLog { .. } => Box::new(Hits::new(spec)),
            }
        };
        let limits: Vec<_> = specs.into_iter().map(limit).collect();
        Self { fixed: vec![None; limits.len()], held: vec![0; limits.len()], limits }
    }

    pub(crate) fn with_fixed_costs(mut self, fixed: &[Option<u64>]) -> Self {
        self.fixed.copy_from_slice(fixed);
        self
    }

    /// Returns the cost of a request on each limit.
    fn costs(&self, options: AcquireOptions) -> impl Iterator<Item = u64> + '_ {
        self.fixed.iter().map(move |fixed| fixed.unwrap_or(options.cost))
    }

    pub(crate) fn set_spec(&mut self, specs: impl IntoIterator<Item = Spec>) {
        for (limit, spec) in self.limits.iter_mut().zip(specs) {
            limit.set_spec(spec);
        }
    }

    /// Returns the limits as a decision sees them: held costs count as if they were charged now.
    pub(crate) fn with_held(&self, now: u64) -> Vec<Box<dyn Model>> {
        self.limits.iter().zip(&self.held).map(|(limit, held)| limit.with_held(now, *held)).collect()
    }

    pub(crate) fn peek(&self, now: u64, options: AcquireOptions) -> Expected {
        let limits = self.with_held(now);
        // A later start is scheduled by all limits or by none, and only if the charged usage of each lasts until the
        // start that the other limits demand.
        let immediate = limits.iter().zip(self.costs(options)).map(|(limit, cost)| limit.verdict(now, cost, 0));
        let immediate: Vec<_> = immediate.collect();
        let exceeds = immediate.contains(&Verdict::ExceedsLimit);
        let start_of_others = |index: usize| {
            let others = immediate.iter().enumerate().filter(|(other, _)| *other != index);
            let waits = others.map(|(_, verdict)| match *verdict {
                Verdict::Denied { retry_after } => retry_after,
                _ => Duration::ZERO,
            });
            waits.max().unwrap_or_default()
        };
        let lasts = |index: usize| exceeds || self.limits[index].snapshot(now).reset >= start_of_others(index);
        // A hold cannot start later.
        let all_schedule = !options.hold
            && self.limits.iter().all(|limit| limit.supports_scheduling())
            && (0..limits.len()).all(lasts);
        let max_delay = options.max_delay.filter(|_| all_schedule).map_or(0, micros);
        let statuses: Vec<_> = limits
            .iter()
            .zip(self.costs(options))
            .map(|(limit, cost)| ExpectedStatus {
                verdict: limit.verdict(now, cost, max_delay),
                snapshot: limit.snapshot(now),
            })
            .collect();
        let verdict = statuses.iter().map(|status| status.verdict).max_by_key(strictness);
        let verdict = verdict.unwrap_or(Verdict::Allowed);
        let is_estimate =
            statuses.iter().zip(&self.held).any(|(status, held)| *held > 0 && !status.verdict.is_allowed());
        Expected { verdict, is_estimate, statuses }
    }

    /// As [`peek`](Self::peek), but charges or holds an allowed request. The snapshots are those afterwards.
    pub(crate) fn acquire(&mut self, now: u64, options: AcquireOptions) -> Expected {
        let mut expected = self.peek(now, options);
        if !expected.verdict.is_allowed() {
            return expected;
        }
        let delay = if let Verdict::AllowedAfter(delay) = expected.verdict { micros(delay) } else { 0 };
        for (index, limit) in self.limits.iter_mut().enumerate() {
            match self.fixed[index] {
                None if options.hold => self.held[index] += options.cost,
                fixed => limit.charge(now, delay, fixed.unwrap_or(options.cost)),
            }
        }
        for (limit, status) in self.with_held(now).iter().zip(&mut expected.statuses) {
            status.snapshot = limit.snapshot(now);
        }
        expected
    }

    pub(crate) fn settle(&mut self, now: u64, held: u64, actual: u64) {
        for (index, limit) in self.limits.iter_mut().enumerate().filter(|(index, _)| self.fixed[*index].is_none()) {
            self.held[index] -= held;
            limit.charge(now, 0, actual);
        }
    }

    /// Resets the usage; held costs stay held.
    pub(crate) fn reset(&mut self) {
        self.limits.iter_mut().for_each(|limit| limit.reset());
    }
}

impl Expected {
    /// Returns the index of the most restrictive limit: the longest wait, then the least remaining, then the first.
    pub(crate) fn most_restrictive(&self) -> usize {
        let order = |&index: &usize| {
            let status = &self.statuses[index];
            (strictness(&status.verdict), std::cmp::Reverse((status.snapshot.remaining, index)))
        };
        (0..self.statuses.len()).max_by_key(order).expect("there is a limit")
    }
}

/// Orders verdicts from the least to the most restrictive.
fn strictness(verdict: &Verdict) -> (u8, Duration) {
    match *verdict {
        Verdict::Allowed => (0, Duration::ZERO),
        Verdict::AllowedAfter(delay) => (1, delay),
        Verdict::Denied { retry_after } => (2, retry_after),
        Verdict::ExceedsLimit => (3, Duration::ZERO),
    }
}
