use std::time::Duration;

use super::costs::{Costs, UnitCosts};
use super::reservation_id::{CallId, ReservationId};
use crate::error::Error;

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
///
/// A custom limiter reads the public fields, [`costs`](Self::costs) and [`reservation_id`](Self::reservation_id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct AcquireOptions {
    /// The cost of the request.
    pub cost: u64,
    /// The longest delay that the caller accepts, `None` for the limiter's own bound.
    pub max_delay: Option<Duration>,
    /// How many of the limits the decision lists.
    pub detail: Detail,
    /// Whether the limiter holds the cost instead of charging it.
    pub hold: bool,
    /// Whether the caller keeps the guard until the request has ended.
    pub keeps_guard: bool,
    /// Whether the hold may be released as if the request had not come. Then limits with a fixed cost hold it, too.
    pub(crate) holds_fixed_costs: bool,
    /// The costs in units. Options with units are made from [`Costs`].
    pub(crate) units: UnitCosts,
    /// A limiter around this one has checked that a limit names each unit.
    pub(crate) has_known_units: bool,
    /// The id of a hold that other processes can settle, or of a request that is charged once.
    pub(crate) call_id: Option<CallId>,
    /// The time until a hold with an id expires, in milliseconds.
    pub(crate) expires_in: u32,
    /// How many repeats of a hold with an id are allowed.
    pub(crate) repeats: u16,
}

impl AcquireOptions {
    /// Returns the options by which a limit that keeps units free allows the request: it starts now, and leaves the units.
    #[cfg(feature = "redis")]
    pub(crate) fn keeping_free(self, units: Option<u64>) -> Self {
        match units {
            None => self,
            Some(units) => Self { cost: self.cost.saturating_add(units), ..self }.max_delay(Duration::ZERO),
        }
    }

    /// Returns options with this cost, and otherwise the defaults. A limit can have a
    /// [fixed cost](crate::Limit::fixed_cost) instead.
    ///
    /// A cost of zero charges nothing. It is allowed unless the key has more usage than the limit.
    pub const fn cost(cost: u64) -> Self {
        let detail = Detail::MostRestrictive;
        Self {
            cost,
            max_delay: None,
            detail,
            hold: false,
            keeps_guard: false,
            holds_fixed_costs: false,
            units: UnitCosts::NONE,
            has_known_units: false,
            call_id: None,
            expires_in: CallId::DEFAULT_EXPIRY,
            repeats: 0,
        }
    }

    /// Returns the cost of the request, with its costs in units.
    ///
    /// A limiter of your own that has no units must return an error if there are any: a unit that no limit names is a
    /// mistake of the caller.
    pub const fn costs(&self) -> Costs {
        Costs::from_parts(Some(self.cost), self.units)
    }

    #[inline]
    pub(crate) const fn has_units(&self) -> bool {
        !self.units.is_none()
    }

    /// Checks that a limit names each unit, unless a limiter around this one has. `visit_units` visits the units of all
    /// limits.
    #[inline]
    pub(crate) fn check_units(&self, visit_units: impl Fn(&mut dyn FnMut(&'static str))) -> Result<(), Error> {
        if self.units.is_none() || self.has_known_units { Ok(()) } else { self.units.check(&visit_units) }
    }

    /// Returns options for the limiters inside of a limiter that has checked the units.
    pub(crate) const fn with_known_units(mut self) -> Self {
        self.has_known_units = true;
        self
    }

    /// Sets the longest delay that the caller accepts. With `None`, the default, a queue delays the request up to its
    /// capacity, and all other algorithms delay nothing.
    ///
    /// An algorithm that supports scheduling returns [`Verdict::AllowedAfter`](super::Verdict::AllowedAfter) for a
    /// start within the delay. Other algorithms deny the request.
    #[inline]
    pub fn max_delay(mut self, max_delay: impl Into<Option<Duration>>) -> Self {
        self.max_delay = max_delay.into();
        self
    }

    /// [Holds](crate::limiter::Held) the cost instead of charging it, and [keeps the guard](Self::keep_guard). A hold starts
    /// now, whatever the maximum delay is.
    ///
    /// The guard is in [`Outcome::held`](crate::limiter::Outcome::held).
    pub const fn hold(self) -> Self {
        self.hold_cost().keep_guard()
    }

    /// Holds the cost, for a caller that may settle the guard before the request has ended.
    pub(crate) const fn hold_cost(mut self) -> Self {
        self.hold = true;
        self
    }

    /// Declares that the caller keeps the guard in [`Outcome::held`](crate::limiter::Outcome::held) until the request
    /// has ended.
    ///
    /// A limiter with a limit on requests [in flight](crate::InFlight) returns an error without it, because the limit
    /// would count nothing if the caller dropped the guard.
    pub const fn keep_guard(mut self) -> Self {
        self.keeps_guard = true;
        self
    }

    /// Names a hold by an id, so that any process can settle it. Only a hold reads the id: a call that charges ignores it.
    ///
    /// The limiter returns no guard ([`Outcome::held`](crate::limiter::Outcome::held) is `None`). `settle` or `release` of
    /// the limiter ends the hold, in this process or in another one that shares the store.
    ///
    /// - **The server makes the id**, for example a random one for each request. With an id that a client sends, the client
    ///   chooses which of its requests are one request.
    /// - **A repeat** of a hold with the same id on the same key holds nothing more. It is denied, unless the hold allows
    ///   [repeats](Self::repeats): [`is_repeat`](super::Decision::is_repeat) then says that the hold is still open. After
    ///   its settlement or expiry it is an error for which [`is_already_settled`](Error::is_already_settled) holds, and with
    ///   another cost one for which [`is_id_conflict`](Error::is_id_conflict) holds. A denied hold is not remembered.
    /// - **Settling takes effect once.** Each later `settle` or `release` of the id succeeds and changes nothing.
    /// - **At its [expiry](Self::expires_in)** the whole held cost is charged.
    /// - **The id is remembered** until its expiry, and after it for the time of `expires_in` once more. A settlement after
    ///   the expiry charges only what exceeds the held cost. When the id is not remembered, settling is an error for
    ///   which [`is_unknown_id`](Error::is_unknown_id) holds, and charges nothing. A hold with this id is then a new one.
    /// - **An id counts within its key.** Another key can use the same id, and cannot settle this hold. A key has at most
    ///   10,000 remembered ids unless the limiter's `max_reservation_ids` is set. A further hold is denied:
    ///   [`has_too_many_ids`](super::Decision::has_too_many_ids).
    ///
    /// [`Memory`](crate::Memory) and `Redis` support ids. The [trait](crate::limiter::Limiter) lists other limiters.
    ///
    /// In memory, a decision with an id takes one lock of the limiter, also while the functions of the limits run (keys,
    /// conditions, tiers). They must not use an id of the same limiter, and a slow one delays all decisions with an id.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{AcquireOptions, Limiter, Memory, Quota, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Memory::new(TokenBucket::new(Quota::per_day(10_000)));
    /// let options = AcquireOptions::cost(4_000).id("req-7f3a").expires_in(Duration::from_secs(600));
    ///
    /// assert!(limiter.hold("alice", options).await?.decision.is_allowed());
    /// let repeat = limiter.hold("alice", options).await?.decision;
    /// assert!(!repeat.is_allowed() && repeat.is_repeat());
    ///
    /// limiter.settle("alice", "req-7f3a", 1_200).await?;
    /// limiter.settle("alice", "req-7f3a", 1_200).await?;
    /// assert_eq!(limiter.check("alice", 0).remaining(), Some(8_800));
    /// # Ok(())
    /// # }
    /// ```
    pub fn id(mut self, id: impl Into<ReservationId>) -> Self {
        self.call_id = Some(CallId::hold(id.into()));
        self
    }

    /// Sets the time after which a hold with an [id](Self::id) that nobody has settled is charged: 1 ms to 24 hours in
    /// whole milliseconds, by default 10 minutes. Without an id it has no effect.
    ///
    /// Redis rounds the expiry up by at most a quarter of this time.
    pub fn expires_in(mut self, expires_in: Duration) -> Self {
        self.expires_in = CallId::millis_of(expires_in);
        self
    }

    /// Sets how many repeats of a hold with an [id](Self::id) are allowed while the hold is open: by default none.
    ///
    /// Set it for a caller that sends a hold again until it has a reply. An id passes at most `1 + repeats` times until it
    /// is forgotten, from any caller. The first hold's number counts. Without an id it has no effect.
    ///
    /// ```
    /// use tower_ratelimit::{AcquireOptions, Limiter, Memory, Quota, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Memory::new(TokenBucket::new(Quota::per_day(100)));
    /// let options = AcquireOptions::cost(40).id("req-7f3a").repeats(1);
    ///
    /// for (is_allowed, is_repeat) in [(true, false), (true, true), (false, true)] {
    ///     let decision = limiter.hold("alice", options).await?.decision;
    ///     assert_eq!((decision.is_allowed(), decision.is_repeat()), (is_allowed, is_repeat));
    /// }
    /// limiter.settle("alice", "req-7f3a", 25).await?;
    /// assert!(limiter.hold("alice", options).await.is_err_and(|error| error.is_already_settled()));
    /// # Ok(())
    /// # }
    /// ```
    pub const fn repeats(mut self, repeats: u16) -> Self {
        self.repeats = repeats;
        self
    }

    /// Charges a request once: a repeat of the same id on the same key within the time `remember` charges only what its
    /// cost exceeds the charged one, at most `repeats` times. Further repeats are charged as requests without an id.
    ///
    /// So a key can pass at most `1 + repeats` times what it is charged. A layer reads the id from a header:
    /// [`RateLimitLayer::once`](crate::RateLimitLayer::once), which documents the rules. Here the id is the caller's: it
    /// must name the request, not only the client's attempt. It counts within its key, and apart from the
    /// [ids of holds](Self::id), whose lock it shares.
    ///
    /// `remember` is 1 ms to 24 hours, in whole milliseconds. Redis rounds it up by at most a quarter.
    /// Without repeats (0) the id has no effect.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{AcquireOptions, Limiter, Memory, Quota, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Memory::new(TokenBucket::new(Quota::per_day(100)));
    /// let options = AcquireOptions::cost(10).once("POST /orders 7f3a", 1, Duration::from_secs(60));
    ///
    /// for remaining in [90, 90, 80] {
    ///     let outcome = limiter.acquire("alice", options).await?;
    ///     assert_eq!(outcome.decision.remaining(), Some(remaining));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn once(mut self, id: impl Into<ReservationId>, repeats: u16, remember: Duration) -> Self {
        self.call_id = (repeats > 0).then(|| CallId::request(id.into(), repeats, remember));
        self
    }

    /// Returns the id of a hold that other processes can settle, or of a request that is charged once.
    ///
    /// A custom limiter that does not support ids must return an error if there is one: its guard would settle the hold,
    /// and it would charge each repeat.
    pub const fn reservation_id(&self) -> Option<ReservationId> {
        match self.call_id {
            Some(call) if self.hold || !call.is_hold() => Some(call.id),
            _ => None,
        }
    }

    /// Returns an error for a call with an id, which a limiter or guard (`name`) does not support.
    pub(crate) fn check_no_id(&self, name: &str) -> Result<(), Error> {
        let message = match (self.reservation_id(), self.charged_once()) {
            (None, _) => return Ok(()),
            (_, None) => "does not support a reservation id; hold without an id, or call the store itself",
            (_, Some(_)) => "cannot charge an id once; use `Memory` or `Redis` itself, or leave out `once`",
        };
        Err(Error::unsupported(format!("the decision failed: {name} {message}")))
    }

    /// Returns the options of a peek that shows the usage, for the repeat of a hold.
    pub(crate) const fn without_cost(self) -> Self {
        Self { detail: self.detail, ..Self::cost(0) }
    }

    /// Returns the id and the expiry of a hold that has an id.
    #[inline]
    pub(crate) fn reserve(&self) -> Option<CallId> {
        let hold = self.call_id.filter(|call| self.hold && call.is_hold())?;
        Some(hold.lasting(self.expires_in).repeating(self.repeats))
    }

    /// Returns the id of a request that is charged once.
    #[inline]
    pub(crate) fn charged_once(&self) -> Option<CallId> {
        self.call_id.filter(|call| !call.is_hold())
    }

    /// Holds the costs of all limits, until another limiter has decided.
    pub(crate) const fn hold_all_costs(mut self) -> Self {
        self.holds_fixed_costs = true;
        self.hold_cost()
    }

    /// Returns the longest acceptable delay in whole microseconds, or `default` if the caller set none.
    #[cfg(feature = "redis")]
    pub(crate) fn max_delay_micros_or(&self, default: u64) -> u64 {
        self.max_delay.map_or(default, crate::clock::micros_floor)
    }

    /// Sets how many of the limits the decision lists. Listing several limits costs time, but no allocation if all of them
    /// allow.
    pub const fn detail(mut self, detail: Detail) -> Self {
        self.detail = detail;
        self
    }

    /// Returns these options for a caller that keeps no guard.
    #[inline]
    pub(crate) fn without_guard(mut self) -> Self {
        self.hold = false;
        self.keeps_guard = false;
        self.call_id = self.charged_once();
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
