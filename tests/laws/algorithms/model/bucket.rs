//! The model of the buckets: a debt of tokens that drains at the quota's rate down to zero.

use std::time::Duration;

use num_bigint::BigInt;
use num_rational::BigRational;
use tower_ratelimit::{LimitSnapshot, Quota, Verdict};

use super::{MAX_PERIOD, Model, Spec};
use crate::span::{micros, ticks};

#[derive(Clone)]
pub(crate) struct Bucket {
    terms: Terms,
    /// The debt in tokens at the time `at`.
    debt: BigRational,
    at: u64,
    /// The rate at which the debt drains: that of the quota that was charged last.
    draining: BigRational,
}

/// The configuration in rationals.
#[derive(Clone)]
struct Terms {
    burst: u64,
    /// Tokens a microsecond.
    rate: BigRational,
    time_to_full: u64,
    /// The maximum debt: the tokens that drain within `MAX_PERIOD`.
    max_debt: BigRational,
}

impl Terms {
    fn new(quota: Quota, burst: u64) -> Self {
        let rate = BigRational::new(quota.limit().into(), micros(quota.period()).into());
        Self { burst, time_to_full: round_up(&(whole(burst) / &rate)), max_debt: whole(MAX_PERIOD) * &rate, rate }
    }
}

impl Bucket {
    pub(crate) fn new(quota: Quota, burst: u64) -> Self {
        let terms = Terms::new(quota, burst);
        Self { draining: terms.rate.clone(), terms, debt: whole(0), at: 0 }
    }

    /// Returns the debt at `now`, the effective time, and the rate at which the debt drains from then on.
    ///
    /// The effective time is the newest time in the state, unless that is too far ahead of `now`. The rate since the
    /// last charge is the faster one of the quota that was charged and the present quota.
    fn debt_at(&self, now: u64) -> (BigRational, u64, &BigRational) {
        let at = now.max(self.at);
        if at - now > self.terms.time_to_full {
            return (whole(0), now, &self.terms.rate);
        }
        let (debt, rate) = if self.draining >= self.terms.rate {
            (self.debt.clone(), &self.draining)
        } else {
            (self.converted(&self.debt), &self.terms.rate)
        };
        let debt = at_least_zero(debt - rate * whole(at - self.at));
        if debt == whole(0) { (debt, at, &self.terms.rate) } else { (debt, at, rate) }
    }

    /// Returns the debt in parts of the present quota, and the effective time, before a charge.
    fn debt_for_present_quota(&self, now: u64) -> (BigRational, u64) {
        let (debt, at, rate) = self.debt_at(now);
        let debt = if *rate == self.terms.rate { debt } else { self.converted(&debt) };
        (debt, at)
    }

    /// Converts a debt from an earlier quota: rounds up to a multiple of the smallest amount that the present quota
    /// drains, which is `1 / tokens` of a microsecond's worth.
    fn converted(&self, debt: &BigRational) -> BigRational {
        let tokens = BigRational::from_integer(self.terms.rate.numer().clone());
        let smallest = &self.terms.rate / tokens;
        ((debt / &smallest).ceil() * smallest).min(self.terms.max_debt.clone())
    }
}

impl Model for Bucket {
    fn set_spec(&mut self, spec: Spec) {
        let Spec::Bucket { quota, burst } = spec else { panic!("{spec:?} is not a bucket") };
        self.terms = Terms::new(quota, burst);
    }

    fn verdict(&self, now: u64, cost: u64, max_delay: u64) -> Verdict {
        if cost > self.terms.burst {
            return Verdict::ExceedsLimit;
        }
        let (debt, at, rate) = self.debt_at(now);
        let wait = match wait(&debt, self.terms.burst - cost, rate) {
            0 => return Verdict::Allowed,
            wait => at - now + wait,
        };
        // No start is scheduled whose debt would take longer than `MAX_PERIOD` to drain.
        let drained_after = at - now + self::wait(&debt, 0, rate) + self::wait(&whole(cost), 0, &self.terms.rate);
        // After the wait itself, the request starts without a delay.
        match wait.saturating_sub(max_delay).max(drained_after.saturating_sub(MAX_PERIOD)).min(wait) {
            0 => Verdict::AllowedAfter(ticks(wait)),
            over => Verdict::Denied { retry_after: ticks(over) },
        }
    }

    fn snapshot(&self, now: u64) -> LimitSnapshot {
        let (debt, at, rate) = self.debt_at(now);
        let remaining = round_down(&(whole(self.terms.burst) - &debt));
        let until = |target: u64| match wait(&debt, target, rate) {
            0 => Duration::ZERO,
            wait => ticks(at - now + wait),
        };
        let next_token_after =
            if remaining == self.terms.burst { Duration::ZERO } else { until(self.terms.burst - remaining - 1) };
        LimitSnapshot::new(self.terms.burst, ticks(self.terms.time_to_full))
            .with_remaining(remaining)
            .with_reset(until(0))
            .with_next_token_after(next_token_after)
    }

    fn charge(&mut self, now: u64, delay: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let (mut debt, at) = self.debt_for_present_quota(now);
        // Tokens that come back between the end of the debt and the start overflow the full bucket. A start within the
        // microsecond in which the debt ends counts as the end of the debt.
        let start = now + delay;
        if at + wait(&debt, 0, &self.terms.rate) < start {
            debt = whole(start - at) * &self.terms.rate;
        }
        self.draining = self.terms.rate.clone();
        self.debt = (debt + whole(cost)).min(self.terms.max_debt.clone());
        self.at = at;
    }

    fn with_held(&self, now: u64, held: u64) -> Box<dyn Model> {
        let mut charged = self.clone();
        charged.charge(now, 0, held);
        Box::new(charged)
    }

    fn reset(&mut self) {
        (self.debt, self.at) = (whole(0), 0);
    }

    fn supports_scheduling(&self) -> bool {
        true
    }

    fn newest(&self) -> u64 {
        self.at
    }

    fn time_to_full(&self) -> u64 {
        self.terms.time_to_full
    }
}

/// Returns the whole microseconds after which the debt is at most `target`.
fn wait(debt: &BigRational, target: u64, rate: &BigRational) -> u64 {
    round_up(&((debt - whole(target)) / rate))
}

fn whole(number: u64) -> BigRational {
    BigRational::from_integer(number.into())
}

fn at_least_zero(number: BigRational) -> BigRational {
    number.max(whole(0))
}

/// Rounds up; negative numbers become zero.
fn round_up(number: &BigRational) -> u64 {
    natural(&number.ceil().to_integer())
}

/// Rounds down; negative numbers become zero.
fn round_down(number: &BigRational) -> u64 {
    natural(&number.floor().to_integer())
}

fn natural(number: &BigInt) -> u64 {
    u64::try_from(number.max(&BigInt::ZERO)).expect("the schedules stay within 64 bits")
}
