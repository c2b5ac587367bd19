use std::fmt;
use std::time::Duration;

/// Limit, remaining, reset and window of one key at one limit at one time.
///
/// Custom algorithms and limiters create it for an idle key, and set what differs:
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::LimitSnapshot;
///
/// let minute = Duration::from_secs(60);
/// let used_up = LimitSnapshot::new(5, minute).with_remaining(0).with_reset(minute).with_next_token_after(minute);
/// assert_eq!((used_up.limit, used_up.remaining), (5, 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LimitSnapshot {
    /// The largest cost that an idle key allows at once: the limit of a window, the burst of a bucket.
    pub limit: u64,
    /// The time in which `limit` becomes available again: the period of a window, the time from empty to full of a
    /// bucket. `None` for a limit on requests [in flight](crate::InFlight), which has no window.
    pub window: Option<Duration>,
    /// The largest cost that is allowed now, rounded down.
    pub remaining: u64,
    /// The time until the key is idle, zero if it is idle.
    pub reset: Duration,
    /// The time until `remaining` increases, zero if `remaining` is at its maximum. While fewer units are left than are
    /// [kept free](crate::Limit::keep_free_by) from the request, an upper bound: `reset`, or the wait of a denied request,
    /// which is exact for a cost of 1.
    /// While another limit of the request is blocked, stores may return different bounds.
    pub next_token_after: Duration,
}

impl LimitSnapshot {
    /// Creates the snapshot of an idle key: the whole limit remains. A window of zero is no window.
    pub fn new(limit: u64, window: impl Into<Option<Duration>>) -> Self {
        let window = window.into().filter(|window| !window.is_zero());
        Self { limit, window, remaining: limit, reset: Duration::ZERO, next_token_after: Duration::ZERO }
    }

    /// Sets the largest cost that is allowed now.
    #[must_use]
    pub const fn with_remaining(mut self, remaining: u64) -> Self {
        self.remaining = remaining;
        self
    }

    /// Sets the time until the key is idle.
    #[must_use]
    pub const fn with_reset(mut self, reset: Duration) -> Self {
        self.reset = reset;
        self
    }

    /// Sets the time until `remaining` increases.
    #[must_use]
    pub const fn with_next_token_after(mut self, next_token_after: Duration) -> Self {
        self.next_token_after = next_token_after;
        self
    }

    /// Returns the numbers as of `span` earlier.
    pub(super) fn as_of_earlier(self, span: Duration) -> Self {
        let longer = |wait: Duration| if wait.is_zero() { wait } else { wait + span };
        Self { reset: longer(self.reset), next_token_after: longer(self.next_token_after), ..self }
    }

    /// Returns the numbers for a request from which a limit keeps units free. `wait` is the wait of a denied request. The
    /// units of a bucket return one after another, so fewer of them return in less time.
    fn keeping_free(self, units: u64, wait: Option<Duration>, is_bucket: bool) -> Self {
        // While fewer than the units are left, it is unknown when more than the units are: at the latest when the request is
        // allowed, or at the reset.
        let latest = wait.map_or(self.reset, |wait| wait.min(self.reset));
        let next_token_after = if self.remaining < units { latest } else { self.next_token_after };
        let (limit, remaining) = (self.limit.saturating_sub(units), self.remaining.saturating_sub(units));
        let part = |window: Duration| {
            let micros = window.as_micros().saturating_mul(limit.max(1).into()).div_ceil(self.limit.max(1).into());
            Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
        };
        let window = if is_bucket { self.window.map(part) } else { self.window };
        Self { limit, window, remaining, next_token_after, ..self }
    }
}

/// A [`LimitSnapshot`] that is computed on demand.
///
/// Most decisions are dropped before a caller reads a snapshot, and divisions would be the slowest part of a decision.
#[derive(Clone, Copy)]
pub struct LazySnapshot {
    words: [u64; 5],
    compute: fn(&[u64; 5]) -> LimitSnapshot,
}

impl LazySnapshot {
    pub(crate) const EMPTY: Self = Self::new([0; 5], |_| LimitSnapshot::new(0, None));

    /// Creates a snapshot that `compute` computes from `words`.
    #[inline]
    pub const fn new(words: [u64; 5], compute: fn(&[u64; 5]) -> LimitSnapshot) -> Self {
        Self { words, compute }
    }

    /// Creates a snapshot from limit, window, remaining, reset and time to the next token, in microseconds. The window is
    /// zero if there is none.
    #[inline]
    pub(crate) const fn from_micros(words: [u64; 5]) -> Self {
        Self::new(words, |&[limit, window, remaining, reset, next_token_after]| LimitSnapshot {
            limit,
            window: (window > 0).then(|| Duration::from_micros(window)),
            remaining,
            reset: Duration::from_micros(reset),
            next_token_after: Duration::from_micros(next_token_after),
        })
    }

    /// Returns the numbers for a request from which a limit keeps units free.
    #[inline]
    pub(crate) fn keeping_free(self, units: Option<u64>, wait: Option<Duration>, is_bucket: bool) -> Self {
        match units {
            None | Some(0) => self,
            Some(units) => self.compute().keeping_free(units, wait, is_bucket).into(),
        }
    }

    /// Computes the snapshot.
    // In line, so that the compiler computes only what is read: row "two limits" of benches/figures.md, 695 instructions
    // instead of 583 in a program without link-time optimization.
    #[inline]
    pub fn compute(&self) -> LimitSnapshot {
        (self.compute)(&self.words)
    }
}

impl From<LimitSnapshot> for LazySnapshot {
    /// Stores the snapshot's values. Fractions of a microsecond are dropped.
    fn from(snapshot: LimitSnapshot) -> Self {
        let micros = crate::clock::micros_floor;
        Self::from_micros([
            snapshot.limit,
            snapshot.window.map_or(0, micros),
            snapshot.remaining,
            micros(snapshot.reset),
            micros(snapshot.next_token_after),
        ])
    }
}

impl fmt::Debug for LazySnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.compute().fmt(f)
    }
}
