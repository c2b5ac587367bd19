//! The costs of one request: a number, and a cost in each of several units.

use std::fmt;

use super::AcquireOptions;
use super::unit::Unit;
use crate::error::Error;

/// The costs of one request in several units: requests, input tokens, output tokens.
///
/// Each limit charges its own cost:
///
/// | Limit | Cost |
/// |---|---|
/// | with a unit ([`Limit::cost_of`](crate::Limit::cost_of)) | the cost of that unit; **0 if the unit is left out** |
/// | with a [fixed cost](crate::Limit::fixed_cost) | the fixed cost |
/// | any other | the number: 1, unless the costs are made from another one by `Costs::from(5)` |
///
/// A unit that no limit of the limiter names is an error, and nothing is charged. [`settle`](crate::limiter::Held::settle)
/// also takes costs. Without a number they charge a limit without a unit what it has held.
///
/// An integer converts into costs. It is the cost of every limit that names no unit.
///
/// ```
/// use tower_ratelimit::{Costs, Limit, Limiter, Memory, Quota, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Memory::new((
///     Limit::new("requests", TokenBucket::new(Quota::per_minute(60))),
///     Limit::new("input", TokenBucket::new(Quota::per_minute(40_000))).cost_of("input"),
///     Limit::new("output", TokenBucket::new(Quota::per_minute(8_000))).cost_of("output"),
/// ));
///
/// let outcome = limiter.hold("alice", Costs::new().add("input", 1_200).add("output", 4_000)).await?;
/// let held = outcome.held.expect("all limits allow the request");
/// held.settle(Costs::new().add("input", 1_180).add("output", 713)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[must_use]
pub struct Costs {
    number: Option<u64>,
    units: UnitCosts,
}

impl Costs {
    /// The maximum number of units of one request. An acquire call with more of them returns an error.
    pub const MAX_UNITS: usize = 4;

    /// Creates costs without a number and without units.
    pub const fn new() -> Self {
        Self { number: None, units: UnitCosts::NONE }
    }

    #[inline]
    pub(crate) const fn from_parts(number: Option<u64>, units: UnitCosts) -> Self {
        Self { number, units }
    }

    /// Adds `cost` in a unit. Costs that are added in the same unit add up. A cost of 2^56 or more counts as the largest.
    pub fn add(mut self, unit: &'static str, cost: u64) -> Self {
        self.units.add(Unit::named(unit), cost);
        self
    }

    /// Returns the cost of limits that name no unit, if it is set.
    pub const fn number(&self) -> Option<u64> {
        self.number
    }

    /// Returns the cost in a unit, 0 if it is left out.
    pub fn of(&self, unit: &str) -> u64 {
        self.units.iter().find(|(known, _)| *known == unit).map_or(0, |(_, cost)| cost)
    }

    /// Returns the units with their costs.
    pub fn units(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.units.iter()
    }

    /// Returns the cost in a unit, 0 if it is left out.
    pub(crate) fn of_unit(&self, unit: Unit) -> u64 {
        self.units.of(unit)
    }

    #[inline]
    pub(crate) const fn unit_costs(&self) -> UnitCosts {
        self.units
    }

    /// Returns the costs with the number of `other`, if they have none.
    pub(crate) fn or_number(self, other: Self) -> Self {
        Self { number: self.number.or(other.number), ..self }
    }

    /// Returns the costs without those in units that are not `known`.
    pub(crate) fn only_in(self, known: impl Fn(&'static str) -> bool) -> Self {
        let mut units = UnitCosts::NONE;
        for (unit, cost) in self.units.entries().filter(|(unit, _)| known(unit.name())) {
            units.add(unit, cost);
        }
        Self { units, ..self }
    }

    /// Returns what exceeds `before`, in each unit.
    pub(crate) fn beyond(self, before: Self) -> Self {
        let mut units = UnitCosts::NONE;
        for (unit, cost) in self.units.entries() {
            units.add(unit, cost.saturating_sub(before.units.of(unit)));
        }
        let number = self.number.map(|number| number.saturating_sub(before.number.unwrap_or_default()));
        Self { number, units }
    }

    /// Returns the greater of both costs, in each unit.
    pub(crate) fn max(self, other: Self) -> Self {
        self.plus(other.beyond(self))
    }

    /// Returns the sum of both costs, in each unit. If one of the costs has no number, the sum has the other's number.
    pub(crate) fn plus(mut self, other: Self) -> Self {
        for (unit, cost) in other.units.entries() {
            self.units.add(unit, cost);
        }
        self.number = match (self.number, other.number) {
            (Some(number), Some(other)) => Some(number.saturating_add(other)),
            (number, other) => number.or(other),
        };
        self
    }
}

/// The cost of every limit that names no unit. This is the only conversion from an integer, so that an integer literal
/// needs no suffix.
impl From<u64> for Costs {
    #[inline]
    fn from(number: u64) -> Self {
        Self { number: Some(number), units: UnitCosts::NONE }
    }
}

impl From<Costs> for AcquireOptions {
    /// Creates options with these costs, and otherwise the defaults.
    #[inline]
    fn from(costs: Costs) -> Self {
        Self { units: costs.units, ..Self::cost(costs.number.unwrap_or(1)) }
    }
}

impl fmt::Display for Costs {
    /// Writes the number, and each unit with its cost: `1, input 1200, output 4000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(number) = self.number {
            write!(f, "{number}")?;
            separator = ", ";
        }
        for (unit, cost) in self.units() {
            write!(f, "{separator}{unit} {cost}")?;
            separator = ", ";
        }
        Ok(())
    }
}

impl fmt::Debug for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Costs({self})")
    }
}

/// The costs of a request in units: a word for each unit, with its number and its cost.
///
/// All zero without units, and in the order of the units' numbers, so that equal costs are equal values. The options of
/// an acquire call contain this value, and are copied for each limit. With a unit and a cost side by side, row `unit` of
/// `scripts/instructions` has 987 instructions instead of 935.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct UnitCosts([u64; Costs::MAX_UNITS]);

/// The bits of a cost. All ones stand for this cost and any greater one, which no limit allows.
const COST_BITS: u32 = 56;
const MAX_COST: u64 = (1 << COST_BITS) - 1;

fn unpack(word: u64) -> (Unit, u64) {
    let cost = word & MAX_COST;
    (Unit((word >> COST_BITS) as u8), if cost == MAX_COST { u64::MAX } else { cost })
}

impl UnitCosts {
    pub(crate) const NONE: Self = Self([0; Costs::MAX_UNITS]);

    #[inline]
    pub(crate) const fn is_none(&self) -> bool {
        self.0[0] == 0
    }

    fn entries(self) -> impl Iterator<Item = (Unit, u64)> {
        self.0.into_iter().take_while(|word| *word != 0).map(unpack)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = (&'static str, u64)> {
        self.entries().map(|(unit, cost)| (unit.name(), cost))
    }

    fn add(&mut self, unit: Unit, cost: u64) {
        let pack = |cost: u64| u64::from(unit.0) << COST_BITS | cost.min(MAX_COST);
        let after = self.0.iter().position(|word| *word == 0 || unpack(*word).0 >= unit);
        match after {
            Some(index) if self.0[index] != 0 && unpack(self.0[index]).0 == unit => {
                self.0[index] = pack(unpack(self.0[index]).1.saturating_add(cost));
            }
            Some(index) if self.0[Costs::MAX_UNITS - 1] == 0 => {
                self.0.copy_within(index..Costs::MAX_UNITS - 1, index + 1);
                self.0[index] = pack(cost);
            }
            // The largest number of a unit, so the words stay sorted. `check` makes an error of it.
            _ => self.0[Costs::MAX_UNITS - 1] = u64::from(Unit::TOO_MANY.0) << COST_BITS,
        }
    }

    /// Returns the cost in a unit, 0 if it is left out.
    pub(crate) fn of(self, unit: Unit) -> u64 {
        self.entries().find(|(known, _)| *known == unit).map_or(0, |(_, cost)| cost)
    }

    /// Returns whether no cost is smaller than in `other`.
    #[inline]
    pub(crate) fn cover(&self, other: &Self) -> bool {
        other.is_none() || other.entries().all(|(unit, cost)| self.of(unit) >= cost)
    }

    /// Checks that a limit names each unit. `visit_units` visits the units of all limits.
    ///
    /// # Errors
    ///
    /// Names a unit that no limit names, and lists the units that there are.
    #[cold]
    pub(crate) fn check(self, visit_units: &dyn Fn(&mut dyn FnMut(&'static str))) -> Result<(), Error> {
        if self.entries().any(|(unit, _)| unit == Unit::TOO_MANY) {
            return Err(Error::config(format!(
                "costs of a request: there are more than {} units, or the names of units in this process are too many; leave out \
                 those that no limit names",
                Costs::MAX_UNITS
            )));
        }
        let is_known = |unit| {
            let mut is_known = false;
            visit_units(&mut |known| is_known |= known == unit);
            is_known
        };
        let Some((unknown, _)) = self.iter().find(|(unit, _)| !is_known(*unit)) else { return Ok(()) };
        let mut known = Vec::new();
        visit_units(&mut |unit| known.push(unit));
        known.sort_unstable();
        known.dedup();
        Err(Error::config(if known.is_empty() {
            format!(
                "costs of a request: no limit names the unit {unknown:?}, and the limiter has no units; name one by \
                 `Limit::cost_of`"
            )
        } else {
            format!(
                "costs of a request: no limit names the unit {unknown:?}; use one of {known:?}, or name it by \
                 `Limit::cost_of`"
            )
        }))
    }
}

impl fmt::Debug for UnitCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
