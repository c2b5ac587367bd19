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
//! | 4 | `floor`: the first tick that can follow the turns promised so far, never after `whole`; stale once it is past |
//!
//! # Turns and refunds
//!
//! A turn that was promised stays as promised, so it can't move up when somebody before it gives its charge back. What
//! departs at `t_1, t_2, ..` with costs `c_1, c_2, ..` makes an arrival time of the largest `t_j + c_j + c_(j+1) + ..`: to
//! take a charge away lessens what begins with it or before it, and nothing of what begins after it. The floor is that
//! largest sum over the turns that were promised, costs in ticks rounded up:
//!
//! - a charge for a later turn makes it `max(floor, turn) + cost`; one that passes at once leaves it;
//! - a refund takes its credit off `tat`, but not below the floor. If it was promised a turn and `turn + cost` reaches the
//!   floor, no other turn needs it so high (with another one behind or right before it the floor would be higher): it goes
//!   down to `turn` first, or for a part to `turn` and what the rest costs. (Not if a token takes less than two ticks: then
//!   ticks are too coarse to tell.)
//!
//! So a place in the middle of a line of strictly spaced turns is lost, and the last one goes to whoever asks next; with a
//! burst, a place anywhere makes up to a burst's room. As long as `tat` is no less than the sums above, a turn promised then
//! conforms whether it comes before or after those that were promised earlier.
//!
//! # A change of quota
//!
//! The writer's rate travels with the state. After a change of quota what is owed stays owed, counted in tokens, and from its
//! last charge until its next one a key's debt drains at the faster of both rates: nobody knows when between the two the quota
//! was changed, so a key is given the better of it. Then a refusal need not write, its retry is exact, what had drained
//! under the old quota does not come back, and a raised quota counts at once. The conversion rounds the debt up, by less than
//! the `1 / tokens` part of a tick.
//!
//! Under a slower quota the floor is stretched as the debt is, as what was promised costs more. Under a faster one it stays,
//! but no later than `whole`: a raised quota counts at once for those who ask, and not for those who wait already.

use std::time::Duration;

use super::Charge;
#[cfg(feature = "redis")]
use super::Kernel;
use crate::clock::{Timestamp, whole_micros};
use crate::decision::{Ask, Figures, Reading, Verdict};
use crate::error::Error;
use crate::quota::{LARGEST_LIMIT, LONGEST_MICROS, Quota};

pub(crate) type Words = [u64; 5];

#[cfg(feature = "redis")]
pub(crate) const KERNEL: Kernel =
    Kernel::new("bucket1", 6, include_str!("bucket.lua")).with_short_cut(include_str!("bucket_short.lua"));

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

/// The quota in lowest terms: `tokens` each `ticks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate {
    tokens: u64,
    ticks: u64,
    /// Both in one word, as states keep them.
    packed: u64,
}

/// `whole + part / tokens` ticks, `part < tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    whole: u64,
    part: u64,
}

/// `whole - part / tokens` ticks since the epoch, `part < tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tat {
    whole: u64,
    part: u64,
}

/// What a state comes to at a moment.
#[derive(Clone, Copy)]
struct Level {
    /// Not before `at`.
    tat: Tat,
    at: u64,
    /// What `tat` is in terms of, and what is owed drains at: a former quota's where that is faster.
    rate: Rate,
    /// The first tick that can follow the turns promised so far, or some time past.
    floor: u64,
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

/// What can't be: see `explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    BurstZero,
    BurstTooLarge,
    TooSlow,
    TooFine,
}

impl Bucket {
    pub(crate) const fn new(quota: Quota, burst: u64) -> Result<Self, Unfit> {
        if burst == 0 {
            return Err(Unfit::BurstZero);
        }
        if burst > LARGEST_LIMIT {
            return Err(Unfit::BurstTooLarge);
        }
        let Some(rate) = Rate::of(quota.limit(), quota.period_micros()) else { return Err(Unfit::TooFine) };
        let time_to_full = rate.span(burst).round_up();
        if time_to_full > LONGEST_MICROS {
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

    pub(crate) fn longest_reset(&self) -> Duration {
        Duration::from_micros(self.time_to_full)
    }

    #[inline(always)]
    pub(crate) fn peek(&self, state: &Words, now: Timestamp, ask: Ask) -> Verdict {
        if ask.cost > self.burst {
            return Verdict::Never;
        }
        let level = self.level(state, now.as_micros());
        let wait = level.wait(self.slack(&level, ask.cost));
        if wait == 0 {
            return Verdict::Allowed;
        }
        // What `at` lies ahead of `now` must pass as well.
        let wait = wait + (level.at - now.as_micros());
        match wait.saturating_sub(ask.patience(0)).max(self.beyond_memory(&level, now, ask.cost)) {
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
        ends_after.saturating_sub(LONGEST_MICROS)
    }

    /// As a queue decides: what there is room for waits until all that was let in before it has drained.
    #[inline(always)]
    pub(crate) fn peek_in_turn(&self, state: &Words, now: Timestamp, ask: Ask) -> Verdict {
        if ask.cost > self.burst {
            return Verdict::Never;
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
        match room_after.max(delay.saturating_sub(ask.patience(u64::MAX))).max(beyond) {
            0 if delay == 0 => Verdict::Allowed,
            0 => Verdict::AllowedAfter(Duration::from_micros(delay)),
            wait => Verdict::Denied { retry_after: Duration::from_micros(wait) },
        }
    }

    #[inline(always)]
    pub(crate) fn commit(&self, state: &mut Words, now: Timestamp, delay: Duration, cost: u64) {
        if cost == 0 {
            return;
        }
        let Level { tat, at, floor, .. } = self.at_own_rate(self.level(state, now.as_micros()));
        let cost = if cost == 1 { self.interval } else { self.rate.span(cost) };
        // The turn may come after the bucket is full again, if the store has other reasons to delay it.
        let turn = now.as_micros().saturating_add(whole_micros(delay));
        let tat = if tat.whole < turn { Tat { whole: turn, part: 0 } } else { tat };
        let floor = if delay.is_zero() { floor } else { floor.max(turn).saturating_add(cost.round_up()) };
        self.write(state, tat.plus(cost, self.rate.tokens), at, floor);
    }

    /// The parameters of the twin in Lua: see `bucket.lua`.
    #[cfg(feature = "redis")]
    pub(crate) fn params(&self, in_turn: bool, cost: u64, params: &mut Vec<u64>) {
        let spare = self.burst.checked_sub(cost);
        let slack = self.rate.span(spare.unwrap_or(0));
        let charge = self.rate.span(cost);
        let Rate { tokens, ticks, .. } = self.rate;
        // Below zero is what Lua takes for never; there are no negative parameters, so the spare is one more.
        let spare = spare.map_or(0, |spare| spare + 1);
        params.extend([tokens, ticks, slack.whole, slack.part, charge.whole, charge.part]);
        params.extend([self.time_to_full, spare, u64::from(in_turn)]);
    }

    /// Whether `bucket_short.lua` takes it.
    #[cfg(feature = "redis")]
    pub(crate) fn is_short(&self, ask: Ask) -> bool {
        ask.cost > 0 && ask.cost <= self.burst && ask.patience(0) == 0
    }

    #[cfg(feature = "redis")]
    pub(crate) fn state_of(numbers: &[u64]) -> Words {
        let &[whole, part, tokens, ticks, written_at, floor, ..] = numbers else { return [0; 5] };
        [whole, part, if tokens == 0 { 0 } else { Rate::pack(tokens, ticks) }, written_at, floor]
    }

    #[cfg(feature = "redis")]
    pub(crate) fn numbers_of(&[whole, part, rate, written_at, floor]: &Words, numbers: &mut Vec<u64>) {
        let Rate { tokens, ticks, .. } = Rate::unpack(rate);
        numbers.extend([whole, part, tokens, ticks, written_at, floor]);
    }

    pub(crate) fn give_back(&self, state: &mut Words, now: Timestamp, charge: Charge, amount: u64) {
        let level = self.level(state, now.as_micros());
        if level.tat.whole <= level.at {
            return;
        }
        let Level { tat, at, floor, .. } = self.at_own_rate(level);
        let amount = amount.min(charge.cost);
        // In first-in-first-out order a charge is what drains last before `until`: what is past has drained already, and
        // to credit it would lend its tokens twice.
        let left = Span { whole: charge.until.as_micros().saturating_sub(at), part: 0 };
        let span = self.rate.span(amount);
        let credited = tat.minus(if span.whole < left.whole { span } else { left }, self.rate.tokens);
        let ends = |cost| charge.turn.as_micros().saturating_add(self.rate.span(cost).round_up());
        // Of turns less than two ticks apart, none can be told from the next in whole ticks.
        if charge.turn > charge.at && self.interval.whole >= 2 && ends(charge.cost) >= floor {
            self.write(state, credited, at, floor.min(ends(charge.cost - amount)));
        } else {
            self.write(state, credited.not_before(floor, tat), at, floor);
        }
    }

    /// The later of both arrival times and of both floors.
    pub(crate) fn inherit(&self, state: &mut Words, from: &Words, now: Timestamp) {
        let [own, other] = [&*state, from].map(|state| self.at_own_rate(self.level(state, now.as_micros())));
        let at = own.at.max(other.at);
        let order = |tat: Tat| (tat.whole, std::cmp::Reverse(tat.part));
        let tat = if order(other.tat) > order(own.tat) { other.tat } else { own.tat };
        self.write(state, tat, at, own.floor.max(other.floor));
    }

    #[inline(always)]
    pub(crate) fn reading(&self, state: &Words, now: Timestamp) -> Reading {
        let Level { tat, at, rate, .. } = self.level(state, now.as_micros());
        let words = [tat.whole.saturating_sub(at), tat.part, rate.tokens, rate.ticks, self.burst, at - now.as_micros()];
        if rate.packed == self.rate.packed {
            return Reading::new(words, project);
        }
        // The window is the present quota's, whatever rate is drained at.
        Figures { window: Duration::from_micros(self.time_to_full), ..project(&words) }.into()
    }

    /// What is owed, and the moment to decide at: now, or the newest time that the state has seen, if that is later and not
    /// further ahead than the time to full.
    #[inline(always)]
    fn level(&self, &[whole, part, rate, written_at, floor]: &Words, now: u64) -> Level {
        let at = now.max(written_at);
        // Even if nothing is owed: what is charged next must be charged at a time that will be believed.
        if at - now > self.time_to_full {
            return self.empty(now);
        }
        if whole <= at {
            return self.empty(at);
        }
        let level = Level { tat: Tat { whole, part }, at, rate: self.rate, floor };
        if rate != self.rate.packed {
            return self.level_of_former_quota(Level { rate: Rate::unpack(rate), ..level }, written_at);
        }
        // A part beyond its denominator is no state that was ever written.
        Level { tat: Tat { whole, part: part.min(self.rate.tokens - 1) }, ..level }
    }

    #[inline(always)]
    fn empty(&self, at: u64) -> Level {
        Level { tat: Tat { whole: at, part: 0 }, at, rate: self.rate, floor: 0 }
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
        let carry_over = |tat| self.carry_over(tat, level.rate, level.at);
        let floor = Tat { whole: level.floor.max(level.at), part: 0 };
        Level { tat: carry_over(level.tat), floor: carry_over(floor).whole, rate: self.rate, ..level }
    }

    fn write(&self, state: &mut Words, tat: Tat, at: u64, floor: u64) {
        // A debt beyond all bounds (a penalty of 2^64) ends after the longest time that anything is remembered.
        let tat = tat.until(at.saturating_add(LONGEST_MICROS));
        *state = [tat.whole, tat.part, self.rate.packed, at, floor.min(tat.whole)];
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
        Tat { whole: at.saturating_add(narrow(whole)), part: narrow(part) }.until(at.saturating_add(LONGEST_MICROS))
    }
}

/// `remaining` and the times, from `[debt, part, tokens, ticks, burst, behind]`.
fn project(&[debt, part, tokens, ticks, burst, behind]: &[u64; 6]) -> Figures {
    let rate = Rate { tokens, ticks, packed: 0 };
    // Nearly always it fits into 64 bits, where dividing costs a tenth.
    let owed_tokens = match debt.checked_mul(tokens) {
        Some(owed) => owed.saturating_sub(part).div_ceil(ticks),
        None => narrow((u128::from(debt) * u128::from(tokens) - u128::from(part)).div_ceil(u128::from(ticks))),
    };
    // The next token is there when a token less is owed.
    let next = rate.span(owed_tokens.saturating_sub(1));
    let carry = part + next.part >= tokens;
    let more_after = debt.saturating_sub(next.whole).saturating_sub(u64::from(carry));
    // In debt beyond the burst, nothing is to be had before the burst's last token is there.
    let last = rate.span(burst - 1);
    let first_after = debt.saturating_sub(last.whole).saturating_sub(u64::from(part + last.part >= tokens));
    let passed_with_the_step = |span: u64| if span == 0 { 0 } else { span + behind };
    Figures {
        limit: burst,
        window: Duration::from_micros(rate.span(burst).round_up()),
        remaining: burst.saturating_sub(owed_tokens),
        reset: Duration::from_micros(passed_with_the_step(debt)),
        more_after: Duration::from_micros(passed_with_the_step(if owed_tokens > burst {
            first_after
        } else {
            more_after
        })),
    }
}

impl Rate {
    /// `None` where `tokens * ticks` in lowest terms is over 2^53: Redis computes in doubles, and a limit must not
    /// change its meaning with its store.
    const fn of(limit: u64, period: u64) -> Option<Self> {
        let (mut a, mut b) = (limit, period);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let (tokens, ticks) = (limit / a, period / a);
        match tokens.checked_mul(ticks) {
            Some(product) if product <= 1 << 53 => Some(Self { tokens, ticks, packed: Self::pack(tokens, ticks) }),
            _ => None,
        }
    }

    fn is_faster_than(self, other: Self) -> bool {
        u128::from(self.tokens) * u128::from(other.ticks) > u128::from(other.tokens) * u128::from(self.ticks)
    }

    /// How long `count` tokens take to come back.
    #[allow(clippy::cast_possible_truncation, reason = "the remainder is below `tokens`, and the quotient is capped")]
    const fn span(self, count: u64) -> Span {
        let tokens = self.tokens;
        if let Some(product) = count.checked_mul(self.ticks) {
            return Span { whole: product / tokens, part: product % tokens };
        }
        let product = count as u128 * self.ticks as u128;
        let whole = product / tokens as u128;
        if whole > u64::MAX as u128 / 4 {
            return Span { whole: u64::MAX / 4, part: 0 };
        }
        Span { whole: whole as u64, part: (product % tokens as u128) as u64 }
    }

    /// In one word: both numbers together have at most 55 bits, and 6 say where one ends.
    const fn pack(tokens: u64, ticks: u64) -> u64 {
        let bits = u64::BITS - tokens.leading_zeros();
        (bits as u64) << 58 | ticks << bits | tokens
    }

    const fn unpack(word: u64) -> Self {
        let bits = word >> 58;
        let low = word & ((1 << 58) - 1);
        Self { tokens: low & ((1 << bits) - 1), ticks: low >> bits, packed: word }
    }
}

impl Span {
    const fn round_up(self) -> u64 {
        self.whole + (self.part > 0) as u64
    }
}

impl Tat {
    /// Not later than `latest`.
    #[inline(always)]
    fn until(self, latest: u64) -> Self {
        if self.whole > latest { Self { whole: latest, part: 0 } } else { self }
    }

    /// Not earlier than `earliest`, and not later than it was `before`.
    fn not_before(self, earliest: u64, before: Self) -> Self {
        if self.whole > earliest || (self.whole == earliest && self.part == 0) {
            self
        } else if earliest < before.whole {
            Self { whole: earliest, part: 0 }
        } else {
            before
        }
    }

    #[inline(always)]
    fn plus(self, span: Span, tokens: u64) -> Self {
        let whole = self.whole.saturating_add(span.whole);
        if self.part >= span.part {
            Self { whole, part: self.part - span.part }
        } else {
            Self { whole: whole.saturating_add(1), part: self.part + tokens - span.part }
        }
    }

    fn minus(self, span: Span, tokens: u64) -> Self {
        let part = self.part + span.part;
        let whole = self.whole.saturating_sub(span.whole);
        if part < tokens { Self { whole, part } } else { Self { whole: whole.saturating_sub(1), part: part - tokens } }
    }
}

impl Unfit {
    const fn message(self) -> &'static str {
        match self {
            Self::BurstZero => "a burst must be at least 1: a limiter without room for one request refuses them all",
            Self::BurstTooLarge => "a burst must be at most 2^53 (9007199254740992)",
            Self::TooSlow => "a bucket must fill within 200 years: choose a smaller burst or a larger quota",
            Self::TooFine => {
                "this quota can't be counted exactly: in lowest terms limit * period in microseconds must be at most \
                 2^53; `try_new` names the nearest quota that fits"
            }
        }
    }

    /// The error, with what would be right.
    pub(crate) fn explain(self, quota: Quota) -> Error {
        match self {
            Self::TooSlow => {
                let most = u128::from(LONGEST_MICROS) * u128::from(quota.limit()) / u128::from(quota.period_micros());
                Error::config(format!("{}: with {quota} a burst of at most {most}", self.message()))
            }
            Self::TooFine => Error::config(format!(
                "{quota} can't be counted exactly: in lowest terms limit * period in microseconds must be at most 2^53; \
                 the nearest quota that fits is {}",
                nearest_fit(quota),
            )),
            Self::BurstZero | Self::BurstTooLarge => Error::config(self.message()),
        }
    }
}

/// The quota with the nearest limit that [`Rate::of`] takes.
fn nearest_fit(quota: Quota) -> Quota {
    let (limit, period) = (quota.limit(), quota.period_micros());
    let fits = |limit: &u64| Quota::try_new(*limit, quota.period()).is_ok() && Rate::of(*limit, period).is_some();
    // Common periods have so many divisors that a fit is near. Where none is, the largest product that fits is.
    let near = (1..500_000).flat_map(|step| [limit.saturating_sub(step), limit.saturating_add(step)]).find(fits);
    let limit = near.or_else(|| Some(LARGEST_LIMIT / period).filter(fits)).unwrap_or(1);
    Quota::new(limit, quota.period())
}

fn narrow(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}
