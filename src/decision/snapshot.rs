use std::fmt;
use std::time::Duration;

/// The figures of one limit for one key at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "a user's own algorithm makes them")]
pub struct LimitSnapshot {
    /// The most that could be had at once: the limit of a window, the burst of a bucket.
    pub limit: u64,
    /// The time in which `limit` comes back: the window, or the time from empty to full.
    pub window: Duration,
    /// How much could be had now, rounded down.
    pub remaining: u64,
    /// The time until the key is as good as new, zero if it is.
    pub reset: Duration,
    /// The time until `remaining` grows, zero if it is at its most.
    pub next_token_after: Duration,
}

/// What an algorithm read off a state: its [`LimitSnapshot`], worked out when they are asked for.
#[derive(Clone, Copy)]
pub struct LazySnapshot {
    words: [u64; 5],
    project: fn(&[u64; 5]) -> LimitSnapshot,
}

impl LazySnapshot {
    /// Of nothing.
    pub(crate) const BLANK: Self = Self::new([0; 5], |_| LimitSnapshot {
        limit: 0,
        window: Duration::ZERO,
        remaining: 0,
        reset: Duration::ZERO,
        next_token_after: Duration::ZERO,
    });

    /// LimitSnapshot that `project` works out of `words` on demand: dividing is the dearest part of a decision, and most
    /// decisions are never asked.
    #[must_use]
    #[inline(always)]
    pub const fn new(words: [u64; 5], project: fn(&[u64; 5]) -> LimitSnapshot) -> Self {
        Self { words, project }
    }

    /// The figures.
    #[must_use]
    #[inline]
    pub fn figures(&self) -> LimitSnapshot {
        (self.project)(&self.words)
    }
}

impl From<LimitSnapshot> for LazySnapshot {
    /// LimitSnapshot that are worked out already. Fractions of a microsecond are dropped.
    fn from(figures: LimitSnapshot) -> Self {
        let micros = crate::clock::micros_floor;
        let words = [
            figures.limit,
            micros(figures.window),
            figures.remaining,
            micros(figures.reset),
            micros(figures.next_token_after),
        ];
        Self::new(words, |&[limit, window, remaining, reset, next_token_after]| LimitSnapshot {
            limit,
            window: Duration::from_micros(window),
            remaining,
            reset: Duration::from_micros(reset),
            next_token_after: Duration::from_micros(next_token_after),
        })
    }
}

impl fmt::Debug for LazySnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures().fmt(f)
    }
}
