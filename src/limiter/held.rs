use std::fmt;
use std::sync::Arc;

use super::capacity::capacity_released;
use super::future::{LimiterFuture, both_ok};
#[cfg(doc)]
use crate::decision::AcquireOptions;
use crate::decision::{Costs, HeldParts, UnitCosts};
use crate::error::Error;

/// A cost that a limiter holds for a request whose actual cost is known later.
///
/// A held cost counts like a charged one: no other request gets it, and it does not drain. The guard ends the hold
/// once:
///
/// - [`settle`](Self::settle) charges the actual cost at the time of the call. The part above the held cost is a
///   *surcharge*: the limiter charges it even if it exceeds the limit.
/// - [`release`](Self::release) charges nothing.
/// - Dropping the guard settles the whole held cost.
///
/// A limit on requests [in flight](crate::InFlight) charges nothing: its part of the cost is held until the guard ends,
/// in either way.
///
/// # Custom limiters
///
/// A limiter of its own creates guards with [`new`](Self::new), or with [`until_end`](Self::until_end) for a limit on
/// requests in flight. A limiter around another one must return the guard of the limiter inside, because a guard can
/// hold more than [`cost`](Self::cost) says. [`map_settle`](Self::map_settle) changes how the guard settles, and keeps
/// the rest.
///
/// The limiter charges nothing before the actual cost is known, so it never refunds. If each request is placed at its
/// start, admissions stay within the bound of the [algorithm](crate::algorithm), except for surcharges.
///
/// Held tokens do not drain: with long holds, keep `burst >= rate * duration * estimate / actual`.
///
/// ```
/// use tower_ratelimit::{AcquireOptions, Limiter, Memory, Quota, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Memory::new(TokenBucket::new(Quota::per_minute(1000)));
///
/// let outcome = limiter.hold("alice", AcquireOptions::cost(400)).await?;
/// assert_eq!(outcome.decision.remaining(), Some(600));
/// let held = outcome.held.expect("400 of 1000 tokens are available");
/// held.settle(150).await?;
/// assert_eq!(limiter.peek("alice", AcquireOptions::default()).await?.remaining(), Some(850));
/// # Ok(())
/// # }
/// ```
///
/// # Tiers
///
/// If the algorithm is [selected by the key](crate::per_key), a hold is settled under the algorithm that was selected
/// when the hold began. If the tier of the key has changed since then to one with a longer period, the charge expires
/// as under the old tier. Usage that only the longer period still counted can expire with it, once for each such hold.
///
/// # Shared stores
///
/// In memory a hold ends with its guard. In Redis the process renews its holds in the background. If the process dies,
/// its holds expire, and Redis settles them whole.
///
/// # Cancellation
///
/// [`settle`](Self::settle) and [`release`](Self::release) take effect even if their future is dropped, as long as a
/// tokio runtime runs (feature `timer`).
#[must_use = "dropping the guard settles the whole held cost"]
pub struct Held {
    cost: u64,
    settle: Option<Settle>,
    /// Whether `settle` releases what a limit on requests in flight holds: there is no cost to settle.
    is_until_end: bool,
    parts: Option<Box<Parts>>,
}

type Settle = Box<dyn FnOnce(Costs) -> LimiterFuture<()> + Send + Sync>;

/// What few guards have: costs in units, and the parts of a hold that end apart from the request's cost.
#[derive(Default)]
struct Parts {
    /// The fixed costs of limits, which a [provisional](AcquireOptions::provisional) hold includes.
    fixed: Option<Held>,
    /// What limits on requests in flight hold. It is never charged.
    until_end: Option<Held>,
    units: HeldUnits,
}

impl Parts {
    fn is_empty(&self) -> bool {
        self.fixed.is_none() && self.until_end.is_none() && self.units.is_empty()
    }

    fn boxed(self) -> Option<Box<Self>> {
        Some(self).filter(|parts| !parts.is_empty()).map(Box::new)
    }
}

/// The costs of a hold in units.
#[derive(Clone, Default)]
struct HeldUnits {
    costs: UnitCosts,
    /// The units of the limiter.
    known: Vec<&'static str>,
}

impl HeldUnits {
    fn is_empty(&self) -> bool {
        self.costs.is_none() && self.known.is_empty()
    }

    fn visit(&self, visit: &mut dyn FnMut(&'static str)) {
        let held = Costs::from_parts(None, self.costs);
        self.known.iter().copied().chain(held.units().map(|(unit, _)| unit)).for_each(visit);
    }
}

impl Held {
    /// Creates a guard for a custom limiter. The guard calls `settle` once, with the actual cost.
    ///
    /// The limiter has no units: use [`with_costs`](Self::with_costs) for one that has. To wrap the guard of another
    /// limiter, use [`map_settle`](Self::map_settle): a new guard would hold less.
    pub fn new(cost: u64, settle: impl FnOnce(u64) -> LimiterFuture<()> + Send + Sync + 'static) -> Self {
        let settle = move |actual: Costs| settle(actual.number().unwrap_or(cost));
        Self { cost, settle: Some(Box::new(settle)), is_until_end: false, parts: None }
    }

    /// Creates a guard for a custom limiter with [units](crate::Limit::cost_of). The guard calls `settle` once, with the
    /// actual costs.
    ///
    /// Settling in a unit that `costs` leave out is an error.
    pub fn with_costs(
        costs: impl Into<Costs>,
        settle: impl FnOnce(Costs) -> LimiterFuture<()> + Send + Sync + 'static,
    ) -> Self {
        Self::of_limits(costs.into(), Vec::new(), settle)
    }

    /// Creates a guard of a limiter with these units.
    pub(crate) fn of_limits(
        costs: Costs,
        known: Vec<&'static str>,
        settle: impl FnOnce(Costs) -> LimiterFuture<()> + Send + Sync + 'static,
    ) -> Self {
        let parts = Parts { units: HeldUnits { costs: costs.unit_costs(), known }, ..Parts::default() };
        Self {
            cost: costs.number().unwrap_or(1),
            settle: Some(Box::new(settle)),
            is_until_end: false,
            parts: parts.boxed(),
        }
    }

    /// Creates the guard of fixed costs. The guard calls `end` once: with `true` to charge the costs.
    pub(crate) fn of_fixed_costs(end: impl FnOnce(bool) -> LimiterFuture<()> + Send + Sync + 'static) -> Self {
        Self::new(1, move |actual| end(actual > 0))
    }

    /// Creates the guard of a cost that is held until the request ends, for a custom limit on requests in flight.
    ///
    /// The guard charges nothing. It calls `release` once: when it is settled, released or dropped. Return it only to
    /// callers that keep it ([`AcquireOptions::until_end`]).
    pub fn until_end(cost: u64, release: impl FnOnce() -> LimiterFuture<()> + Send + Sync + 'static) -> Self {
        let release = move |_: Costs| release();
        Self { cost, settle: Some(Box::new(release)), is_until_end: true, parts: None }
    }

    /// Replaces how the guard settles, and keeps everything else that it holds: for a limiter around another one.
    ///
    /// Instead of charging the actual costs, the guard calls `settle` once, with the guard of the cost that is settled
    /// and the actual costs. What other limits hold (requests [in flight](crate::InFlight), fixed costs) ends as before.
    /// A guard without a cost to settle never calls `settle`.
    ///
    /// ```
    /// use tower_ratelimit::limiter::{Limiter, LimiterFuture, Outcome};
    /// use tower_ratelimit::AcquireOptions;
    ///
    /// /// Prints what requests cost.
    /// struct Printed<L>(L);
    ///
    /// impl<L: Limiter<str>> Limiter<str> for Printed<L> {
    ///     fn acquire(&self, key: &str, options: AcquireOptions) -> LimiterFuture<Outcome> {
    ///         let (acquired, key) = (self.0.acquire(key, options), key.to_owned());
    ///         acquired.map(|Outcome { decision, held, .. }| {
    ///             let held = held.map(|held| {
    ///                 held.map_settle(move |held, actual| {
    ///                     println!("{key}: {actual}");
    ///                     held.settle(actual)
    ///                 })
    ///             });
    ///             Outcome::new(decision, held)
    ///         })
    ///     }
    /// }
    /// ```
    pub fn map_settle(mut self, settle: impl FnOnce(Self, Costs) -> LimiterFuture<()> + Send + Sync + 'static) -> Self {
        let (cost, units) = (self.cost, self.units().cloned().unwrap_or_default());
        if self.has_cost() {
            self.settle = self.settle.take().map(|inner| -> Settle {
                let parts = Parts { units, ..Parts::default() }.boxed();
                let inner = Self { cost, settle: Some(inner), is_until_end: false, parts };
                Box::new(move |actual| settle(inner, actual))
            });
        }
        self
    }

    /// Lets the end of each part wake the requests that wait for these limits.
    pub(crate) fn waking(mut self, limits: Arc<[u64]>) -> Self {
        if let Some(parts) = &mut self.parts {
            parts.fixed = parts.fixed.take().map(|fixed| fixed.waking(Arc::clone(&limits)));
            parts.until_end = parts.until_end.take().map(|until_end| until_end.waking(Arc::clone(&limits)));
        }
        self.settle = self.settle.take().map(|settle| -> Settle {
            Box::new(move |actual| {
                settle(actual).map_result(move |result| {
                    capacity_released(limits.iter().copied());
                    result
                })
            })
        });
        self
    }

    /// Returns which parts the guard holds apart from the cost that is settled.
    pub(crate) fn part_kinds(&self) -> HeldParts {
        let parts = self.parts.as_ref();
        HeldParts {
            fixed: parts.is_some_and(|parts| parts.fixed.is_some()),
            until_end: self.is_until_end || parts.is_some_and(|parts| parts.until_end.is_some()),
        }
    }

    /// Returns whether there is a cost to settle.
    fn has_cost(&self) -> bool {
        self.settle.is_some() && !self.is_until_end
    }

    /// Adds the guard of fixed costs.
    pub(crate) fn with_fixed_costs(mut self, fixed: Option<Self>) -> Self {
        if fixed.is_some() {
            self.parts.get_or_insert_default().fixed = fixed;
        }
        self
    }

    /// Charges the fixed costs: the request is admitted.
    pub(crate) fn charge_fixed_costs(&mut self) {
        drop(self.parts.as_mut().and_then(|parts| parts.fixed.take()));
    }

    /// Returns the guard of what is settled or charged, and the guard of what is held until the request ends.
    pub(crate) fn split(mut self) -> (Option<Self>, Option<Self>) {
        if self.is_until_end {
            return (None, Some(self));
        }
        let until_end = self.parts.as_mut().and_then(|parts| parts.until_end.take());
        (self.has_cost().then_some(self), until_end)
    }

    /// Returns the held cost of limits that name no unit.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the held costs: [`cost`](Self::cost), and the costs in units.
    #[must_use]
    pub fn costs(&self) -> Costs {
        Costs::from_parts(Some(self.cost), self.units().map(|units| units.costs).unwrap_or_default())
    }

    fn units(&self) -> Option<&HeldUnits> {
        self.parts.as_deref().map(|parts| &parts.units)
    }

    /// Ends the hold and charges `actual`: a number, or [`Costs`].
    ///
    /// Each limit charges its own actual cost: a limit with a [unit](crate::Limit::cost_of) charges 0 if `actual` leaves
    /// out the unit, and another limit charges what it has held if `actual` has no number.
    ///
    /// # Errors
    ///
    /// - No limit names one of the units. The guard then settles the whole held cost, as if it were dropped.
    /// - The store cannot record the charge: the key table is full ([`WhenFull::Deny`](crate::WhenFull::Deny)), or Redis
    ///   is unavailable.
    pub fn settle(mut self, actual: impl Into<Costs>) -> LimiterFuture<()> {
        let actual = actual.into();
        match self.check_units(actual) {
            Ok(()) => self.end(actual),
            Err(error) => self.end(self.costs()).map_result(|_| Err(error)),
        }
    }

    /// Checks that a limit names each unit.
    pub(crate) fn check_units(&self, actual: Costs) -> Result<(), Error> {
        if actual.unit_costs().is_none() || !self.has_cost() {
            return Ok(());
        }
        actual.unit_costs().check(|visit| {
            if let Some(units) = self.units() {
                units.visit(visit);
            }
        })
    }

    /// Ends the hold and charges nothing.
    ///
    /// # Errors
    ///
    /// As for [`settle`](Self::settle).
    pub fn release(mut self) -> LimiterFuture<()> {
        // Dropping the guard of fixed costs would charge them.
        match self.parts.as_mut().and_then(|parts| parts.fixed.take()) {
            None => self.end(Costs::from(0)),
            Some(fixed) => fixed.release().join(self.end(Costs::from(0))).map_result(both_ok),
        }
    }

    /// Adds the guard of what a limit on requests in flight holds.
    fn with_until_end(mut self, until_end: Self) -> Self {
        let parts = self.parts.get_or_insert_default();
        parts.until_end = Self::join(parts.until_end.take(), Some(until_end));
        self
    }

    /// Joins two holds of one decision into one guard.
    pub(crate) fn join(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        let (mut first, mut second) = match (first, second) {
            (Some(first), Some(second)) => (first, second),
            (first, second) => return first.or(second),
        };
        match (first.is_until_end, second.is_until_end) {
            (true, true) => {
                return Some(Self::until_end(first.cost.max(second.cost), move || {
                    first.end(Costs::from(0)).join(second.end(Costs::from(0))).map_result(both_ok)
                }));
            }
            (true, false) => return Some(second.with_until_end(first)),
            (false, true) => return Some(first.with_until_end(second)),
            (false, false) => {}
        }
        let [of_first, of_second] =
            [first.parts.take(), second.parts.take()].map(|parts| parts.map_or_else(Parts::default, |parts| *parts));
        // Both guards are of one request, with one cost in each unit.
        let costs = if of_first.units.costs.is_none() { of_second.units.costs } else { of_first.units.costs };
        let parts = Parts {
            fixed: Self::join(of_first.fixed, of_second.fixed),
            until_end: Self::join(of_first.until_end, of_second.until_end),
            units: HeldUnits { costs, known: [of_first.units.known, of_second.units.known].concat() },
        };
        let mut joined = match (first.settle.is_some(), second.settle.is_some()) {
            // The joined guard checks the units. Each limiter charges those that its limits name.
            (true, true) => Self::of_limits(first.cost.max(second.cost).into(), Vec::new(), move |actual| {
                first.end(actual).join(second.end(actual)).map_result(both_ok)
            }),
            // What is held until the end is never settled, so its cost is not part of the cost that is.
            (true, false) => first,
            (false, true) => second,
            (false, false) => {
                second.cost = first.cost.max(second.cost);
                second
            }
        };
        joined.parts = parts.boxed();
        Some(joined)
    }

    fn end(&mut self, actual: Costs) -> LimiterFuture<()> {
        // Fixed costs are charged when `parts` is dropped.
        let settle = self.settle.take();
        let until_end = self.parts.as_mut().and_then(|parts| parts.until_end.take());
        let settled = settle.map_or_else(|| LimiterFuture::ready(Ok(())), |settle| settle(actual).complete_on_drop());
        match until_end {
            None => settled,
            Some(mut until_end) => settled.join(until_end.end(Costs::from(0))).map_result(both_ok).complete_on_drop(),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Does nothing after an end, which has taken `settle`.
        let whole = self.costs();
        self.end(whole).detach();
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("cost", &self.cost).finish_non_exhaustive()
    }
}

/// A held cost that is released when dropped, unlike [`Held`], which settles the whole cost.
///
/// For a request that may still fail: if its future is dropped meanwhile, the request is not charged.
pub(crate) struct ReleaseOnDrop(Option<Held>);

impl ReleaseOnDrop {
    pub(crate) fn new(held: Option<Held>) -> Self {
        Self(held)
    }

    pub(crate) fn into_held(mut self) -> Option<Held> {
        self.0.take()
    }
}

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            held.release().detach();
        }
    }
}
