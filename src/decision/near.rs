use std::num::NonZeroU32;

use super::snapshot::LazySnapshot;

/// The part of a limit from which on a key is near the limit, in millionths: its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(from = "f64", into = "f64"))]
pub(crate) struct WarnAt(NonZeroU32);

impl WarnAt {
    const WHOLE: u32 = 1_000_000;

    /// Creates a mark. It is [valid](Self::is_valid) if `part` is at least one millionth and at most 1.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and NaN becomes 0")]
    pub(crate) fn new(part: f64) -> Self {
        Self(NonZeroU32::new((part * f64::from(Self::WHOLE)).round() as u32).unwrap_or(NonZeroU32::MAX))
    }

    pub(crate) fn is_valid(self) -> bool {
        self.0.get() <= Self::WHOLE
    }

    /// Returns the part of the limit.
    pub(crate) fn part(self) -> f64 {
        f64::from(self.0.get()) / f64::from(Self::WHOLE)
    }

    /// Returns whether the numbers of a limit are at the mark, in the state of a limit that has one.
    #[inline]
    pub(crate) fn level(self, snapshot: &LazySnapshot) -> NearLimit {
        let snapshot = snapshot.compute();
        let used = u128::from(snapshot.limit.saturating_sub(snapshot.remaining));
        // Of a limit that keeps all its units free from the request, there is no part to use.
        let is_near = snapshot.limit > 0
            && used * u128::from(Self::WHOLE) >= u128::from(snapshot.limit) * u128::from(self.0.get());
        NearLimit(NearLimit::HAS_MARK.0 | if is_near { NearLimit::NEAR.0 } else { 0 })
    }
}

impl From<f64> for WarnAt {
    fn from(part: f64) -> Self {
        Self::new(part)
    }
}

impl From<WarnAt> for f64 {
    fn from(mark: WarnAt) -> Self {
        mark.part()
    }
}

/// What a decision knows of a limit's mark, in one byte of each reading and status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NearLimit(u8);

impl NearLimit {
    /// The limit has no mark.
    pub(crate) const NONE: Self = Self(0);
    /// The limit has a mark.
    pub(crate) const HAS_MARK: Self = Self(1);
    /// The usage after the decision is at the mark or above.
    pub(crate) const NEAR: Self = Self(1 << 1);
    /// The charge of the decision has crossed the mark.
    pub(crate) const CROSSED: Self = Self(1 << 2);
    /// The crossing is an event, because the key had none within the last minute.
    pub(crate) const EVENT: Self = Self(1 << 3);
    /// The decision lists the limit only because it is near: fields of responses leave the limit out.
    pub(crate) const LISTED_AS_NEAR: Self = Self(1 << 4);

    #[inline]
    pub(crate) const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) const fn with(self, flag: Self) -> Self {
        Self(self.0 | flag.0)
    }

    /// Returns what still holds when the decision is used again: whether the limit is near.
    pub(crate) const fn level_only(self) -> Self {
        Self(self.0 & (Self::HAS_MARK.0 | Self::NEAR.0))
    }

    /// Returns what is public of a status: whether the limit is near, and whether the charge has crossed the mark.
    pub(crate) const fn public(self) -> u8 {
        self.0 & (Self::NEAR.0 | Self::CROSSED.0)
    }
}
