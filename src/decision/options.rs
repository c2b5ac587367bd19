use std::time::Duration;

/// The options of one acquire call: cost, maximum delay, and the limits that the decision lists.
///
/// The default is a cost of one. An integer converts into options of that cost.
///
/// ```
/// use tower_ratelimit::AcquireOptions;
///
/// assert_eq!(AcquireOptions::from(5_u64), AcquireOptions::cost(5));
/// assert_eq!(AcquireOptions::from(1_u64), AcquireOptions::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AcquireOptions {
    /// The cost of the request. A limit can have a [fixed cost](crate::Limit::fixed_cost) instead.
    ///
    /// A cost of zero charges nothing. It is allowed unless the key has more usage than the limit.
    pub cost: u64,
    /// The longest delay that the caller accepts. With `None` a queue delays the request up to its capacity, and all
    /// other algorithms delay nothing.
    ///
    /// An algorithm that supports scheduling returns [`Verdict::AllowedAfter`](super::Verdict::AllowedAfter) for a
    /// start within the delay. Other algorithms deny the request.
    pub max_delay: Option<Duration>,
    /// How many of the limits the decision lists. Listing several limits costs an allocation.
    pub detail: Detail,
    /// Whether to [hold](crate::limiter::Held) the cost instead of charging it. A hold ignores `max_delay`.
    pub hold: bool,
    /// Whether the caller keeps the guard in [`Outcome::held`](crate::limiter::Outcome::held) until the request has
    /// ended, as a limit on requests [in flight](crate::InFlight) demands.
    pub until_end: bool,
    /// Whether the hold may be released as if the request had not come. Then limits with a fixed cost hold it, too.
    pub(crate) is_provisional: bool,
}

impl AcquireOptions {
    /// Returns options with this cost, and otherwise the defaults.
    #[must_use]
    pub const fn cost(cost: u64) -> Self {
        let detail = Detail::MostRestrictive;
        Self { cost, max_delay: None, detail, hold: false, until_end: false, is_provisional: false }
    }

    /// Sets the longest delay that the caller accepts.
    #[must_use]
    pub const fn max_delay(mut self, max_delay: Duration) -> Self {
        self.max_delay = Some(max_delay);
        self
    }

    /// Holds the cost instead of charging it: see [`Limiter::hold`](crate::Limiter::hold).
    #[must_use]
    pub const fn hold(mut self) -> Self {
        self.hold = true;
        self
    }

    /// Declares that the caller keeps the guard in [`Outcome::held`](crate::limiter::Outcome::held) until the request
    /// has ended.
    ///
    /// A limiter with a limit on requests [in flight](crate::InFlight) returns an error without it, because the limit
    /// would count nothing if the caller dropped the guard.
    #[must_use]
    pub const fn until_end(mut self) -> Self {
        self.until_end = true;
        self
    }

    /// Holds the costs of all limits, until another limiter has decided.
    pub(crate) const fn provisional(mut self) -> Self {
        self.is_provisional = true;
        self.hold()
    }

    /// Returns the longest acceptable delay in whole microseconds, or `default` if the caller set none.
    #[cfg(feature = "redis")]
    pub(crate) fn max_delay_micros_or(&self, default: u64) -> u64 {
        self.max_delay.map_or(default, crate::clock::micros_floor)
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

/// Options with this cost. This is the only conversion from an integer, so that an integer literal needs no suffix.
impl From<u64> for AcquireOptions {
    fn from(cost: u64) -> Self {
        Self::cost(cost)
    }
}

/// How many of a limiter's limits a decision lists in [`Decision::limits`](super::Decision::limits).
///
/// A decision of one limit always lists the limit. The variants are ordered: a greater one lists as much or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Detail {
    /// The most restrictive limit, and every [shadow](crate::Limit::shadow) limit.
    #[default]
    MostRestrictive,
    /// Every limit if the decision denies, to name all limits that deny; otherwise as
    /// [`MostRestrictive`](Self::MostRestrictive).
    AllIfDenied,
    /// Every limit.
    All,
}
