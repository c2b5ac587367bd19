use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::capacity::capacity_released;
use super::future::LimiterFuture;
use super::held_parts::{EndCall, Ended, HeldEntry, HoldKind, HoldStore, Part, Parts};
#[cfg(doc)]
use crate::decision::AcquireOptions;
use crate::decision::{Costs, HeldParts};
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
/// A hold with an [id](AcquireOptions::id) that has expired in `Redis` is charged under the tier of the request that finds
/// it.
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
pub struct Held(Option<Box<Parts>>);

impl Held {
    /// Creates a guard for a custom limiter. The guard calls `settle` once, with the actual cost.
    ///
    /// The limiter has no units: use [`with_costs`](Self::with_costs) for one that has. To wrap the guard of another
    /// limiter, use [`map_settle`](Self::map_settle): a new guard would hold less.
    pub fn new(cost: u64, settle: impl FnOnce(u64) -> LimiterFuture<()> + Send + Sync + 'static) -> Self {
        let settle = move |actual: Costs| settle(actual.number().unwrap_or(cost));
        Self::of_call(Some(cost), HoldKind::Settled, cost, Box::new(settle))
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
        let cost = costs.number().unwrap_or(1);
        Self::of_call(Some(cost), HoldKind::Settled, cost, Box::new(settle))
            .with_units(costs, |visit| known.into_iter().for_each(visit))
    }

    /// Creates the guard of a cost that is held until the request ends, for a custom limit on requests in flight.
    ///
    /// The guard charges nothing. It calls `release` once: when it is settled, released or dropped. Return it only to
    /// callers that keep it ([`AcquireOptions::keep_guard`]).
    pub fn until_end(cost: u64, release: impl FnOnce() -> LimiterFuture<()> + Send + Sync + 'static) -> Self {
        Self::of_call(None, HoldKind::UntilEnd, cost, Box::new(move |_| release()))
    }

    fn of_call(cost: Option<u64>, kind: HoldKind, amount: u64, end: EndCall) -> Self {
        let mut parts = Parts::new(cost);
        parts.parts.push(Part::Call { kind, amount, end });
        Self(Some(parts))
    }

    /// Creates a guard to which a store [adds](Self::add) what it holds. `cost` is the cost to settle, if there is one.
    #[inline]
    pub(crate) fn of_store(cost: Option<u64>, store: Arc<dyn HoldStore>) -> Self {
        let mut parts = Parts::new(cost);
        parts.store = Some(store);
        Self(Some(parts))
    }

    /// Adds what a limit of the store holds.
    #[inline]
    pub(crate) fn add(&mut self, entry: HeldEntry) {
        let Some(parts) = self.0.as_mut().filter(|_| !entry.is_until_end() || entry.amount > 0) else {
            return;
        };
        // The first part takes the store, so that one part counts no reference.
        let store = match parts.parts.last() {
            Some(Part::Entry(store, _)) => Some(Arc::clone(store)),
            _ => parts.store.take(),
        };
        if let Some(store) = store {
            parts.parts.push(Part::Entry(store, entry));
        }
    }

    /// Reverses the order in which the parts end.
    pub(crate) fn reverse(&mut self) {
        if let Some(parts) = &mut self.0 {
            parts.parts.reverse();
        }
    }

    /// Returns whether neither a cost is to be settled nor anything held.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|parts| parts.cost.is_none() && parts.parts.is_empty())
    }

    /// Sets the costs in units, and adds the units of the limiter that `visit_units` visits.
    pub(crate) fn with_units(mut self, costs: Costs, visit_units: impl FnOnce(&mut dyn FnMut(&'static str))) -> Self {
        if let Some(parts) = &mut self.0 {
            parts.units = costs.unit_costs();
            visit_units(&mut |unit| parts.known_units.push(unit));
        }
        self
    }

    /// Adds fixed costs. The guard calls `end` once: with `true` to charge the costs.
    #[cfg(feature = "redis")]
    pub(crate) fn with_fixed_costs(
        mut self,
        end: impl FnOnce(bool) -> LimiterFuture<()> + Send + Sync + 'static,
    ) -> Self {
        let end = Box::new(move |charge: Costs| end(charge != Costs::from(0)));
        self.push(Part::Call { kind: HoldKind::Fixed, amount: 1, end });
        self
    }

    /// Replaces how the guard settles, and keeps everything else that it holds: for a limiter around another one.
    ///
    /// Instead of charging the actual costs, the guard calls `settle` once, with the guard of the cost that is settled
    /// and the actual costs, without those in units that only other limiters of a [`Chained`](super::Chained) name. What
    /// other limits hold (requests [in flight](crate::InFlight), fixed costs) ends as before. A guard without a cost to
    /// settle never calls `settle`.
    ///
    /// ```
    /// use tower_ratelimit::limiter::{LimiterFuture, Outcome};
    /// use tower_ratelimit::{AcquireOptions, Limiter};
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
        if let Some((inner, cost)) = self.take_settled() {
            let end = Box::new(move |actual| {
                let known = inner.0.as_ref().map_or(actual, |parts| parts.known_costs(actual));
                settle(inner, known)
            });
            self.push(Part::Call { kind: HoldKind::Settled, amount: cost, end });
        }
        self
    }

    /// Takes the parts that are settled out of the guard of a cost. Returns them as a guard, and the cost.
    fn take_settled(&mut self) -> Option<(Self, u64)> {
        let outer = self.0.as_mut()?;
        let cost = outer.cost?;
        let mut inner = Parts::new(Some(cost));
        (inner.units, inner.known_units) = (outer.units, outer.known_units.clone());
        inner.parts.extend(outer.parts.extract_if(.., |part| part.kind() == HoldKind::Settled));
        Some((Self(Some(inner)), cost))
    }

    fn push(&mut self, part: Part) {
        if let Some(parts) = &mut self.0 {
            parts.parts.push(part);
        }
    }

    /// Lets the end of the hold wake the requests that wait for these limits.
    pub(crate) fn waking(mut self, limits: Arc<[u64]>) -> Self {
        if let Some(parts) = &mut self.0 {
            parts.wakes = Some(limits);
        }
        self
    }

    /// Returns which parts the guard holds apart from the cost that is settled.
    pub(crate) fn part_kinds(&self) -> HeldParts {
        let mut kinds = HeldParts::NONE;
        for part in self.0.iter().flat_map(|parts| &parts.parts) {
            kinds.fixed |= part.kind() == HoldKind::Fixed;
            kinds.until_end |= part.kind() == HoldKind::UntilEnd;
        }
        kinds
    }

    /// Charges the fixed costs: the request is admitted.
    pub(crate) fn charge_fixed_costs(&mut self) {
        if let Some(parts) = &mut self.0 {
            let mut ended = Ended::default();
            for part in parts.parts.extract_if(.., |part| part.kind() == HoldKind::Fixed) {
                ended.end(part, &Costs::new(), true);
                // Each at once: an algorithm that panics in a later part loses none.
                ended.detach_calls();
            }
        }
    }

    /// Returns the guard of what is settled or charged, and the guard of what is held until the request ends.
    pub(crate) fn split(mut self) -> (Option<Self>, Option<Self>) {
        let Some(parts) = &mut self.0 else { return (None, None) };
        let is_until_end = |part: &mut Part| part.kind() == HoldKind::UntilEnd;
        if parts.cost.is_none() {
            return (None, Some(self));
        }
        if !parts.parts.iter_mut().any(is_until_end) {
            return (Some(self), None);
        }
        let mut until_end = Parts::new(None);
        until_end.parts.extend(parts.parts.extract_if(.., is_until_end));
        until_end.wakes.clone_from(&parts.wakes);
        (Some(self), Some(Self(Some(until_end))))
    }

    /// Returns the held cost of limits that name no unit.
    pub fn cost(&self) -> u64 {
        self.0.as_ref().map_or(0, |parts| parts.cost())
    }

    /// Returns the held costs: [`cost`](Self::cost), and the costs in units.
    pub fn costs(&self) -> Costs {
        self.0.as_ref().map_or(Costs::from(0), |parts| parts.costs())
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
            Ok(()) => self.end(&actual, true),
            Err(error) => self.end(&self.costs(), true).map_result(|_| Err(error)),
        }
    }

    /// Checks that a limit names each unit.
    pub(crate) fn check_units(&self, actual: Costs) -> Result<(), Error> {
        self.0.as_ref().map_or(Ok(()), |parts| parts.check_units(actual))
    }

    /// Ends the hold and charges nothing.
    ///
    /// # Errors
    ///
    /// As for [`settle`](Self::settle).
    pub fn release(mut self) -> LimiterFuture<()> {
        self.end(&Costs::from(0), false)
    }

    /// Joins two holds of one decision into one guard.
    pub(crate) fn join(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        let (mut first, mut second) = match (first, second) {
            (Some(first), Some(second)) => (first, second),
            (first, second) => return first.or(second),
        };
        if let (Some(into), Some(mut from)) = (&mut first.0, second.0.take()) {
            into.parts.append(&mut from.parts);
            into.cost = into.cost.max(from.cost);
            // Both guards are of one request, with one cost in each unit. Each limiter charges those that its limits name.
            if into.units.is_none() {
                into.units = from.units;
            }
            into.known_units.append(&mut from.known_units);
            let wakes = [into.wakes.take(), from.wakes.take()];
            into.wakes = match wakes {
                [Some(first), Some(second)] => Some([&*first, &*second].concat().into()),
                [first, second] => first.or(second),
            };
            from.keep();
        }
        Some(first)
    }

    /// Ends all parts, once. `actual` are the costs that are settled; `admitted` says whether fixed costs are charged.
    fn end(&mut self, actual: &Costs, admitted: bool) -> LimiterFuture<()> {
        let (mut ended, mut panic) = (Ended::default(), None);
        self.reverse();
        while let Some(part) = self.0.as_mut().and_then(|parts| parts.parts.pop()) {
            // A panic, of a custom algorithm for example, must not leave the other parts held.
            let end = AssertUnwindSafe(|| ended.end(part, actual, admitted));
            panic = catch_unwind(end).err().or(panic);
        }
        let Some(mut parts) = self.0.take() else { return LimiterFuture::ready(Ok(())) };
        let wakes = parts.wakes.take();
        parts.keep();
        // The common end: no future is moved.
        if wakes.is_none() && ended.is_ok() && panic.is_none() {
            return LimiterFuture::ready(Ok(()));
        }
        let ended = ended.into_future();
        let ended = match wakes {
            None => ended.complete_on_drop(),
            Some(limits) => {
                let woken = move |result| {
                    capacity_released(limits.iter().copied());
                    result
                };
                ended.map_result(woken).complete_on_drop()
            }
        };
        // In a drop while the thread panics, a second panic would end the process.
        if let Some(panic) = panic.filter(|_| !std::thread::panicking()) {
            ended.detach();
            resume_unwind(panic);
        }
        ended
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Nothing after an end, which has taken the parts.
        if self.0.is_some() {
            self.end(&self.costs(), true).detach();
        }
    }
}

impl_debug!(Held |held| { cost: held.cost() });

/// A held cost that is released when dropped, unlike [`Held`], which settles the whole cost.
///
/// For a request that may still fail, and for a start that no request has used yet: if its future is dropped meanwhile, the
/// request is not charged.
pub(crate) struct ReleaseOnDrop(Option<Held>);

impl ReleaseOnDrop {
    pub(crate) fn new(held: Option<Held>) -> Self {
        Self(held)
    }

    pub(crate) fn held_mut(&mut self) -> Option<&mut Held> {
        self.0.as_mut()
    }

    pub(crate) fn into_held(mut self) -> Option<Held> {
        self.0.take()
    }
}

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            // An error is ignored: the store frees the held cost when the hold expires.
            held.release().detach();
        }
    }
}
