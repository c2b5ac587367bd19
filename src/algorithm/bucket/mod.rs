//! The bucket: one exact implementation of the token bucket, the leaky bucket, GCRA and the leaky queue.
//!
//! # Representation
//!
//! With `limit / period` in lowest terms as `tokens / ticks` (a tick is a microsecond), a token takes `ticks / tokens`
//! ticks to refill. GCRA's theoretical arrival time (`tat`) is thus a fraction with the denominator `tokens`. The state
//! stores it as two integers, `tat = ticks - fraction / tokens` with `0 <= fraction < tokens`, so `ticks` is `tat`
//! rounded up. A cost is a span of the same form. So a charge is an addition, a comparison needs no multiplication, and
//! nothing is ever rounded: there is no drift, whatever the quota. Only the snapshot divides, when its numbers are
//! read.
//!
//! | word | |
//! |---|---|
//! | 0 | `ticks`: the first tick at which the bucket is full again |
//! | 1 | `fraction` |
//! | 2 | `tokens` and `ticks` of the quota that wrote the state, packed |
//! | 3 | the time of the last charge: the newest time that the state has seen |
//!
//! # Changes of quota
//!
//! The state carries the rate of the quota that wrote it. After a change of quota, usage is kept, counted in tokens.
//! From the last charge until the next one, usage drains at the faster of both rates, as the state does not record when
//! the quota changed. So a denial needs no write, its retry is exact, usage that drained under the old quota does not
//! come back, and a raised quota counts at once. The conversion rounds usage up, by less than the `1 / tokens` part of
//! a tick.

pub(super) mod bucket_types;
mod error;
mod gcra;
#[cfg(feature = "redis")]
mod lua;
mod names;
mod rate;
#[cfg(all(test, not(loom)))]
mod tests;

use std::time::Duration;

use super::{ChargeOptions, Start, Step};
use crate::clock::{MAX_PERIOD_MICROS, Timestamp, micros_floor};
use crate::decision::{LazySnapshot, LimitSnapshot};
use crate::error::Error;
use crate::quota::{MAX_LIMIT, Quota};

pub(crate) use self::error::BucketError;
pub use self::gcra::Gcra;
#[cfg(feature = "redis")]
pub(crate) use self::lua::SCRIPT;
pub use self::names::{LeakyBucket, TokenBucket};
use self::rate::{Rate, Span, Tat, saturating_u64};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    quota: Quota,
    rate: Rate,
    burst: u64,
    /// `ticks / tokens`: the span that a cost of one adds.
    interval: Span,
    /// The usage up to which a cost of one is allowed: `(burst - 1) * ticks / tokens`.
    tolerance: Span,
    /// The time from empty to full, rounded up to a tick.
    time_to_full: u64,
}

/// The fill of a bucket at a moment.
#[derive(Clone, Copy)]
struct Fill {
    /// The theoretical arrival time, not before `at`.
    tat: Tat,
    at: u64,
    /// The rate that `tat` is in terms of and that usage drains at: an old quota's if that rate is faster.
    rate: Rate,
}

impl Fill {
    /// Returns the wait until usage has drained to `tolerance`.
    #[inline]
    fn wait(&self, tolerance: Span) -> u64 {
        // tat - at <= tolerance, with both fractions on the right: ticks - at - tolerance.ticks <= (fraction +
        // tolerance.fraction) / tokens, and the fractions add up to less than two.
        let over = (self.tat.ticks - self.at).saturating_sub(tolerance.ticks);
        let carry = self.tat.fraction + tolerance.fraction >= self.rate.tokens;
        over.saturating_sub(u64::from(carry))
    }
}

impl Bucket {
    pub(crate) const fn new(quota: Quota, burst: u64) -> Result<Self, BucketError> {
        // A quota of zero has no burst: every cost exceeds the limit.
        let burst = if quota.limit() == 0 { 0 } else { burst };
        if burst == 0 && quota.limit() > 0 {
            return Err(BucketError::BurstZero);
        }
        if burst > MAX_LIMIT {
            return Err(BucketError::BurstTooLarge);
        }
        let tokens = if quota.limit() == 0 { 1 } else { quota.limit() };
        let Some(rate) = Rate::new(tokens, quota.period_micros()) else {
            return Err(BucketError::NotRepresentable);
        };
        let time_to_full = rate.span(burst).round_up();
        if time_to_full > MAX_PERIOD_MICROS {
            return Err(BucketError::FillsTooSlowly);
        }
        Ok(Self {
            quota,
            rate,
            burst,
            interval: rate.span(1),
            tolerance: rate.span(burst.saturating_sub(1)),
            time_to_full,
        })
    }

    pub(crate) fn try_new(quota: Quota, burst: u64) -> Result<Self, Error> {
        Self::new(quota, burst).map_err(|error| error.into_error(quota))
    }

    #[track_caller]
    pub(crate) const fn unwrap_or_panic(result: Result<Self, BucketError>) -> Self {
        match result {
            Ok(bucket) => bucket,
            Err(error) => panic!("{}", error.message()),
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

    /// Decides one request. With `queued`, an allowed request starts after all requests before it have drained.
    ///
    #[inline]
    pub(crate) fn decide(
        &self,
        state: &[u64; 4],
        now: Timestamp,
        options: ChargeOptions,
        queued: bool,
    ) -> Step<[u64; 4]> {
        let step = self.decide_in_line(state, now, options, queued);
        step.unwrap_or_else(|| self.decide_slow(state, now, options, queued))
    }

    /// Decides the common case: a cost of one, no delay, and a state that is idle or of this quota. Returns `None` in any
    /// other case.
    // In line, the decision takes 0.62 to 0.72 of the time: rows "hot key" and "1000 keys" of benches/figures.md.
    #[inline(always)]
    pub(crate) fn decide_in_line(
        &self,
        state: &[u64; 4],
        now: Timestamp,
        options: ChargeOptions,
        queued: bool,
    ) -> Option<Step<[u64; 4]>> {
        let &[ticks, fraction, rate, last_charged_at] = state;
        let (now, tokens) = (now.as_micros(), self.rate.tokens);
        let at = now.max(last_charged_at);
        // Further ahead than any charge can lead: the clock has stepped back, and `fill` drops the state.
        if options.cost != 1 || self.burst == 0 || at - now > self.time_to_full {
            return None;
        }
        // A queue schedules an idle key at once, whatever delay the caller accepts.
        let is_common = if queued { !options.is_forced() } else { options.is_immediate() };
        if !is_common {
            return None;
        }
        // As `Tat::plus`. Nothing saturates here.
        let charge = |ticks: u64, fraction: u64| {
            let borrow = fraction < self.interval.fraction;
            let ticks = ticks.wrapping_add(self.interval.ticks).wrapping_add(u64::from(borrow));
            let fraction = fraction.wrapping_sub(self.interval.fraction).wrapping_add(if borrow { tokens } else { 0 });
            Some(Step::Allow { next: [ticks, fraction, self.rate.packed, at], delay: 0 })
        };
        // Apart from the other case, so that the compiler knows a denied state to be of this quota: then its snapshot
        // is in line without a call. Row "hot key" of benches/figures.md.
        if ticks <= at {
            return charge(at, 0);
        }
        if queued || rate != self.rate.packed {
            return None;
        }
        let usage = ticks - at;
        // As in `Fill::wait`. Wrapping, because a damaged state may have any fraction (`algorithms: extremes`).
        let carry = u64::from(fraction.wrapping_add(self.tolerance.fraction) >= tokens);
        if usage <= self.tolerance.ticks + carry {
            return charge(ticks, fraction);
        }
        Some(Step::Deny { wait: usage - self.tolerance.ticks - carry + (at - now) })
    }

    /// Decides any request.
    #[inline(never)]
    fn decide_slow(&self, state: &[u64; 4], now: Timestamp, options: ChargeOptions, queued: bool) -> Step<[u64; 4]> {
        let fill = self.fill(state, now.as_micros());
        let cost = options.cost;
        let delay = match options.start {
            Start::After(delay) => micros_floor(delay),
            Start::Within(_) if cost > self.burst => return Step::Exceeds,
            Start::Within(max_delay) => {
                let (delay, wait) = if queued {
                    self.queued_delay(&fill, now, cost, max_delay)
                } else {
                    self.delay(&fill, now, cost, max_delay)
                };
                if wait > 0 {
                    return Step::Deny { wait };
                }
                delay
            }
        };
        let Fill { tat, at, .. } = self.convert_rate(fill);
        let cost = if cost == 1 { self.interval } else { self.rate.span(cost) };
        // The start may be after the time at which the bucket is full again, if another limit delays the request.
        let start = now.as_micros().saturating_add(delay);
        let tat = if tat.ticks < start { Tat { ticks: start, fraction: 0 } } else { tat };
        Step::Allow { next: self.state(tat.plus(cost, self.rate.tokens), at), delay }
    }

    /// Returns the delay of a request, and for how long it is denied if it may not wait for so long.
    fn delay(&self, fill: &Fill, now: Timestamp, cost: u64, max_delay: Option<Duration>) -> (u64, u64) {
        let wait = fill.wait(self.tolerance(fill, cost));
        if wait == 0 {
            return (0, 0);
        }
        // The clock lag, from `now` to `at`, must pass as well.
        let wait = wait + (fill.at - now.as_micros());
        let max_delay = max_delay.map_or(0, micros_floor);
        // After `wait` the request starts without a delay, whatever the horizon is.
        (wait, wait.saturating_sub(max_delay).max(self.beyond_horizon(fill, now, cost)).min(wait))
    }

    /// Returns the same as [`delay`](Self::delay) for a queue: a request starts after all requests before it have
    /// drained.
    fn queued_delay(&self, fill: &Fill, now: Timestamp, cost: u64, max_delay: Option<Duration>) -> (u64, u64) {
        let clock_lag = fill.at - now.as_micros();
        let capacity_after = match fill.wait(self.tolerance(fill, cost)) {
            0 => 0,
            wait => wait + clock_lag,
        };
        let (delay, beyond) = match fill.tat.ticks - fill.at {
            0 => (0, 0),
            delay => (delay + clock_lag, self.beyond_horizon(fill, now, cost)),
        };
        let max_delay = max_delay.map_or(u64::MAX, micros_floor);
        // A place must be free, the start near enough, and its end within the maximum period.
        (delay, capacity_after.max(delay.saturating_sub(max_delay)).max(beyond))
    }

    /// Returns the usage up to which a cost is allowed, in terms of the rate that the fill drains at.
    fn tolerance(&self, fill: &Fill, cost: u64) -> Span {
        if cost == 1 && fill.rate.packed == self.rate.packed {
            self.tolerance
        } else {
            fill.rate.span(self.burst - cost)
        }
    }

    /// Returns for how long no delayed start is scheduled: it would end beyond the maximum period.
    fn beyond_horizon(&self, fill: &Fill, now: Timestamp, cost: u64) -> u64 {
        let ends_after = (fill.tat.ticks - now.as_micros()).saturating_add(self.rate.span(cost).round_up());
        ends_after.saturating_sub(MAX_PERIOD_MICROS)
    }

    /// Sets `state` to the later arrival time.
    pub(crate) fn carry_over_debt(&self, state: &mut [u64; 4], from: &[u64; 4], now: Timestamp) {
        let [own, other] = [&*state, from].map(|state| self.convert_rate(self.fill(state, now.as_micros())));
        let at = own.at.max(other.at);
        // The fraction is subtracted, so the larger one is earlier.
        let order = |tat: Tat| (tat.ticks, std::cmp::Reverse(tat.fraction));
        let tat = if order(other.tat) > order(own.tat) { other.tat } else { own.tat };
        *state = self.state(tat, at);
    }

    // Part of each decision: rows "hot key" and "1000 keys" of benches/figures.md.
    #[inline(always)]
    pub(crate) fn snapshot(&self, state: &[u64; 4], now: Timestamp) -> LazySnapshot {
        let &[_, _, rate, last_charged_at] = state;
        let now_micros = now.as_micros();
        let at = now_micros.max(last_charged_at);
        if rate == self.rate.packed && at - now_micros <= self.time_to_full {
            return self.snapshot_of_own(state, now);
        }
        self.snapshot_slow(*state, now)
    }

    /// Returns the snapshot of a state of this quota, from which the clock has not stepped back too far.
    #[inline]
    pub(crate) fn snapshot_of_own(
        &self,
        &[ticks, fraction, _, last_charged_at]: &[u64; 4],
        now: Timestamp,
    ) -> LazySnapshot {
        let at = now.as_micros().max(last_charged_at);
        let words = [ticks.saturating_sub(at), fraction, self.rate.packed, self.burst, at - now.as_micros()];
        LazySnapshot::new(words, project)
    }

    #[cold]
    #[inline(never)]
    fn snapshot_slow(&self, state: [u64; 4], now: Timestamp) -> LazySnapshot {
        let Fill { tat, at, rate } = self.fill(&state, now.as_micros());
        let words = [tat.ticks - at, tat.fraction, rate.packed, self.burst, at - now.as_micros()];
        // The window is the present quota's, whatever rate usage drains at.
        LimitSnapshot { window: Some(Duration::from_micros(self.time_to_full)), ..project(&words) }.into()
    }

    /// Returns the fill at the effective time: now, or the newest time that the state has seen, if that is later and
    /// not further ahead than the time to full.
    fn fill(&self, &[ticks, fraction, rate, last_charged_at]: &[u64; 4], now: u64) -> Fill {
        let at = now.max(last_charged_at);
        // Even if the bucket is full: the next charge must be at a time that a later decision accepts.
        if at - now > self.time_to_full {
            return self.full_at(now);
        }
        if ticks <= at {
            return self.full_at(at);
        }
        let fill = Fill { tat: Tat { ticks, fraction }, at, rate: self.rate };
        if rate != self.rate.packed {
            return self.fill_under_old_quota(Fill { rate: Rate::unpack(rate), ..fill }, last_charged_at);
        }
        // No charge writes a fraction that is not below its denominator.
        Fill { tat: Tat { ticks, fraction: fraction.min(self.rate.tokens - 1) }, ..fill }
    }

    fn full_at(&self, at: u64) -> Fill {
        Fill { tat: Tat { ticks: at, fraction: 0 }, at, rate: self.rate }
    }

    /// Drains at the faster of both rates: at the old one from the state as it is, at the present one since the last
    /// charge.
    #[cold]
    fn fill_under_old_quota(&self, fill: Fill, last_charged_at: u64) -> Fill {
        let (old, at) = (fill.rate, fill.at);
        // No quota: the state is damaged.
        if old.tokens == 0 || old.ticks == 0 {
            return self.full_at(at);
        }
        let tat = Tat { fraction: fill.tat.fraction.min(old.tokens - 1), ..fill.tat };
        if old.is_faster_than(self.rate) {
            return Fill { tat, ..fill };
        }
        let tat = self.convert(tat, old, last_charged_at);
        if tat.ticks <= at { self.full_at(at) } else { Fill { tat, rate: self.rate, ..fill } }
    }

    /// Returns the fill in terms of this rate, which is no faster than the rate of the fill.
    fn convert_rate(&self, fill: Fill) -> Fill {
        if fill.rate.packed == self.rate.packed {
            return fill;
        }
        Fill { tat: self.convert(fill.tat, fill.rate, fill.at), rate: self.rate, ..fill }
    }

    fn state(&self, tat: Tat, at: u64) -> [u64; 4] {
        // An unbounded surcharge (of 2^64) ends after the maximum period.
        let Tat { ticks, fraction } = tat.min(at.saturating_add(MAX_PERIOD_MICROS));
        [ticks, fraction, self.rate.packed, at]
    }

    /// Converts usage at `at` under the rate `old`, counted in tokens, to an arrival time under this rate.
    ///
    /// `tat` is after `at`, and its fraction below `old.tokens`.
    #[cold]
    fn convert(&self, tat: Tat, old: Rate, at: u64) -> Tat {
        // Usage: (ticks - at - fraction / old.tokens) * old.tokens / old.ticks tokens, at most 2^106 / old.ticks.
        let usage = u128::from(tat.ticks - at) * u128::from(old.tokens) - u128::from(tat.fraction);
        let (tokens, rest) = (usage / u128::from(old.ticks), usage % u128::from(old.ticks));
        // In units of 1 / self.tokens tick, rounded up: tokens * ticks + rest * ticks / old.ticks.
        // `rest` is below `old.ticks`, and `Rate::new` bounds both ticks by 2^53, so their product fits.
        let ticks = u128::from(self.rate.ticks);
        let units = tokens.saturating_mul(ticks).saturating_add((rest * ticks).div_ceil(u128::from(old.ticks)));
        let unit = u128::from(self.rate.tokens);
        let whole = units.div_ceil(unit);
        let fraction = saturating_u64(whole.saturating_mul(unit).saturating_sub(units));
        Tat { ticks: at.saturating_add(saturating_u64(whole)), fraction }.min(at.saturating_add(MAX_PERIOD_MICROS))
    }
}

/// Computes the snapshot from `[usage, fraction, rate, burst, clock lag]`.
// In line, so that the compiler computes only the remaining where it compares several limits: row "three limits" of
// benches/figures.md.
#[inline(always)]
fn project(&[usage, fraction, rate, burst, clock_lag]: &[u64; 5]) -> LimitSnapshot {
    let rate = Rate::unpack(rate);
    let tokens = rate.tokens;
    let used = rate.tokens_used(usage, fraction);
    // The next token is available when one token less is used. If more than the burst is used, the next token is the
    // last one of the burst.
    let next = rate.span(used.min(burst).saturating_sub(1));
    let carry = fraction + next.fraction >= tokens;
    let next_token_after = usage.saturating_sub(next.ticks).saturating_sub(u64::from(carry));
    let add_clock_lag = |span: u64| Duration::from_micros(if span == 0 { 0 } else { span + clock_lag });
    LimitSnapshot {
        limit: burst,
        window: Some(Duration::from_micros(rate.span(burst).round_up())),
        remaining: burst.saturating_sub(used),
        reset: add_clock_lag(usage),
        next_token_after: add_clock_lag(next_token_after),
    }
}
