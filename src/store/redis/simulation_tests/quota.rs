//! The closed forms of windows, logs, token buckets and requests in flight, as the documentation states them, in whole numbers.

use super::wire::to_f64;

/// A quota: so many units in a period of so many microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    pub(crate) units: u64,
    pub(crate) period: u64,
    pub(crate) form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    FixedWindow,
    TokenBucket {
        burst: u64,
    },
    /// So many blocks of a period, each of which counts for one block longer.
    SlidingWindow {
        blocks: u64,
    },
    SlidingLog,
    /// So many units at once. Nothing is charged.
    InFlight,
}

/// What is used of a quota.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    /// The time of the last charge, in microseconds.
    at: u64,
    /// A window: the used units. A bucket: the missing tokens at the last charge, in parts of which a token has as many
    /// as the period has microseconds. So as many parts refill in a microsecond as the quota has units.
    used: u64,
    /// The start and the end of the window.
    window: (u64, u64),
    /// Of a sliding window or a log: the times and the costs that count at the last charge.
    hits: Vec<(u64, u64)>,
}

impl Quota {
    /// The maximum that is used at once.
    pub(crate) fn capacity(&self) -> u64 {
        match self.form {
            Form::TokenBucket { burst } => burst,
            _ => self.units,
        }
    }

    /// The number of parameters that the client sends for a cost.
    pub(crate) fn parameter_count(&self) -> usize {
        self.parameters(0).len()
    }

    /// The parameters for a cost: see the algorithms' Lua implementations.
    pub(crate) fn parameters(&self, cost: u64) -> Vec<u64> {
        let burst = match self.form {
            Form::TokenBucket { burst } => burst,
            Form::FixedWindow => return vec![self.units, self.period, cost, 0, 0, 0, 0, 0],
            Form::SlidingWindow { blocks } => return vec![self.units, self.period / blocks, blocks, cost, 0],
            Form::SlidingLog => return vec![self.units, self.period, cost],
            Form::InFlight => return vec![self.units, cost],
        };
        let (tokens, ticks) = self.lowest_terms();
        let spare = burst.checked_sub(cost);
        let (tolerance, charge) = (spare.unwrap_or(0) * ticks, cost * ticks);
        let time_to_full = (burst * ticks).div_ceil(tokens);
        vec![
            tokens,
            ticks,
            tolerance / tokens,
            tolerance % tokens,
            charge / tokens,
            charge % tokens,
            time_to_full,
            spare.map_or(0, |spare| spare + 1),
            0,
        ]
    }

    /// Until when a hit of a sliding window or a log counts.
    fn counts_until(&self, at: u64) -> u64 {
        match self.form {
            Form::SlidingWindow { blocks } => {
                let width = self.period / blocks;
                (at / width + blocks + 1) * width
            }
            _ => at + self.period,
        }
    }

    fn lowest_terms(&self) -> (u64, u64) {
        let (mut divisor, mut rest) = (self.units, self.period);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        (self.units / divisor, self.period / divisor)
    }
}

/// The admissions on a key, at the times at which they were made.
#[derive(Default)]
pub(super) struct Admissions {
    usage: Usage,
    /// Times and costs.
    recent: Vec<(u64, u64)>,
}

impl Admissions {
    /// Adds an admission, which is not before the others. Returns whether they then exceed the documented bound: the
    /// closed form of a bucket, the limit in a period of sliding windows and logs, and twice the limit in one of fixed
    /// windows.
    pub(super) fn add(&mut self, quota: &Quota, at: u64, cost: u64) -> bool {
        if let Form::TokenBucket { burst } = quota.form {
            self.usage.charge(quota, at, cost);
            return self.usage.used > burst * quota.period;
        }
        self.recent.retain(|(time, _)| time + quota.period > at);
        self.recent.push((at, cost));
        let most = if quota.form == Form::FixedWindow { 2 * quota.units } else { quota.units };
        self.recent.iter().map(|recent| recent.1).sum::<u64>() > most
    }
}

impl Usage {
    /// The used units of a window, or the missing parts of tokens of a bucket.
    fn used_at(&self, quota: &Quota, now: u64) -> u64 {
        match quota.form {
            Form::FixedWindow if now < self.window.1 => self.used,
            Form::FixedWindow | Form::InFlight => 0,
            Form::TokenBucket { .. } => self.used.saturating_sub(quota.units * now.saturating_sub(self.at)),
            Form::SlidingWindow { .. } | Form::SlidingLog => self.counted(quota, now).map(|hit| hit.1).sum(),
        }
    }

    /// The hits of a sliding window or a log that count.
    fn counted(&self, quota: &Quota, now: u64) -> impl Iterator<Item = &(u64, u64)> {
        self.hits.iter().filter(move |hit| quota.counts_until(hit.0) > now)
    }

    /// When so much of a sliding window or a log does not count any more, which is not more than counts.
    fn freed_at(&self, quota: &Quota, now: u64, amount: u64) -> u64 {
        let mut freed = 0;
        let last = self.counted(quota, now).find(|hit| {
            freed += hit.1;
            freed >= amount
        });
        quota.counts_until(last.expect("as much counts").0)
    }

    pub(super) fn charge(&mut self, quota: &Quota, now: u64, cost: u64) {
        self.used = self.used_at(quota, now);
        match quota.form {
            Form::FixedWindow => {
                if now >= self.window.1 {
                    self.window = (now, now + quota.period);
                }
                self.used += cost;
            }
            Form::TokenBucket { .. } => self.used += cost * quota.period,
            Form::SlidingWindow { .. } | Form::SlidingLog => {
                self.hits.retain(|hit| quota.counts_until(hit.0) > now);
                self.hits.extend((cost > 0).then_some((now, cost)));
            }
            Form::InFlight => {}
        }
        self.at = self.at.max(now);
    }

    /// Returns 0 if a cost is allowed beside the held ones, -1 if it never is, otherwise the wait in microseconds.
    pub(super) fn decide(&self, quota: &Quota, now: u64, held: u64, cost: u64) -> i64 {
        if cost > quota.capacity() {
            return -1;
        }
        if quota.form == Form::InFlight {
            return if held + cost > quota.units { 1_000_000 } else { 0 };
        }
        let mut usage = self.clone();
        if held > 0 {
            usage.charge(quota, now, held);
        }
        let used = usage.used_at(quota, now);
        let wait = match quota.form {
            Form::FixedWindow if used + cost > quota.units => usage.window.1 - now,
            Form::SlidingWindow { .. } | Form::SlidingLog if used + cost > quota.units => {
                usage.freed_at(quota, now, used + cost - quota.units) - now
            }
            Form::FixedWindow | Form::SlidingWindow { .. } | Form::SlidingLog | Form::InFlight => 0,
            Form::TokenBucket { burst } => {
                (used + cost * quota.period).saturating_sub(burst * quota.period).div_ceil(quota.units)
            }
        };
        i64::try_from(wait).expect("a short time")
    }

    /// Returns the units that remain beside the held ones.
    pub(super) fn remaining(&self, quota: &Quota, now: u64, held: u64) -> u64 {
        let used = self.used_at(quota, now);
        let is_bucket = matches!(quota.form, Form::TokenBucket { .. });
        let used = if is_bucket { used.div_ceil(quota.period) } else { used };
        quota.capacity().saturating_sub(used + held)
    }

    /// The figures that the script sends of a log: the used units, when the key is idle, and when the next one is free.
    pub(super) fn view(&self, quota: &Quota, now: u64, held: u64) -> Option<[u64; 3]> {
        if quota.form != Form::SlidingLog {
            return None;
        }
        let used = self.used_at(quota, now);
        let all_idle = self.hits.last().map_or(now, |hit| quota.counts_until(hit.0));
        let (idle_at, later) = if held > 0 { (now + quota.period, now + quota.period) } else { (all_idle, now) };
        if used + held == 0 {
            return Some([0, now, now]);
        }
        let amount = (used + held).saturating_sub(quota.units.saturating_sub(1)).max(1);
        let next = if amount > used { later } else { self.freed_at(quota, now, amount) };
        Some([used + held, idle_at, next])
    }

    /// The words that the Lua implementation stores, and the key's expiry. A log is no value.
    pub(super) fn pack(&self, quota: &Quota) -> Vec<u8> {
        let end = self.window.1;
        let words = match quota.form {
            Form::FixedWindow => vec![end, self.used, self.at, self.window.0, 0, end],
            Form::SlidingWindow { .. } if self.hits.is_empty() => vec![0; 8],
            Form::SlidingWindow { blocks } => {
                let (width, kept) = (quota.period / blocks, blocks + 1);
                let newest = self.at / width;
                let first_at = self.hits.iter().map(|hit| hit.0).find(|at| at / width == newest).unwrap_or(0);
                let idle_at = quota.counts_until(self.at);
                let count = |slot| self.hits.iter().filter(|hit| hit.0 / width % kept == slot).map(|hit| hit.1).sum();
                let words = [idle_at, newest, self.at, width, kept, first_at, 0].into_iter();
                words.chain((0..kept).map(count)).chain([idle_at]).collect()
            }
            Form::SlidingLog => Vec::new(),
            Form::InFlight => vec![0, 0],
            Form::TokenBucket { .. } => {
                let (tokens, ticks) = quota.lowest_terms();
                let span = self.used.div_ceil(quota.units);
                // The span is rounded up, and the fraction is the difference.
                let fraction = (span * quota.units - self.used) / (quota.units / tokens);
                vec![self.at + span, mistake!(FractionIsLost, 0, fraction), tokens, ticks, self.at, self.at + span]
            }
        };
        words.into_iter().map(|word| to_f64(word).to_le_bytes()).collect::<Vec<_>>().concat()
    }
}
