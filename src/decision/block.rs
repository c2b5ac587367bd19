/// Why a key is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BlockReason {
    /// The application has blocked the key: `block` of a limiter.
    #[default]
    Administrator,
    /// The key was denied too often: see [`Escalating`](crate::limiter::Escalating).
    Escalation,
}

impl BlockReason {
    /// The bit of a stored duration that says that the reason is an escalation.
    const ESCALATION: u64 = 1 << 63;
    /// The longest duration that is stored. It stands for any longer one.
    const LONGEST: u64 = Self::ESCALATION - 1;

    /// Returns the reason as a label: `administrator` or `escalation`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Administrator => "administrator",
            Self::Escalation => "escalation",
        }
    }

    /// Returns the word that a store keeps for a block of this reason and a duration in microseconds.
    pub(crate) const fn pack(self, duration: u64) -> u64 {
        let duration = if duration < Self::LONGEST { duration } else { Self::LONGEST };
        match self {
            Self::Administrator => duration,
            Self::Escalation => duration | Self::ESCALATION,
        }
    }

    /// Returns the duration and the reason from the word that a store keeps.
    pub(crate) const fn unpack(word: u64) -> (u64, Self) {
        let reason = if word & Self::ESCALATION == 0 { Self::Administrator } else { Self::Escalation };
        let duration = word & Self::LONGEST;
        (if duration == Self::LONGEST { u64::MAX } else { duration }, reason)
    }
}
