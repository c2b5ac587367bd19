use std::time::Duration;

use super::{Algorithm, ChargeOptions, Start, Step};
use crate::clock::{Timestamp, micros_floor};
#[cfg(feature = "redis")]
use crate::decision::AcquireOptions;
use crate::decision::{LazySnapshot, LimitSnapshot};
use crate::quota::Quota;

/// A fixed window: a counter that is reset when its window ends.
///
/// ![Decisions with a quota of ten in ten seconds, on four patterns of traffic][picture-fixed-window]
///
#[doc = include_str!("../../docs/pictures/fixed-window.md")]
///
/// A window starts at a key's first hit and lasts one period. In any interval of one period at most `2 limit - 1` are
/// admitted: one hit at the start of a window, `limit - 1` at its end and `limit` immediately after it. With
/// [`aligned_to_clock`](Self::aligned_to_clock) the maximum is `2 limit`, in an arbitrarily short time around the
/// boundary.
///
/// - **Closed form**: with the window's `used` and `end`, admit if `used + cost <= limit`; both `retry_after` and
///   `reset` are `end - now`.
/// - **State**: four words (end, used, time of the last charge, start). A denied request changes neither count nor end.
/// - **After a change of quota** the usage counts until the window ends: at its original end, or one new period after
///   its start if that is earlier. With `aligned_to_clock`, a charge under the new quota extends that window to the
///   end of the current calendar window, so that the bound of `2 limit` holds after the change.
/// - **Source**: the classic counter of `INCR` and `EXPIRE`, without its races.
/// - **Choose it** for quotas that users know as "so many per hour", or where an audit counts by calendar windows. If
///   bursts at the boundary are harmful, choose [`Gcra`](super::Gcra).
///
/// ```
/// use tower_ratelimit::{FixedWindow, Quota};
///
/// const SIGN_UPS: FixedWindow = FixedWindow::new(Quota::per_hour(3));
/// const DAILY: FixedWindow = FixedWindow::new(Quota::per_day(1_000)).aligned_to_clock();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    quota: Quota,
    aligned: bool,
}

/// The window of a state that is open at a time.
#[derive(Clone, Copy)]
struct Window {
    start: u64,
    end: u64,
    used: u64,
    /// The time at which to decide.
    at: u64,
}

impl FixedWindow {
    /// Admits `quota.limit()` in each window, which starts at the first hit and lasts `quota.period()`.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self { quota, aligned: false }
    }

    /// Starts the windows of all keys at multiples of the period since the Unix epoch: days start at midnight UTC.
    #[must_use]
    pub const fn aligned_to_clock(mut self) -> Self {
        self.aligned = true;
        self
    }

    /// Returns the quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the time at which to decide: now, or the last charge's time if it is later by at most one period.
    ///
    /// A clock may step back by a little, because threads read it before they lock the set.
    #[inline]
    fn moment(&self, &[_, _, written_at, _]: &[u64; 4], now: u64) -> u64 {
        let at = now.max(written_at);
        if at - now > self.quota.period_micros() { now } else { at }
    }

    /// Returns start and end of the window that a hit at this time opens.
    #[inline]
    fn window_at(&self, at: u64) -> (u64, u64) {
        let period = self.quota.period_micros();
        let start = if self.aligned { at - at % period } else { at };
        (start, start.saturating_add(period))
    }

    /// Returns the open window, `None` if the next hit opens a window.
    #[inline]
    fn open(&self, state: &[u64; 4], now: u64) -> Option<Window> {
        let &[end, used, written_at, start] = state;
        let at = self.moment(state, now);
        // After a change to a shorter period, the window ends one new period after its start.
        let end = end.min(start.saturating_add(self.quota.period_micros()));
        (written_at <= at && at < end).then_some(Window { start, end, used, at })
    }
}

impl Algorithm for FixedWindow {
    type State = [u64; 4];

    const STATE_NAME: &'static str = "fixed_window1";

    #[inline]
    fn decide(&self, state: &[u64; 4], now: Timestamp, options: ChargeOptions) -> Step<[u64; 4]> {
        let now = now.as_micros();
        let window = self.open(state, now);
        let delay = match options.start {
            Start::After(delay) => micros_floor(delay),
            Start::Within(_) if options.cost > self.quota.limit() => return Step::Exceeds,
            Start::Within(_) => match window {
                Some(window) if window.used > self.quota.limit() - options.cost => {
                    return Step::Deny { wait: window.end - now };
                }
                _ => 0,
            },
        };
        let at = self.moment(state, now);
        let next = if let Some(window) = window {
            let used = window.used.saturating_add(options.cost);
            let (start, end) = if self.aligned { self.window_at(at) } else { (window.start, window.end) };
            // A window that a shorter period cut goes on in the present one.
            // Otherwise the original end is kept, which `open` cuts at each reading.
            if window.end < end { [end, used, at, start] } else { [state[0], used, at, window.start] }
        } else {
            let (start, end) = self.window_at(at);
            [end, options.cost, at, start]
        };
        Step::Allow { next, delay }
    }

    /// Keeps the window that ends later, with the larger of both counts.
    fn carry_over_debt(&self, state: &mut [u64; 4], from: &[u64; 4], now: Timestamp) {
        let Some(other) = self.open(from, now.as_micros()) else { return };
        let own = self.open(state, now.as_micros());
        let (end, start) = match own {
            Some(own) if own.end >= other.end => (state[0], own.start),
            _ => (from[0], other.start),
        };
        let (used, at) = own.map_or((0, 0), |own| (own.used, own.at));
        *state = [end, used.max(other.used), at.max(other.at), start];
    }

    #[inline]
    fn snapshot(&self, state: &[u64; 4], now: Timestamp) -> LazySnapshot {
        let now = now.as_micros();
        let (used, reset) = self.open(state, now).map_or((0, 0), |window| (window.used, window.end - now));
        LazySnapshot::new([self.quota.limit(), self.quota.period_micros(), used, reset, 0], |words| {
            let &[limit, period, used, reset, ..] = words;
            LimitSnapshot {
                limit,
                window: Some(Duration::from_micros(period)),
                remaining: limit.saturating_sub(used),
                reset: Duration::from_micros(reset),
                next_token_after: Duration::from_micros(reset),
            }
        })
    }

    fn max_reset(&self) -> Duration {
        self.quota.period()
    }
}

#[cfg(feature = "redis")]
impl super::LuaAlgorithm for FixedWindow {
    const SCRIPT: super::LuaScript = super::LuaScript::new("fixed_window2", include_str!("fixed_window.lua"))
        .with_fast_path(include_str!("fixed_window_fast.lua"));

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.extend([self.quota.limit(), self.quota.period_micros(), cost, u64::from(self.aligned)]);
    }

    fn uses_fast_path(&self, options: AcquireOptions) -> bool {
        options.cost > 0 && options.cost <= self.quota.limit()
    }
}
