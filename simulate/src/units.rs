//! The units in which limits count, and the costs of arrivals in these units.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::traffic::Traffic;
use tower_ratelimit::config::Policy;
use tower_ratelimit::{Costs, Error};

/// What the bursts of a report count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted<'a> {
    /// All limits have a fixed cost.
    Requests,
    /// All limits have this unit.
    Unit(&'a str),
    /// The cost of the arrivals that names no unit.
    Cost,
}

impl<'a> Counted<'a> {
    pub(super) fn of(policies: &'a [Policy]) -> Self {
        let unit = policies.first().and_then(Policy::unit);
        match unit {
            _ if policies.iter().all(|policy| policy.fixed_cost().is_some()) => Self::Requests,
            Some(unit) if policies.iter().all(|policy| policy.unit() == Some(unit)) => Self::Unit(unit),
            _ => Self::Cost,
        }
    }

    /// Returns whether a limit counts the same.
    pub(super) fn is_of(self, policy: &Policy) -> bool {
        match self {
            Self::Requests => policy.fixed_cost().is_some(),
            Self::Unit(unit) => policy.unit() == Some(unit),
            Self::Cost => policy.fixed_cost().is_none() && policy.unit().is_none(),
        }
    }
}

/// For each unit of the policies the costs in its column.
#[derive(Debug)]
pub(super) struct Units(Vec<UnitCosts>);

#[derive(Debug)]
struct UnitCosts {
    unit: &'static str,
    column: usize,
    /// The cost of each distinct value.
    costs: Vec<u64>,
}

impl Units {
    pub(super) fn new(policies: &[Policy], traffic: &Traffic) -> Result<Self, Error> {
        let mut units: Vec<UnitCosts> = Vec::new();
        for policy in policies {
            let Some(unit) = policy.unit() else { continue };
            if units.iter().any(|known| known.unit == unit) {
                continue;
            }
            let refuse = |problem: String| {
                Error::config(format!("the simulation of policy {:?} failed: {problem}", policy.name()))
            };
            if units.len() == Costs::MAX_UNITS {
                let problem = format!("there are more than {} units; remove one of the policies", Costs::MAX_UNITS);
                return Err(refuse(problem));
            }
            let column = traffic.column_index(unit).ok_or_else(|| {
                refuse(format!(
                    "the traffic has no column {unit:?} for the costs in this unit; add it, or remove `unit`"
                ))
            })?;
            let cost = |value: &str| match value.trim() {
                "" => Ok(0),
                value => value
                    .parse()
                    .map_err(|_| refuse(format!("{value:?} in the column {unit:?} is no cost; use whole numbers"))),
            };
            let costs = traffic.distinct(column).map(cost).collect::<Result<_, _>>()?;
            units.push(UnitCosts { unit: interned(unit), column, costs });
        }
        Ok(Self(units))
    }

    /// Returns the costs of a row of the traffic. `cost` is the one that names no unit.
    pub(super) fn costs(&self, cost: u64, row: &[usize]) -> Costs {
        self.0.iter().fold(Costs::from(cost), |costs, unit| costs.add(unit.unit, unit.cost(row)))
    }

    pub(super) fn cost(&self, unit: &str, row: &[usize]) -> u64 {
        self.0.iter().find(|known| known.unit == unit).map_or(0, |known| known.cost(row))
    }
}

impl UnitCosts {
    fn cost(&self, row: &[usize]) -> u64 {
        row.get(self.column).and_then(|value| self.costs.get(*value)).copied().unwrap_or(0)
    }
}

/// Returns the name of a unit for [`Costs`], which names units by static text. Each name is leaked once.
fn interned(unit: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(unit) {
        return known;
    }
    let leaked: &'static str = Box::leak(unit.into());
    names.insert(leaked);
    leaked
}
