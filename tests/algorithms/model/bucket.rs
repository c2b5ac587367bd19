//! The bucket: how many tokens are owed, and since when. Tokens come back at the quota's rate until none are owed.

use std::time::Duration;

use num_bigint::BigInt;
use num_rational::BigRational;
use tower_ratelimit::{LimitSnapshot, Quota, Verdict};

use super::{LONGEST, Model, Spec};
use crate::span::{micros, ticks};

#[derive(Clone)]
pub(crate) struct Bucket {
    terms: Terms,
    /// Tokens owed at the time `at`.
    owed: BigRational,
    at: u64,
    /// The rate by which they drain: that of the quota which was charged last.
    draining: BigRational,
}

/// What the key is held to.
#[derive(Clone)]
struct Terms {
    burst: u64,
    /// Tokens a microsecond.
    rate: BigRational,
    time_to_full: u64,
    /// The most that is ever owed: what comes back in the longest time that anything is remembered.
    most: BigRational,
}

impl Terms {
    fn new(quota: Quota, burst: u64) -> Self {
        let rate = BigRational::new(quota.limit().into(), micros(quota.period()).into());
        Self { burst, time_to_full: round_up(&(whole(burst) / &rate)), most: whole(LONGEST) * &rate, rate }
    }
}

impl Bucket {
    pub(crate) fn new(quota: Quota, burst: u64) -> Self {
        let terms = Terms::new(quota, burst);
        Self { draining: terms.rate.clone(), terms, owed: whole(0), at: 0 }
    }

    /// What is owed at `now`, the time to decide at (the newest that was seen, unless it is too far ahead), and the
    /// rate by which it drains on: since the last charge that is the faster one of its quota and the present one.
    fn owed_at(&self, now: u64) -> (BigRational, u64, &BigRational) {
        let at = now.max(self.at);
        if at - now > self.terms.time_to_full {
            return (whole(0), now, &self.terms.rate);
        }
        let (owed, rate) = if self.draining >= self.terms.rate {
            (self.owed.clone(), &self.draining)
        } else {
            (self.converted(&self.owed), &self.terms.rate)
        };
        let owed = at_least_zero(owed - rate * whole(at - self.at));
        if owed == whole(0) { (owed, at, &self.terms.rate) } else { (owed, at, rate) }
    }

    /// The same in terms of the present quota, for who is about to change it.
    fn owed_to_change(&self, now: u64) -> (BigRational, u64) {
        let (owed, at, rate) = self.owed_at(now);
        let owed = if *rate == self.terms.rate { owed } else { self.converted(&owed) };
        (owed, at)
    }

    /// A debt from a former quota: rounded up to a whole number of the smallest amounts that this quota drains, the
    /// `1 / tokens` part of a microsecond's worth.
    fn converted(&self, owed: &BigRational) -> BigRational {
        let tokens = BigRational::from_integer(self.terms.rate.numer().clone());
        let smallest = &self.terms.rate / tokens;
        ((owed / &smallest).ceil() * smallest).min(self.terms.most.clone())
    }
}

impl Model for Bucket {
    fn hold_to(&mut self, spec: Spec) {
        let Spec::Bucket { quota, burst } = spec else { panic!("a bucket stays a bucket") };
        self.terms = Terms::new(quota, burst);
    }

    fn verdict(&self, now: u64, cost: u64, patience: u64) -> Verdict {
        if cost > self.terms.burst {
            return Verdict::ExceedsLimit;
        }
        let (owed, at, rate) = self.owed_at(now);
        let wait = match wait(&owed, self.terms.burst - cost, rate) {
            0 => return Verdict::Allowed,
            wait => at - now + wait,
        };
        // No turn is promised whose debt would outlast the longest time that anything is remembered.
        let paid_after = at - now + self::wait(&owed, 0, rate) + self::wait(&whole(cost), 0, &self.terms.rate);
        match wait.saturating_sub(patience).max(paid_after.saturating_sub(LONGEST)) {
            0 => Verdict::AllowedAfter(ticks(wait)),
            over => Verdict::Denied { retry_after: ticks(over) },
        }
    }

    fn figures(&self, now: u64) -> LimitSnapshot {
        let (owed, at, rate) = self.owed_at(now);
        let remaining = round_down(&(whole(self.terms.burst) - &owed));
        let until = |target: u64| match wait(&owed, target, rate) {
            0 => Duration::ZERO,
            wait => ticks(at - now + wait),
        };
        LimitSnapshot {
            limit: self.terms.burst,
            window: ticks(self.terms.time_to_full),
            remaining,
            reset: until(0),
            next_token_after: if remaining == self.terms.burst {
                Duration::ZERO
            } else {
                until(self.terms.burst - remaining - 1)
            },
        }
    }

    fn charge(&mut self, now: u64, delay: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let (mut owed, at) = self.owed_to_change(now);
        // What comes back before the turn, after all is paid, is lost to a full bucket. A turn within the very
        // microsecond in which the last debt is paid is the moment of that payment.
        let turn = now + delay;
        if at + wait(&owed, 0, &self.terms.rate) < turn {
            owed = whole(turn - at) * &self.terms.rate;
        }
        self.draining = self.terms.rate.clone();
        self.owed = (owed + whole(cost)).min(self.terms.most.clone());
        self.at = at;
    }

    fn with_held(&self, now: u64, held: u64) -> Box<dyn Model> {
        let mut charged = self.clone();
        charged.charge(now, 0, held);
        Box::new(charged)
    }

    fn forget(&mut self) {
        (self.owed, self.at) = (whole(0), 0);
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

/// The whole microseconds after which no more than `target` is owed.
fn wait(owed: &BigRational, target: u64, rate: &BigRational) -> u64 {
    round_up(&((owed - whole(target)) / rate))
}

fn whole(number: u64) -> BigRational {
    BigRational::from_integer(number.into())
}

fn at_least_zero(number: BigRational) -> BigRational {
    number.max(whole(0))
}

/// Rounded up, zero if it is less.
fn round_up(number: &BigRational) -> u64 {
    natural(&number.ceil().to_integer())
}

/// Rounded down, zero if it is less.
fn round_down(number: &BigRational) -> u64 {
    natural(&number.floor().to_integer())
}

fn natural(number: &BigInt) -> u64 {
    u64::try_from(number.max(&BigInt::ZERO)).expect("the schedules stay within 64 bits")
}
