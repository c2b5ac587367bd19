//! The bucket, exact: the one kernel behind the token bucket, the leaky bucket and GCRA.
//!
//! # The representation
//!
//! With `limit / period` in lowest terms as `tokens / ticks` (a tick is a microsecond), a token takes `ticks / tokens`
//! ticks to come back. GCRA's theoretical arrival time (`tat`) is thus a fraction with the denominator `tokens`; it is
//! kept as two integers, `tat = whole - part / tokens` with `0 <= part < tokens`, so `whole` is `tat` rounded up. To
//! charge a cost adds a span of the same form, to compare two of them needs no multiplication, and nothing is ever
//! rounded: there is no drift, whatever the quota. Only `remaining` divides, when it is asked for.
//!
//! | word | |
//! |---|---|
//! | 0 | `whole`: the first tick at which the bucket is full again |
//! | 1 | `part` |
//! | 2 | `tokens` and `ticks` of the quota that wrote the state, packed |
//! | 3 | the time of the last charge: the newest time that the state has seen |
//!
//! # A change of quota
//!
//! The writer's rate travels with the state. After a change of quota what is owed stays owed, counted in tokens, and from its
//! last charge until its next one a key's debt drains at the faster of both rates: nobody knows when between the two the quota
//! was changed, so a key is given the better of it. Then a refusal need not write, its retry is exact, what had drained
//! under the old quota does not come back, and a raised quota counts at once. The conversion rounds the debt up, by less than
//! the `1 / tokens` part of a tick.

mod error;
mod gcra;
mod leaky_bucket;
#[cfg(feature = "redis")]
mod lua;
mod rate;
mod token_bucket;
pub(super) mod types;

use std::time::Duration;

use super::AtOnce;
use crate::clock::{MAX_PERIOD_MICROS, Timestamp, micros_floor};
use crate::decision::{AcquireOptions, LazySnapshot, LimitSnapshot, Verdict};
use crate::quota::{MAX_LIMIT, Quota};

pub(crate) use self::error::Unfit;
pub use self::gcra::Gcra;
pub use self::leaky_bucket::LeakyBucket;
#[cfg(feature = "redis")]
pub(crate) use self::lua::SCRIPT;
use self::rate::{Rate, Span, Tat, narrow};
pub use self::token_bucket::TokenBucket;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    quota: Quota,
    rate: Rate,
    burst: u64,
    /// `ticks / tokens`: what a cost of one adds.
    interval: Span,
    /// The debt up to which a cost of one is allowed: `(burst - 1) * ticks / tokens`.
    slack: Span,
    /// From empty to full, rounded up to a tick.
    time_to_full: u64,
}

/// What a state comes to at a moment.
#[derive(Clone, Copy)]
struct Level {
    /// Not before `at`.
    tat: Tat,
    at: u64,
    /// What `tat` is in terms of, and what is owed drains at: a former quota's where that is faster.
    rate: Rate,
}

impl Level {
    /// The wait until the debt is down to `slack`.
    #[inline(always)]
    fn wait(&self, slack: Span) -> u64 {
        // tat - at <= slack, with both sides' parts on the right: whole - at - slack.whole <= (part + slack.part) / tokens,
        // and the parts add up to less than two.
        let over = (self.tat.whole - self.at).saturating_sub(slack.whole);
        let carry = self.tat.part + slack.part >= self.rate.tokens;
        over.saturating_sub(u64::from(carry))
    }
}

impl Bucket {
    pub(crate) const fn new(quota: Quota, burst: u64) -> Result<Self, Unfit> {
        if burst == 0 {
            return Err(Unfit::BurstZero);
        }
        if burst > MAX_LIMIT {
            return Err(Unfit::BurstTooLarge);
        }
        let Some(rate) = Rate::of(quota.limit(), quota.period_micros()) else { return Err(Unfit::TooFine) };
        let time_to_full = rate.span(burst).round_up();
        if time_to_full > MAX_PERIOD_MICROS {
            return Err(Unfit::TooSlow);
        }
        Ok(Self { quota, rate, burst, interval: rate.span(1), slack: rate.span(burst - 1), time_to_full })
    }

    #[track_caller]
    pub(crate) const fn expect(result: Result<Self, Unfit>) -> Self {
        match result {
            Ok(bucket) => bucket,
            Err(unfit) => panic!("{}", unfit.message()),
        }
    }

    pub(crate) const fn quota(&self) -> Quota {
        self.quota
    }

    pub(crate) const fn burst(&self) -> u64 {
        self.burst
    }

    pub(crate) fn max_reset(&self) -> Duration {
        Duration::from_micros(self.time_to_full)
    }

    #[inline(always)]
    pub(crate) fn peek(&self, state: &[u64; 4], now: Timestamp, ask: AcquireOptions) -> Verdict {
        if ask.cost > self.burst {
            return Verdict::ExceedsLimit;
        }
        let level = self.level(state, now.as_micros());
        let wait = level.wait(self.slack(&level, ask.cost));
        if wait == 0 {
            return Verdict::Allowed;
        }
        // What `at` lies ahead of `now` must pass as well.
        let wait = wait + (level.at - now.as_micros());
        match wait.saturating_sub(ask.max_delay_micros_or(0)).max(self.beyond_memory(&level, now, ask.cost)) {
            0 => Verdict::AllowedAfter(Duration::from_micros(wait)),
            over => Verdict::Denied { retry_after: Duration::from_micros(over) },
        }
    }

    /// The debt up to which a cost is allowed, in terms of the rate that the level drains at.
    #[inline(always)]
    fn slack(&self, level: &Level, cost: u64) -> Span {
        if cost == 1 && level.rate.packed == self.rate.packed { self.slack } else { level.rate.span(self.burst - cost) }
    }

    /// For how long a later turn can't be promised, as it would end after the longest time that is remembered.
    #[cold]
    fn beyond_memory(&self, level: &Level, now: Timestamp, cost: u64) -> u64 {
        let ends_after = (level.tat.whole - now.as_micros()).saturating_add(self.rate.span(cost).round_up());
        ends_after.saturating_sub(MAX_PERIOD_MICROS)
    }

    /// A cost of one on a state of this quota, for which nobody waits: peek and commit as they are, with all that can't be left
    /// out.
    #[inline(always)]
    pub(crate) fn try_at_once(&self, state: &[u64; 4], now: Timestamp, ask: AcquireOptions) -> AtOnce<[u64; 4]> {
        let &[whole, part, rate, written_at] = state;
        let (now, tokens) = (now.as_micros(), self.rate.tokens);
        let at = now.max(written_at);
        let is_common = rate == self.rate.packed && at - now <= self.time_to_full;
        let waits = ask.max_delay.is_some_and(|longest| !longest.is_zero());
        if !is_common || ask.cost != 1 || waits {
            return AtOnce::Unsaid;
        }
        let (whole, part) = if whole <= at { (at, 0) } else { (whole, part) };
        let debt = whole - at;
        let carry = u64::from(part + self.slack.part >= tokens);
        if debt <= self.slack.whole + carry {
            // As `Tat::plus`; there is nothing to saturate.
            let borrow = part < self.interval.part;
            let whole = whole.wrapping_add(self.interval.whole).wrapping_add(u64::from(borrow));
            let part = part.wrapping_sub(self.interval.part).wrapping_add(if borrow { tokens } else { 0 });
            return AtOnce::Charged([whole, part, rate, at]);
        }
        if debt.saturating_add(at - now).saturating_add(self.interval.whole) >= MAX_PERIOD_MICROS {
            return AtOnce::Unsaid;
        }
        AtOnce::Denied(debt - self.slack.whole - carry + (at - now))
    }

    /// As good as new, in this quota's rate.
    #[inline(always)]
    pub(crate) fn new_state(&self) -> [u64; 4] {
        [0, 0, self.rate.packed, 0]
    }

    /// The figures of a state that `try_at_once` has charged or denied.
    #[inline(always)]
    pub(crate) fn reading_at_once(&self, state: &[u64; 4], now: Timestamp) -> LazySnapshot {
        let &[whole, part, rate, written_at] = state;
        let at = now.as_micros().max(written_at);
        LazySnapshot::new([whole.wrapping_sub(at), part, rate, self.burst, at - now.as_micros()], project)
    }

    /// What remains after a charge.
    #[inline(always)]
    pub(crate) fn remaining(&self, &[whole, part, _, written_at]: &[u64; 4]) -> u64 {
        self.burst.saturating_sub(self.rate.owed(whole - written_at, part))
    }

    /// As a queue decides: what there is room for waits until all that was let in before it has drained.
    #[inline(always)]
    pub(crate) fn peek_in_turn(&self, state: &[u64; 4], now: Timestamp, ask: AcquireOptions) -> Verdict {
        if ask.cost > self.burst {
            return Verdict::ExceedsLimit;
        }
        let level = self.level(state, now.as_micros());
        let behind = level.at - now.as_micros();
        let room_after = match level.wait(self.slack(&level, ask.cost)) {
            0 => 0,
            wait => wait + behind,
        };
        let (delay, beyond) = match level.tat.whole - level.at {
            0 => (0, 0),
            delay => (delay + behind, self.beyond_memory(&level, now, ask.cost)),
        };
        match room_after.max(delay.saturating_sub(ask.max_delay_micros_or(u64::MAX))).max(beyond) {
            0 if delay == 0 => Verdict::Allowed,
            0 => Verdict::AllowedAfter(Duration::from_micros(delay)),
            wait => Verdict::Denied { retry_after: Duration::from_micros(wait) },
        }
    }

    #[inline(always)]
    pub(crate) fn charge(&self, state: &mut [u64; 4], now: Timestamp, delay: Duration, cost: u64) {
        if cost == 0 {
            return;
        }
        let Level { tat, at, .. } = self.at_own_rate(self.level(state, now.as_micros()));
        let cost = if cost == 1 { self.interval } else { self.rate.span(cost) };
        // The turn may come after the bucket is full again, if the store has other reasons to delay it.
        let turn = now.as_micros().saturating_add(micros_floor(delay));
        let tat = if tat.whole < turn { Tat { whole: turn, part: 0 } } else { tat };
        self.write(state, tat.plus(cost, self.rate.tokens), at);
    }

    /// The later of both arrival times.
    pub(crate) fn carry_over_debt(&self, state: &mut [u64; 4], from: &[u64; 4], now: Timestamp) {
        let [own, other] = [&*state, from].map(|state| self.at_own_rate(self.level(state, now.as_micros())));
        let at = own.at.max(other.at);
        let order = |tat: Tat| (tat.whole, std::cmp::Reverse(tat.part));
        let tat = if order(other.tat) > order(own.tat) { other.tat } else { own.tat };
        self.write(state, tat, at);
    }

    #[inline(always)]
    pub(crate) fn snapshot(&self, state: &[u64; 4], now: Timestamp) -> LazySnapshot {
        let &[whole, part, rate, written_at] = state;
        let behind = written_at.saturating_sub(now.as_micros());
        if rate == self.rate.packed && behind <= self.time_to_full {
            let debt = whole.saturating_sub(now.as_micros() + behind);
            return LazySnapshot::new([debt, part, rate, self.burst, behind], project);
        }
        self.reading_at_length(*state, now)
    }

    #[inline(never)]
    fn reading_at_length(&self, state: [u64; 4], now: Timestamp) -> LazySnapshot {
        let Level { tat, at, rate, .. } = self.level(&state, now.as_micros());
        let words = [tat.whole.saturating_sub(at), tat.part, rate.packed, self.burst, at - now.as_micros()];
        if rate.packed == self.rate.packed {
            return LazySnapshot::new(words, project);
        }
        // The window is the present quota's, whatever rate is drained at.
        LimitSnapshot { window: Duration::from_micros(self.time_to_full), ..project(&words) }.into()
    }

    /// What is owed, and the moment to decide at: now, or the newest time that the state has seen, if that is later and not
    /// further ahead than the time to full.
    #[inline(always)]
    fn level(&self, &[whole, part, rate, written_at]: &[u64; 4], now: u64) -> Level {
        let at = now.max(written_at);
        // Even if nothing is owed: what is charged next must be charged at a time that will be believed.
        if at - now > self.time_to_full {
            return self.empty(now);
        }
        if whole <= at {
            return self.empty(at);
        }
        let level = Level { tat: Tat { whole, part }, at, rate: self.rate };
        if rate != self.rate.packed {
            return self.level_of_former_quota(Level { rate: Rate::unpack(rate), ..level }, written_at);
        }
        // A part beyond its denominator is no state that was ever written.
        Level { tat: Tat { whole, part: part.min(self.rate.tokens - 1) }, ..level }
    }

    #[inline(always)]
    fn empty(&self, at: u64) -> Level {
        Level { tat: Tat { whole: at, part: 0 }, at, rate: self.rate }
    }

    /// The faster of both rates drains: the former one from the state as it is, the present one since the last charge.
    #[cold]
    fn level_of_former_quota(&self, level: Level, written_at: u64) -> Level {
        let (former, at) = (level.rate, level.at);
        if former.tokens == 0 || former.ticks == 0 {
            return self.empty(at);
        }
        let tat = Tat { part: level.tat.part.min(former.tokens - 1), ..level.tat };
        if former.is_faster_than(self.rate) {
            return Level { tat, ..level };
        }
        let tat = self.carry_over(tat, former, written_at);
        if tat.whole <= at { self.empty(at) } else { Level { tat, rate: self.rate, ..level } }
    }

    /// The level in terms of this rate, which is no faster than the one it drained at.
    #[inline(always)]
    fn at_own_rate(&self, level: Level) -> Level {
        if level.rate.packed == self.rate.packed {
            return level;
        }
        Level { tat: self.carry_over(level.tat, level.rate, level.at), rate: self.rate, ..level }
    }

    fn write(&self, state: &mut [u64; 4], tat: Tat, at: u64) {
        // A debt beyond all bounds (a penalty of 2^64) ends after the longest time that anything is remembered.
        let tat = tat.until(at.saturating_add(MAX_PERIOD_MICROS));
        let Tat { whole, part } = tat;
        *state = [whole, part, self.rate.packed, at];
    }

    /// What is owed at `at` under the rate `old`, counted in tokens, as an arrival time under this rate.
    #[cold]
    fn carry_over(&self, tat: Tat, old: Rate, at: u64) -> Tat {
        if old.tokens == 0 || old.ticks == 0 {
            return Tat { whole: at, part: 0 };
        }
        // Owed: (whole - at - part / old.tokens) * old.tokens / old.ticks tokens, at most 2^106 / old.ticks.
        let owed = u128::from(tat.whole - at) * u128::from(old.tokens);
        let owed = owed.saturating_sub(u128::from(tat.part.min(old.tokens - 1)));
        let (tokens, rest) = (owed / u128::from(old.ticks), owed % u128::from(old.ticks));
        // In units of 1 / self.tokens tick, rounded up: tokens * ticks + rest * ticks / old.ticks.
        let ticks = u128::from(self.rate.ticks);
        let units = tokens.saturating_mul(ticks).saturating_add((rest * ticks).div_ceil(u128::from(old.ticks)));
        let unit = u128::from(self.rate.tokens);
        let whole = units.div_ceil(unit);
        let part = whole.saturating_mul(unit).saturating_sub(units);
        Tat { whole: at.saturating_add(narrow(whole)), part: narrow(part) }.until(at.saturating_add(MAX_PERIOD_MICROS))
    }
}

/// `remaining` and the times, from `[debt, part, rate, burst, behind]`.
fn project(&[debt, part, rate, burst, behind]: &[u64; 5]) -> LimitSnapshot {
    let rate = Rate::unpack(rate);
    let tokens = rate.tokens;
    let owed_tokens = rate.owed(debt, part);
    // The next token is there when a token less is owed.
    let next = rate.span(owed_tokens.saturating_sub(1));
    let carry = part + next.part >= tokens;
    let next_token_after = debt.saturating_sub(next.whole).saturating_sub(u64::from(carry));
    // In debt beyond the burst, nothing is to be had before the burst's last token is there.
    let last = rate.span(burst - 1);
    let first_after = debt.saturating_sub(last.whole).saturating_sub(u64::from(part + last.part >= tokens));
    let passed_with_the_step = |span: u64| if span == 0 { 0 } else { span + behind };
    LimitSnapshot {
        limit: burst,
        window: Duration::from_micros(rate.span(burst).round_up()),
        remaining: burst.saturating_sub(owed_tokens),
        reset: Duration::from_micros(passed_with_the_step(debt)),
        next_token_after: Duration::from_micros(passed_with_the_step(if owed_tokens > burst {
            first_after
        } else {
            next_token_after
        })),
    }
}
