use std::collections::VecDeque;
use std::time::Duration;

use super::{Algorithm, ChargeOptions, HitLog, HitLogEdit, KeptFor, Reach, ShareCapacity, ShareFamily, Start, Step};
use crate::clock::{Timestamp, micros_floor};
use crate::decision::{LazySnapshot, Verdict};
use crate::error::Error;
use crate::quota::Quota;

/// An exact sliding window, which stores the time of every hit.
///
/// ![Decisions with a quota of ten in ten seconds, on four patterns of traffic][picture-sliding-log]
///
#[doc = include_str!("../../docs/pictures/sliding-log.md")]
///
/// In any window of one period at most `limit` are admitted, exactly. No request within that bound is denied: a limit
/// of five in five seconds never denies one request per second.
///
/// - **Closed form**: with `used`, the sum of the weights of the last period's hits, admit if `used + cost <= limit`.
///   `retry_after` is the time until enough of the oldest hits are one period old; `reset` is the time until the
///   newest hit is. A hit counts until exactly one period after it.
/// - **State**: 16 bytes per hit on the heap, at most `limit` hits; hits in the same microsecond share an entry. Of a
///   usage above the limit, the oldest hits count with the hit after them. A present key of another algorithm allocates
///   only if it has fixed windows of several periods.
///   [`MemoryBuilder::max_heap_bytes`](crate::MemoryBuilder::max_heap_bytes) bounds the total. In Redis the hits are
///   elements of a list.
/// - **Several periods on one key**: tiers, and two versions of a service during a deployment, may charge one key by
///   several periods. The log keeps hits for the longest period of the charges that still count, up to their largest
///   limit, and each request counts the hits of its own period. So your requests keep the bound of their own limit,
///   whatever other limits charge, and a request with less usage than its limit in its own period is not denied. While a
///   deployment lowers a limit, the processes with the larger limit use what both may use: those with the smaller limit
///   are denied while the usage is above their limit.
/// - **After a change of quota** hits count for the new period. Until the next charge under the new quota they count
///   for no longer than the old period.
/// - **Source**: the sorted set of time stamps that is trimmed by score, without its colliding members.
/// - **Choose it** for an exact bound with a small limit. For large limits [`SlidingWindow`](super::SlidingWindow)
///   keeps the same bound in a fixed number of words.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Quota, SlidingLog};
///
/// const LOGINS: SlidingLog = SlidingLog::new(Quota::new(5, Duration::from_secs(15 * 60)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    quota: Quota,
}

impl SlidingLog {
    /// The largest limit: a million hits, which take 16 megabytes per key.
    pub const MAX_LIMIT: u64 = 1_000_000;

    const TOO_LARGE: &str = "a sliding log stores every hit, at most 1000000; use a `SlidingWindow` for larger limits";

    /// Admits `quota.limit()` in any window of `quota.period()`.
    ///
    /// # Panics
    ///
    /// Panics if the limit is over [`MAX_LIMIT`](Self::MAX_LIMIT); in a `const` the compiler reports it. To handle
    /// the error, use [`try_new`](Self::try_new).
    #[track_caller]
    pub const fn new(quota: Quota) -> Self {
        assert!(quota.limit() <= Self::MAX_LIMIT, "{}", Self::TOO_LARGE);
        Self { quota }
    }

    /// Works as [`new`](Self::new), and returns an error instead of panicking.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is over [`MAX_LIMIT`](Self::MAX_LIMIT).
    pub fn try_new(quota: Quota) -> Result<Self, Error> {
        if quota.limit() <= Self::MAX_LIMIT { Ok(Self { quota }) } else { Err(Error::config(Self::TOO_LARGE)) }
    }

    /// Returns the quota.
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the hits that count at `now`.
    fn window<'a>(&self, log: &'a HitLog, now: u64) -> Window<'a> {
        let own_period = self.quota.period_micros();
        let hits = log.hits();
        let newest = hits.back().map_or(0, |&(time, _)| time);
        let at = now.max(newest);
        if log.idle_at <= at || at - now > own_period {
            return Window {
                log,
                first: hits.len(),
                used: 0,
                held: 0,
                period: own_period,
                at: if at - now > own_period { now } else { at },
                counts: false,
            };
        }
        // No hit counts for longer than the log keeps it.
        let period = own_period.min(log.kept.reach().period);
        let first = expired(log, period, at);
        Window { log, first, used: log.total_without(first), held: 0, period, at, counts: true }
    }

    const fn reach(&self) -> Reach {
        Reach { period: self.quota.period_micros(), limit: self.quota.limit() }
    }

    fn entries(&self) -> usize {
        // A limit of zero keeps surcharges in one entry.
        usize::try_from(self.quota.limit().max(1)).unwrap_or(usize::MAX)
    }
}

/// Returns how many of the oldest hits are as old as the period.
fn expired(log: &HitLog, period: u64, at: u64) -> usize {
    let has_expired = |&(time, _): &(u64, u64)| time.saturating_add(period) <= at;
    // Nothing has expired since the last charge, or little: row "sliding log" of benches/figures.md.
    let hits = log.hits();
    if hits.front().is_some_and(has_expired) { hits.partition_point(has_expired) } else { 0 }
}

/// The hits that count at a time.
struct Window<'a> {
    log: &'a HitLog,
    /// The index of the oldest hit that counts.
    first: usize,
    /// The sum of the weights of the hits that count.
    used: u128,
    /// The cost of all holds, which counts as if it were charged now.
    held: u64,
    /// The time for which the hits count.
    period: u64,
    /// The time at which to decide: now, or the newest hit's time if that is later.
    at: u64,
    /// Whether the state counts: the key is not idle, and the clock has not stepped back by more than a period.
    counts: bool,
}

impl Window<'_> {
    /// Returns the change of the log that charges `cost` by a reader with this reach.
    fn charge(&self, cost: u64, reader: Reach) -> HitLogEdit {
        let Self { log, at, .. } = *self;
        let (expired, kept) = if self.counts {
            (expired(log, log.kept.reach().period, at), log.kept.charged(reader, at))
        } else {
            (log.hits().len(), KeptFor::default().charged(reader, at))
        };
        HitLogEdit { expired, hit: (at, cost), kept, idle_at: at.saturating_add(kept.reach().period) }
    }

    fn used(&self) -> u128 {
        self.used + u128::from(self.held)
    }

    /// Returns the time at which all hits and holds have expired.
    fn all_freed_at(&self) -> u64 {
        // Holds expire last.
        if self.held > 0 { self.at.saturating_add(self.period) } else { self.freed_at(self.used) }
    }

    /// Returns the time at which hits of total weight `amount` have expired.
    fn freed_at(&self, amount: u128) -> u64 {
        let hits = self.log.hits();
        // Usually the first or the last hit: row "sliding log" of benches/figures.md.
        let first = hits.get(self.first).filter(|&&(_, weight)| u128::from(weight) >= amount);
        let last = hits.back().filter(|&&(_, weight)| weight > 0 && amount == self.used);
        if let Some(&(time, _)) = first.or(last) {
            return time.saturating_add(self.period);
        }
        let hits = hits.range(self.first..);
        if amount == self.used
            && let Some(&(newest, _)) = hits.clone().rfind(|&&(_, weight)| weight > 0)
        {
            return newest.saturating_add(self.period);
        }
        let mut freed = 0_u128;
        for &(time, weight) in hits {
            freed += u128::from(weight);
            if freed >= amount {
                return time.saturating_add(self.period);
            }
        }
        // Holds expire last.
        self.at.saturating_add(if self.held > 0 { self.period } else { 0 })
    }
}

impl Algorithm for SlidingLog {
    type State = HitLog;

    const STATE_NAME: &'static str = "sliding_log2";

    fn decide(&self, state: &HitLog, now: Timestamp, options: ChargeOptions) -> Step<HitLog> {
        self.decide_in(&self.window(state, now.as_micros()), now, options)
    }

    /// Keeps hits such that, since any time, the sum of weights is the larger of both logs.
    fn carry_over_debt(&self, state: &mut HitLog, from: &HitLog, now: Timestamp) {
        let windows = [&*state, from].map(|log| self.window(log, now.as_micros()));
        let mut reach = self.reach();
        let [own, other] = windows.map(|window| {
            let edit = window.charge(0, reach);
            reach = edit.kept.reach();
            window.log.hits().range(edit.expired..).rev().copied().collect::<Vec<_>>()
        });
        let (mut own, mut other) = (own.into_iter().peekable(), other.into_iter().peekable());
        if other.peek().is_none() {
            return;
        }
        // Exactly as much as it can come to: what is carried over must not take more than is documented.
        let entries = usize::try_from(reach.limit).unwrap_or(usize::MAX);
        let most = (own.len() + other.len()).min(entries);
        let mut hits: VecDeque<(u64, u64)> = VecDeque::with_capacity(most);
        let (mut of_own, mut of_other, mut counted) = (0_u64, 0_u64, 0);
        while let Some(time) = own.peek().max(other.peek()).map(|&(time, _)| time) {
            while let Some((_, weight)) = own.next_if(|hit| hit.0 == time) {
                of_own = of_own.saturating_add(weight);
            }
            while let Some((_, weight)) = other.next_if(|hit| hit.0 == time) {
                of_other = of_other.saturating_add(weight);
            }
            // Neither sum shrinks, and `counted` is their previous maximum.
            let more = of_own.max(of_other) - counted;
            counted += more;
            let is_full = hits.len() >= entries;
            match hits.front_mut() {
                // Beyond the bound only penalties go: they count with the hit after them, for longer.
                Some((_, weight)) if is_full => *weight = weight.saturating_add(more),
                _ if more > 0 => hits.push_front((time, more)),
                _ => {}
            }
        }
        let newest = hits.back().map_or(0, |&(time, _)| time);
        let kept = KeptFor::default().charged(reach, newest);
        *state = HitLog::with_kept(newest.saturating_add(reach.period), kept, hits);
    }

    /// Avoids the copy of the log that the default implementation makes.
    fn peek_with_held(
        &self,
        state: &HitLog,
        now: Timestamp,
        options: ChargeOptions,
        held: u64,
    ) -> (Verdict, LazySnapshot) {
        let mut window = self.window(state, now.as_micros());
        if held > 0 {
            // A charge counts all hits under the present period.
            (window.held, window.period) = (held, self.quota.period_micros());
        }
        (self.decide_in(&window, now, options).verdict(), self.figures(&window, now))
    }

    fn snapshot(&self, state: &HitLog, now: Timestamp) -> LazySnapshot {
        self.figures(&self.window(state, now.as_micros()), now)
    }

    fn max_reset(&self) -> Duration {
        self.quota.period()
    }

    fn share_capacity(&self) -> Option<ShareCapacity> {
        let (limit, period) = (self.quota.limit(), self.quota.period_micros());
        Some(ShareCapacity { family: ShareFamily::Log { period }, limit, period, max: limit })
    }

    fn max_heap_bytes(&self) -> usize {
        self.entries() * size_of::<(u64, u64)>()
    }
}

impl SlidingLog {
    fn decide_in(&self, window: &Window<'_>, now: Timestamp, options: ChargeOptions) -> Step<HitLog> {
        let (limit, cost) = (self.quota.limit(), options.cost);
        let delay = match options.start {
            Start::After(delay) => micros_floor(delay),
            Start::Within(_) if cost > limit => return Step::Exceeds,
            Start::Within(_) => match (window.used() + u128::from(cost)).checked_sub(u128::from(limit)) {
                None | Some(0) => 0,
                Some(over) => return Step::Deny { wait: window.freed_at(over).saturating_sub(now.as_micros()) },
            },
        };
        Step::Allow { next: window.charge(cost, self.reach()), delay }
    }

    fn figures(&self, window: &Window<'_>, now: Timestamp) -> LazySnapshot {
        let until = |moment: u64| moment.saturating_sub(now.as_micros());
        let used = window.used();
        let limit = self.quota.limit();
        let (reset, next_token_after) = if used == 0 {
            (0, 0)
        } else {
            let more = 1.max(used.saturating_sub(u128::from(limit.saturating_sub(1))));
            (until(window.all_freed_at()), until(window.freed_at(more)))
        };
        let remaining = u64::try_from(u128::from(limit).saturating_sub(used)).unwrap_or(0);
        LazySnapshot::from_micros([limit, self.quota.period_micros(), remaining, reset, next_token_after])
    }
}

#[cfg(feature = "redis")]
impl super::LuaAlgorithm for SlidingLog {
    const SCRIPT: super::LuaScript =
        super::LuaScript::new("sliding_log4", include_str!("sliding_log.lua")).with_header();

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.extend([self.quota.limit(), self.quota.period_micros(), cost]);
    }

    // A decision runs several Redis commands: about 9 us. In the worst case it searches the log three times: about 20 us
    // for 10 hits, 60 us for 1000 and 0.2 ms for a million. So a full call of worst cases takes less than 1 ms.
    fn weight(&self) -> u16 {
        let limit = self.quota.limit();
        let halvings = limit.max(1).ilog2();
        // A list element in the middle of a long list takes longer to reach.
        let longer = 1 + limit / 500_000;
        4 + u16::try_from(u64::from(halvings / 2) * longer).unwrap_or(u16::MAX - 4)
    }

    fn snapshot_from_view(&self, [used, idle_at, next_token_at]: [u64; 3], now: Timestamp) -> LazySnapshot {
        let limit = self.quota.limit();
        let until = |moment: u64| moment.saturating_sub(now.as_micros());
        LazySnapshot::from_micros([
            limit,
            self.quota.period_micros(),
            limit.saturating_sub(used),
            until(idle_at),
            until(next_token_at),
        ])
    }
}
