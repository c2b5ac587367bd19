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
    /// Whether the decision is to list every limit, not just the one that speaks. Costs an allocation where there are several.
    pub all_limits: bool,
    /// The same for a refusal only: to name all that refuse.
    pub all_denials: bool,
    /// Whether the cost is to be [held](crate::limiter::Held) instead of charged. A hold starts now: `max_delay` does not count.
    pub hold: bool,
}

impl AcquireOptions {
    /// Asks for `cost`, at once.
    #[must_use]
    pub const fn cost(cost: u64) -> Self {
        Self { cost, max_delay: None, all_limits: false, all_denials: false, hold: false }
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

    /// The longest acceptable delay in whole microseconds, or `default`.
    #[inline]
    pub(crate) fn max_delay_micros_or(&self, default: u64) -> u64 {
        self.max_delay.map_or(default, crate::clock::micros_floor)
    }

    /// Whether the decision of several limits is to list them all: where that is asked for, or one of them is a shadow.
    pub(crate) fn lists_all(self, shadows: bool, refused: impl FnOnce() -> bool) -> bool {
        shadows || self.all_limits || (self.all_denials && refused())
    }

    /// Asks that the decision list every limit.
    #[must_use]
    pub const fn all_limits(mut self) -> Self {
        self.all_limits = true;
        self
    }
}

impl Default for AcquireOptions {
    fn default() -> Self {
        Self::cost(1)
    }
}
