use std::fmt;
use std::time::Duration;

/// Limit, remaining, reset and window of one key at one limit at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "custom algorithms construct it")]
pub struct LimitSnapshot {
    /// The largest cost that an idle key allows at once: the limit of a window, the burst of a bucket.
    pub limit: u64,
    /// The time in which `limit` becomes available again: the period of a window, the time from empty to full of a
    /// bucket. Zero for a limit on requests in flight, which has no window.
    pub window: Duration,
    /// The largest cost that is allowed now, rounded down.
    pub remaining: u64,
    /// The time until the key is idle, zero if it is idle.
    pub reset: Duration,
    /// The time until `remaining` increases, zero if `remaining` is at its maximum.
    pub next_token_after: Duration,
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
    pub(crate) const EMPTY: Self = Self::new([0; 5], |_| LimitSnapshot {
        limit: 0,
        window: Duration::ZERO,
        remaining: 0,
        reset: Duration::ZERO,
        next_token_after: Duration::ZERO,
    });

    /// Creates a snapshot that `compute` computes from `words`.
    #[must_use]
    #[inline]
    pub const fn new(words: [u64; 5], compute: fn(&[u64; 5]) -> LimitSnapshot) -> Self {
        Self { words, compute }
    }

    /// Creates a snapshot from limit, window, remaining, reset and time to the next token, in microseconds.
    #[inline]
    pub(crate) const fn from_micros(words: [u64; 5]) -> Self {
        Self::new(words, |&[limit, window, remaining, reset, next_token_after]| LimitSnapshot {
            limit,
            window: Duration::from_micros(window),
            remaining,
            reset: Duration::from_micros(reset),
            next_token_after: Duration::from_micros(next_token_after),
        })
    }

    /// Computes the snapshot.
    #[must_use]
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
            micros(snapshot.window),
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
