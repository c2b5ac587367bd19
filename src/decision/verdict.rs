use std::time::Duration;

/// The result of a decision: allowed, delayed, denied, or exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Allowed now, and charged.
    Allowed,
    /// Allowed and charged, for a start after this delay.
    AllowedAfter(Duration),
    /// Denied, and not charged.
    ///
    /// If no other caller uses the key, the same request succeeds after exactly `retry_after`, and not a microsecond
    /// earlier.
    Denied {
        /// The time after which the same request succeeds.
        retry_after: Duration,
    },
    /// Denied, because the cost exceeds what the limit ever allows.
    ExceedsLimit,
}

impl Verdict {
    /// Returns whether the request is allowed, now or after a delay.
    pub const fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed | Self::AllowedAfter(_))
    }

    /// Returns the wait of a request of this cost that is denied, after which more remains.
    #[inline]
    pub(crate) fn wait_for_more(self, cost: u64) -> Option<Duration> {
        if let Self::Denied { retry_after } = self { Some(retry_after).filter(|_| cost > 0) } else { None }
    }

    /// Returns the stricter verdict, which is the verdict of both limits together.
    ///
    /// Its time is exact: without further charges, a limit that allows a request at one time allows it at every later
    /// time.
    pub(crate) fn stricter_of(self, other: Self) -> Self {
        if other.strictness() > self.strictness() { other } else { self }
    }

    /// Returns the order of verdicts: a longer wait is stricter.
    pub(super) fn strictness(self) -> (u8, Duration) {
        match self {
            Self::Allowed => (0, Duration::ZERO),
            Self::AllowedAfter(delay) => (1, delay),
            Self::Denied { retry_after } => (2, retry_after),
            Self::ExceedsLimit => (3, Duration::ZERO),
        }
    }
}

/// A verdict in one word, because decisions are moved often; [`Verdict`] takes three words: row "memory acquire" of
/// benches/figures.md, 277 instructions instead of 330.
///
/// Zero is allowed, all ones exceeds the limit. Other values are microseconds, at most 2^62: of a delay if the
/// highest bit is set, otherwise until a retry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedVerdict(u64);

impl PackedVerdict {
    const EXCEEDS_LIMIT: u64 = u64::MAX;
    const DELAYED: u64 = 1 << 63;
    const MAX_MICROS: u64 = (1 << 62) - 1;

    #[inline]
    pub(super) fn pack(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allowed => Self(0),
            Verdict::AllowedAfter(delay) => {
                Self(Self::DELAYED | crate::clock::micros_floor(delay).min(Self::MAX_MICROS))
            }
            // 0 is `Allowed`.
            Verdict::Denied { retry_after } => Self(crate::clock::micros_floor(retry_after).clamp(1, Self::MAX_MICROS)),
            Verdict::ExceedsLimit => Self(Self::EXCEEDS_LIMIT),
        }
    }

    /// Packs a denial for `micros` microseconds, or an allowed verdict if `micros` is zero.
    #[inline]
    pub(super) const fn from_wait(micros: u64) -> Self {
        debug_assert!(micros <= Self::MAX_MICROS, "a wait is at most 200 years");
        Self(micros)
    }

    #[inline]
    pub(super) const fn is_allowed_now(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(super) const fn is_allowed(self) -> bool {
        self.0 == 0 || (self.0 & Self::DELAYED != 0 && self.0 != Self::EXCEEDS_LIMIT)
    }

    #[inline]
    pub(super) fn unpack(self) -> Verdict {
        match self.0 {
            0 => Verdict::Allowed,
            Self::EXCEEDS_LIMIT => Verdict::ExceedsLimit,
            delayed if delayed & Self::DELAYED != 0 => {
                Verdict::AllowedAfter(Duration::from_micros(delayed & Self::MAX_MICROS))
            }
            wait => Verdict::Denied { retry_after: Duration::from_micros(wait) },
        }
    }

    /// Returns the verdict `elapsed` later if the key was not charged meanwhile.
    pub(super) fn aged_by(self, elapsed: Duration) -> Self {
        match self.unpack() {
            Verdict::Denied { .. } => Self(self.0.saturating_sub(crate::clock::micros_floor(elapsed))),
            Verdict::AllowedAfter(delay) => Self::pack(Verdict::AllowedAfter(delay.saturating_sub(elapsed))),
            _ => self,
        }
    }
}
