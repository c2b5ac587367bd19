use std::time::Duration;

use super::state::{KINDS, MAX_WINDOWS, OneWindow, WRITTEN_AT, WindowWords, Windows, further};
use super::{Algorithm, ChargeOptions, InLine, Start, Step};
use crate::calendar::Calendar;
use crate::clock::{Timestamp, micros_floor};
#[cfg(feature = "redis")]
use crate::decision::AcquireOptions;
use crate::decision::LazySnapshot;
use crate::quota::{Quota, QuotaError};

/// A fixed window: a counter that is reset when its window ends.
///
/// ![Decisions with a quota of ten in ten seconds, on four patterns of traffic][picture-fixed-window]
///
#[doc = include_str!("../../docs/pictures/fixed-window.md")]
///
/// A window starts at a key's first hit and lasts one period. In any interval of one period at most `2 limit - 1` are
/// admitted: one hit at the start of a window, `limit - 1` at its end and `limit` immediately after it. With
/// [`aligned_to_clock`](Self::aligned_to_clock) or a [`calendar`](Self::calendar) the maximum is `2 limit`, in an
/// arbitrarily short time around the boundary.
///
/// - **Closed form**: with the window's `used` and `end`, admit if `used + cost <= limit`; both `retry_after` and
///   `reset` are `end - now`.
/// - **State**: four words (end, used, time of the last charge, first hit and kind). With several periods 14 words more, on
///   the heap. A denied request changes no word.
/// - **Several periods on one key**: see [below](#several-periods-on-one-key).
/// - **Source**: the classic counter of `INCR` and `EXPIRE`, without its races.
/// - **Choose it** for quotas that users know as "so many per hour", or where an audit counts by calendar windows. If
///   bursts at the boundary are harmful, choose [`Gcra`](super::Gcra).
///
/// ```
/// use tower_ratelimit::{Calendar, FixedWindow, Quota};
///
/// const SIGN_UPS: FixedWindow = FixedWindow::new(Quota::per_hour(3));
/// const DAILY: FixedWindow = FixedWindow::new(Quota::per_day(1_000)).aligned_to_clock();
/// const BILLED: FixedWindow = FixedWindow::calendar(10_000, Calendar::monthly_on(15).utc_offset_minutes(120));
/// ```
///
/// # Several periods on one key
///
/// Tiers, and two versions of a service during a deployment, may charge one key by several periods. A state then has a
/// window for each period, and each charge counts in all open windows:
///
/// 1. A request charges the window of its own period, which it opens if it is closed, and every other open window.
/// 2. A request is allowed if its own window and the windows of other periods have room. A window of another period counts
///    until it ends, or until one period of the request after its first hit if that is earlier: while all that it has
///    counted is inside one period. In a calendar it counts no longer than the calendar's window that contains the last charge.
///
/// So your requests keep the bound of their own limit, whatever other limits charge; a request with less usage than its
/// limit in its own period is not denied; and a change of quota keeps the usage. A change of the limit alone keeps the
/// window. A state has at most four windows: a fifth period is denied until one of the four windows ends. A settled hold of
/// a fifth period counts in the four.
///
/// While a deployment lowers a limit, the processes with the larger limit use what both may use: those with the smaller
/// limit are denied while the usage is above their limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct FixedWindow {
    /// Of a calendar, the limit in the longest window.
    quota: Quota,
    boundaries: Boundaries,
}

/// Where windows begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Boundaries {
    FirstHit,
    /// At multiples of the period since the epoch.
    Multiples,
    Calendar(Calendar),
}

/// A window of a state.
#[derive(Clone, Copy)]
struct Window {
    first_hit: u64,
    end: u64,
    used: u64,
    /// Its end is not set by its first hit.
    by_clock: bool,
}

impl Window {
    fn read(state: &WindowWords, index: usize) -> Self {
        let by_clock = state[KINDS] >> index & 1 == 1;
        let (end, first) = if index == 0 { (0, 3) } else { (3 * index + 2, 3 * index + 4) };
        Self { first_hit: state[first], end: state[end], used: state[end + 1], by_clock }
    }

    /// Adds the window to a state that has `index` windows.
    fn write(self, state: &mut WindowWords, index: usize) {
        let (end, first) = if index == 0 { (0, 3) } else { (3 * index + 2, 3 * index + 4) };
        (state[end], state[end + 1], state[first]) = (self.end, self.used, self.first_hit);
        state[KINDS] = (state[KINDS] & 15) | u64::from(self.by_clock) << index | (index as u64) << 4;
    }
}

/// A state at a time.
struct View<'a> {
    window: &'a FixedWindow,
    state: &'a WindowWords,
    /// The time at which to decide: now, or the time of the last charge if that is later.
    at: u64,
    /// Start and end of the window that a hit opens.
    own: (u64, u64),
}

impl View<'_> {
    /// Returns the open windows. The window that ends last is first.
    #[inline]
    fn open(&self) -> impl Iterator<Item = Window> {
        let is_valid = self.state[WRITTEN_AT] <= self.at;
        let windows = (0..=further(self.state)).map(|index| Window::read(self.state, index));
        windows.take_while(move |window| is_valid && self.at < window.end)
    }

    /// Whether requests of this limit charge this window: it is the own window, or has counted all hits of that window. Then
    /// two periods may have windows of the same end, and the larger count decides.
    #[inline]
    fn is_own(&self, window: &Window) -> bool {
        match self.window.boundaries {
            Boundaries::FirstHit => {
                !window.by_clock && window.end.wrapping_sub(window.first_hit) == self.window.quota.period_micros()
            }
            _ => window.by_clock && window.end == self.own.1 && window.first_hit >= self.own.0,
        }
    }

    /// Returns until when a window counts for this limit.
    #[inline]
    fn counts_until(&self, window: &Window) -> u64 {
        if self.is_own(window) {
            return window.end;
        }
        let until = window.end.min(window.first_hit.saturating_add(self.window.quota.period_micros()));
        match self.window.boundaries {
            Boundaries::Calendar(_) if self.state[WRITTEN_AT] < self.own.0 => 0,
            Boundaries::Calendar(_) => until.min(self.own.1),
            _ => until,
        }
    }

    /// Returns the usage that counts, and until when, for each open window. While no window of this limit can be opened,
    /// its whole limit counts as used.
    #[inline]
    fn counting(&self) -> impl Iterator<Item = (u64, u64)> {
        let counting = self.open().map(|window| (window.used, self.counts_until(&window)));
        counting.chain(self.full_until().map(|until| (self.window.quota.limit(), until)))
    }

    /// Returns when a window can be opened, if all windows of the state are open and none is of this limit.
    #[inline]
    fn full_until(&self) -> Option<u64> {
        if further(self.state) + 1 < MAX_WINDOWS {
            return None;
        }
        let mut first_end = None;
        let mut count = 0;
        for window in self.open() {
            if self.is_own(&window) {
                return None;
            }
            (first_end, count) = (Some(window.end), count + 1);
        }
        first_end.filter(|_| count == MAX_WINDOWS)
    }

    /// Returns the time from which at most `spare` is used.
    #[inline]
    fn admits_at(&self, spare: u64) -> u64 {
        self.counting().filter(|(used, _)| *used > spare).map(|(_, until)| until).fold(self.at, u64::max)
    }

    /// Returns the state after a charge.
    #[inline]
    fn charged(&self, cost: u64) -> WindowWords {
        let add = |window: Window| Window { used: window.used.saturating_add(cost), ..window };
        let first = Window::read(self.state, 0);
        let is_valid = self.state[WRITTEN_AT] <= self.at && self.at < first.end;
        // The usual state: one window, which is this limit's own.
        if is_valid && further(self.state) == 0 && self.is_own(&first) {
            let mut next = *self.state;
            add(first).write(&mut next, 0);
            next[WRITTEN_AT] = self.at;
            return next;
        }
        let mut own = Some(Window {
            first_hit: self.at,
            end: self.own.1,
            used: cost,
            by_clock: self.window.boundaries != Boundaries::FirstHit,
        });
        if self.open().any(|window| self.is_own(&window)) || self.full_until().is_some() {
            own = None;
        }
        let mut next = [0; _];
        next[WRITTEN_AT] = self.at;
        let mut index = 0;
        for window in self.open() {
            if let Some(own) = own.take_if(|own| own.end > window.end) {
                own.write(&mut next, index);
                index += 1;
            }
            add(window).write(&mut next, index);
            index += 1;
        }
        if let Some(own) = own {
            own.write(&mut next, index);
        }
        next
    }
}

impl FixedWindow {
    /// Admits `quota.limit()` in each window, which starts at the first hit and lasts `quota.period()`.
    pub const fn new(quota: Quota) -> Self {
        Self { quota, boundaries: Boundaries::FirstHit }
    }

    /// Starts the windows of all keys at multiples of the period since the Unix epoch: days start at midnight UTC.
    ///
    /// A week starts on a Thursday, as the epoch does. For weeks from Monday, months and other time zones use a
    /// [`calendar`](Self::calendar).
    pub const fn aligned_to_clock(mut self) -> Self {
        self.boundaries = Boundaries::Multiples;
        self
    }

    /// Admits `limit` in each window of a calendar: "10,000 in a month", from the 15th, in a time zone.
    ///
    /// The limit is the same in each window, whatever its length. Nothing is carried over from one window to the next, and
    /// a window that you begin to use late has the whole limit. For a steady rate beside it, add a limit such as
    /// [`Gcra`](super::Gcra).
    ///
    /// After a change of the calendar, the usage counts until the present window ends by the calendar before or by the new
    /// one, whichever is earlier. Two processes with different calendars, or different time zone data, share no bound: each
    /// admits its own limit in its own windows.
    ///
    /// In Redis the server's clock decides. A request whose process has a clock that is wrong by more than a window takes
    /// a second round trip.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is over 2^53. In a `const` the compiler reports it. To handle the error, use
    /// [`try_calendar`](Self::try_calendar).
    #[track_caller]
    pub const fn calendar(limit: u64, calendar: Calendar) -> Self {
        let quota = Quota::new(limit, Duration::from_micros(calendar.longest()));
        Self { quota, boundaries: Boundaries::Calendar(calendar) }
    }

    /// Works as [`calendar`](Self::calendar), and returns an error instead of panicking.
    ///
    /// # Errors
    ///
    /// Returns an error if `limit` is over 2^53.
    pub fn try_calendar(limit: u64, calendar: Calendar) -> Result<Self, QuotaError> {
        let quota = Quota::try_new(limit, Duration::from_micros(calendar.longest()))?;
        Ok(Self { quota, boundaries: Boundaries::Calendar(calendar) })
    }

    /// Returns the quota. A calendar's quota has the days of the longest window: a month has 31.
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    #[cfg_attr(
        not(any(feature = "redis", feature = "serde")),
        allow(dead_code, reason = "for scripts and configuration")
    )]
    pub(crate) const fn get_calendar(&self) -> Option<Calendar> {
        match self.boundaries {
            Boundaries::Calendar(calendar) => Some(calendar),
            _ => None,
        }
    }

    /// Returns start and end of the window that a hit at this time opens.
    #[inline]
    fn window_at(&self, at: u64) -> (u64, u64) {
        let period = self.quota.period_micros();
        let start = match self.boundaries {
            Boundaries::FirstHit => at,
            Boundaries::Multiples => at - at % period,
            Boundaries::Calendar(calendar) => return calendar.window(at),
        };
        (start, start.saturating_add(period))
    }

    #[inline]
    fn view<'a>(&'a self, state: &'a WindowWords, now: u64) -> View<'a> {
        let written_at = state[WRITTEN_AT];
        // A clock may step back by a little, because threads read it before they lock the shard.
        let is_ahead =
            written_at > now && written_at - now <= self.quota.period_micros() && self.follows(now, written_at);
        let at = if is_ahead { written_at } else { now };
        View { window: self, state, at, own: self.window_at(at) }
    }

    /// Returns the only window of a state, if it is open, and of this limit. A calendar's is left to [`View`].
    #[inline]
    fn own_window<'a>(&self, state: &'a Windows, now: u64) -> Option<&'a OneWindow> {
        let Windows::One(window) = state else { return None };
        let is_open = window.written_at <= now && now < window.end;
        let is_own = match self.boundaries {
            Boundaries::FirstHit => {
                !window.is_by_clock() && window.end.wrapping_sub(window.first_hit()) == self.quota.period_micros()
            }
            Boundaries::Multiples => {
                let (start, end) = self.window_at(now);
                window.is_by_clock() && window.end == end && window.first_hit() >= start
            }
            Boundaries::Calendar(_) => false,
        };
        (is_open && is_own).then_some(window)
    }

    fn snapshot_of_any(&self, state: &WindowWords, now: u64) -> LazySnapshot {
        let view = self.view(state, now);
        let limit = self.quota.limit();
        let (used, until) = view
            .counting()
            .filter(|(_, until)| *until > view.at)
            .fold((0, now), |(used, last), (own, until)| (used.max(own), last.max(until)));
        let remaining = limit.saturating_sub(used);
        let more_at = if used == 0 { now } else { view.admits_at(limit.saturating_sub(1).min(used - 1)) };
        let length = match self.boundaries {
            Boundaries::Calendar(_) => view.own.1 - view.own.0,
            _ => self.quota.period_micros(),
        };
        LazySnapshot::from_micros([limit, length, remaining, until - now, more_at - now])
    }

    /// Whether a time is at most in the window after the present window. The Lua script knows no later one.
    #[inline]
    fn follows(&self, now: u64, time: u64) -> bool {
        match self.boundaries {
            Boundaries::Calendar(calendar) => time < calendar.window(calendar.window(now).1).1,
            _ => true,
        }
    }
}

impl Algorithm for FixedWindow {
    type State = Windows;

    const STATE_NAME: &'static str = "fixed_window3";

    fn decide(&self, state: &Windows, now: Timestamp, options: ChargeOptions) -> Step<Windows> {
        if let Some(step) = self.decide_in_line(state, now, options, InLine) {
            return step;
        }
        let (words, now) = (state.words(), now.as_micros());
        let view = self.view(&words, now);
        let delay = match options.start {
            Start::After(delay) => micros_floor(delay),
            Start::Within(_) if options.cost > self.quota.limit() => return Step::Exceeds,
            Start::Within(_) => {
                let admits_at = view.admits_at(self.quota.limit() - options.cost);
                if admits_at > view.at {
                    return Step::Deny { wait: admits_at - now };
                }
                0
            }
        };
        Step::Allow { next: Windows::from_words(view.charged(options.cost)), delay }
    }

    /// Decides in the own window of the limit, if the key has no other one.
    // Row "algorithms" of benches/figures.md: 3.3 times as long without.
    #[inline]
    fn decide_in_line(
        &self,
        state: &Windows,
        now: Timestamp,
        options: ChargeOptions,
        _: InLine,
    ) -> Option<Step<Windows>> {
        let now = now.as_micros();
        let window = self.own_window(state, now).filter(|_| matches!(options.start, Start::Within(_)))?;
        // A cost above the limit never fits.
        let spare = self.quota.limit().checked_sub(options.cost)?;
        Some(if window.used > spare {
            Step::Deny { wait: window.end - now }
        } else {
            let used = window.used + options.cost;
            Step::Allow { next: Windows::One(OneWindow { used, written_at: now, ..*window }), delay: 0 }
        })
    }

    /// Keeps each window, with the larger of both counts. Of windows of one period keeps the one that ends later.
    fn carry_over_debt(&self, state: &mut Windows, from: &Windows, now: Timestamp) {
        let now = now.as_micros();
        let words = [&*state, from].map(Windows::words);
        let [own, other] = words.each_ref().map(|words| self.view(words, now));
        let mut windows: Vec<Window> = own.open().collect();
        for window in other.open() {
            let is_same = |own: &&mut Window| {
                let length = |window: &Window| window.end.wrapping_sub(window.first_hit);
                own.by_clock == window.by_clock
                    && if own.by_clock { own.end == window.end } else { length(own) == length(&window) }
            };
            match windows.iter_mut().find(is_same) {
                Some(own) => {
                    let used = own.used.max(window.used);
                    *own = Window { used, ..if own.end >= window.end { *own } else { window } };
                }
                None => windows.push(window),
            }
        }
        // This limit's own window is kept first.
        windows.sort_by_key(|window| std::cmp::Reverse((own.is_own(window), window.end)));
        windows.truncate(MAX_WINDOWS);
        windows.sort_by_key(|window| std::cmp::Reverse(window.end));
        let mut next = [0; _];
        next[WRITTEN_AT] = own.at.max(other.at);
        for (index, window) in windows.into_iter().enumerate() {
            window.write(&mut next, index);
        }
        *state = Windows::from_words(next);
    }

    #[inline]
    fn snapshot(&self, state: &Windows, now: Timestamp) -> LazySnapshot {
        let at = now.as_micros();
        match self.own_window(state, at) {
            Some(&OneWindow { used, end, .. }) => {
                let (limit, until) = (self.quota.limit(), end - at);
                let more = if used == 0 { 0 } else { until };
                LazySnapshot::from_micros([limit, self.quota.period_micros(), limit.saturating_sub(used), until, more])
            }
            None => self.snapshot_of_any(&state.words(), at),
        }
    }

    fn max_reset(&self) -> Duration {
        match self.boundaries {
            // A zone may repeat a day, or a part of it.
            Boundaries::Calendar(calendar) => Duration::from_micros(calendar.longest() + 24 * 3_600_000_000),
            _ => self.quota.period(),
        }
    }
}

#[cfg(feature = "redis")]
impl super::LuaAlgorithm for FixedWindow {
    const SCRIPT: super::LuaScript = super::LuaScript::new("fixed_window3", include_str!("fixed_window.lua"))
        .with_fast_path(include_str!("fixed_window_fast.lua"));

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.extend([self.quota.limit(), self.quota.period_micros(), cost]);
        params.extend(match self.boundaries {
            Boundaries::FirstHit => [0; 5],
            Boundaries::Multiples => [1, 0, 0, 0, 0],
            Boundaries::Calendar(calendar) => calendar.id(),
        });
    }

    fn calendar(&self) -> Option<Calendar> {
        self.get_calendar()
    }

    fn uses_fast_path(&self, options: AcquireOptions) -> bool {
        let is_calendar = matches!(self.boundaries, Boundaries::Calendar(_));
        !is_calendar && !options.hold && options.cost > 0 && options.cost <= self.quota.limit()
    }
}
