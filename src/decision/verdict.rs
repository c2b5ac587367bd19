use std::time::Duration;

/// Yes, yes but later, no until later, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Allowed now, and charged.
    Allowed,
    /// Allowed and charged, for a turn that comes after this delay.
    AllowedAfter(Duration),
    /// Refused, and nothing was charged. If nobody else uses the key, asking the same after exactly `retry_after`
    /// succeeds, and asking a microsecond earlier does not.
    Denied {
        /// How long to wait before asking again.
        retry_after: Duration,
    },
    /// Refused for good: the cost is over what the limit can ever hold.
    ExceedsLimit,
}

impl Verdict {
    /// Whether the request may pass, at once or after a delay.
    #[must_use]
    pub const fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed | Self::AllowedAfter(_))
    }

    /// The verdict over both: the stricter one. It is exact, as every algorithm's answer only improves with time.
    pub(crate) fn stricter_of(self, other: Self) -> Self {
        match (self, other) {
            (Self::ExceedsLimit, _) | (_, Self::ExceedsLimit) => Self::ExceedsLimit,
            (Self::Denied { retry_after: a }, Self::Denied { retry_after: b }) => {
                Self::Denied { retry_after: a.max(b) }
            }
            (denied @ Self::Denied { .. }, _) | (_, denied @ Self::Denied { .. }) => denied,
            (Self::AllowedAfter(a), Self::AllowedAfter(b)) => Self::AllowedAfter(a.max(b)),
            (after @ Self::AllowedAfter(_), Self::Allowed) | (Self::Allowed, after @ Self::AllowedAfter(_)) => after,
            (Self::Allowed, Self::Allowed) => Self::Allowed,
        }
    }
}

/// A verdict in one word. Decisions are moved about; an enum of two durations would take three.
///
/// Zero is allowed, all ones never; else microseconds, with the highest bit set if it is allowed after them. Durations are
/// whole microseconds here, at most 2^62 of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedVerdict(u64);

impl PackedVerdict {
    const NEVER: u64 = u64::MAX;
    const AFTER: u64 = 1 << 63;
    const MOST: u64 = (1 << 62) - 1;

    #[inline]
    pub(super) fn pack(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allowed => Self(0),
            Verdict::AllowedAfter(delay) => Self(Self::AFTER | crate::clock::micros_floor(delay).min(Self::MOST)),
            Verdict::Denied { retry_after } => Self(crate::clock::micros_floor(retry_after).clamp(1, Self::MOST)),
            Verdict::ExceedsLimit => Self(Self::NEVER),
        }
    }

    /// Refused for so long in microseconds; allowed, if that is zero.
    #[inline(always)]
    pub(super) const fn wait(micros: u64) -> Self {
        debug_assert!(micros <= Self::MOST, "no limit refuses for so long");
        Self(micros)
    }

    #[inline(always)]
    pub(super) const fn is_allowed_now(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    pub(super) const fn is_allowed(self) -> bool {
        self.0 == 0 || (self.0 & Self::AFTER != 0 && self.0 != Self::NEVER)
    }

    #[inline]
    pub(super) fn unpack(self) -> Verdict {
        match self.0 {
            0 => Verdict::Allowed,
            Self::NEVER => Verdict::ExceedsLimit,
            after if after & Self::AFTER != 0 => Verdict::AllowedAfter(Duration::from_micros(after & Self::MOST)),
            wait => Verdict::Denied { retry_after: Duration::from_micros(wait) },
        }
    }

    /// The same a while later, if nobody asks meanwhile.
    pub(super) fn aged_by(self, elapsed: Duration) -> Self {
        match self.unpack() {
            Verdict::Denied { .. } => Self(self.0.saturating_sub(crate::clock::micros_floor(elapsed))),
            _ => self,
        }
    }
}
