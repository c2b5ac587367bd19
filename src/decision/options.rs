use std::time::Duration;

/// What is asked: how much, and how long the asker would wait for it.
///
/// The default asks for a cost of one, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AcquireOptions {
    /// What the request costs. A cost of zero is a question: it is allowed unless the key is in debt beyond its
    /// burst, and charges nothing.
    pub cost: u64,
    /// The longest delay that the asker accepts. With `None` it is for the algorithm to say: a queue delays as it must,
    /// all others refuse what can't be had at once.
    ///
    /// An algorithm that can promise a later turn answers [`Verdict::AllowedAfter`](super::Verdict::AllowedAfter); one that can't refuses.
    pub max_delay: Option<Duration>,
    /// How many of the limits the decision lists. Listing several limits costs an allocation.
    pub detail: Detail,
    /// Whether the cost is to be [held](crate::limiter::Held) instead of charged. A hold starts now: `max_delay` does not count.
    pub hold: bool,
}

impl AcquireOptions {
    /// Asks for `cost`, at once.
    #[must_use]
    pub const fn cost(cost: u64) -> Self {
        Self { cost, max_delay: None, detail: Detail::MostRestrictive, hold: false }
    }

    /// Accepts a delay of up to `max_delay`.
    #[must_use]
    pub const fn max_delay(mut self, max_delay: Duration) -> Self {
        self.max_delay = Some(max_delay);
        self
    }

    /// Asks that the cost be held instead of charged: see [`Limiter::hold`](crate::Limiter::hold).
    #[must_use]
    pub const fn hold(mut self) -> Self {
        self.hold = true;
        self
    }

    /// The longest acceptable delay in whole microseconds, or `unless_said`.
    #[inline]
    pub(crate) fn patience(&self, unless_said: u64) -> u64 {
        self.max_delay.map_or(unless_said, crate::clock::micros_floor)
    }

    /// Whether the decision of several limits lists them all: as `detail` says, and always if one of them is a shadow.
    pub(crate) fn lists_all(self, shadows: bool, denied: impl FnOnce() -> bool) -> bool {
        shadows
            || match self.detail {
                Detail::MostRestrictive => false,
                Detail::AllIfDenied => denied(),
                Detail::All => true,
            }
    }

    /// Sets how many of the limits the decision lists.
    #[must_use]
    pub const fn detail(mut self, detail: Detail) -> Self {
        self.detail = detail;
        self
    }
}

impl Default for AcquireOptions {
    fn default() -> Self {
        Self::cost(1)
    }
}

/// How many of a limiter's limits a decision lists in [`Decision::limits`](super::Decision::limits).
///
/// A decision of one limit always lists the limit. The variants are ordered: a greater one lists as much or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Detail {
    /// The most restrictive limit only.
    #[default]
    MostRestrictive,
    /// Every limit if the decision denies, to name all limits that deny; otherwise the most restrictive one.
    AllIfDenied,
    /// Every limit.
    All,
}
