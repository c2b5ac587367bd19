use std::time::Duration;

use crate::decision::{AcquireOptions, Costs, Unit, UnitCosts};

/// The cost that a limit charges for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
// Words without padding, which the compiler would copy apart: row "hold and settle" of benches/figures.md.
#[repr(u64)]
pub(crate) enum LimitCost {
    /// The number of the request.
    #[default]
    OfRequest,
    /// This cost for every request.
    Fixed(u64),
    /// The cost of the request in this unit.
    OfUnit(Unit),
}

/// Out of line: the loop would force the options of every decision into memory. `scripts/instructions` counts the row
/// `three-limits`.
#[cold]
#[inline(never)]
fn cost_in(units: UnitCosts, unit: Unit) -> u64 {
    units.of(unit)
}

impl LimitCost {
    /// Returns the options of a decision for this limit: with its own cost.
    ///
    /// A fixed cost is known at admission, so it is charged where a cost of the request is held. No start is scheduled
    /// then, because a hold starts now.
    #[inline]
    pub(crate) fn options(self, options: AcquireOptions) -> AcquireOptions {
        match self {
            Self::OfRequest => options,
            Self::Fixed(cost) if options.hold && !options.holds_fixed_costs => {
                AcquireOptions { cost, hold: false, ..options }.max_delay(Duration::ZERO)
            }
            Self::Fixed(cost) => AcquireOptions { cost, ..options },
            Self::OfUnit(unit) => AcquireOptions { cost: cost_in(options.units, unit), ..options },
        }
    }

    /// Returns the cost on this limit of a request that holds nothing.
    // Not as a part of the options, which would then be in memory: row "hot key" of benches/figures.md.
    #[inline]
    pub(crate) fn charged(self, options: &AcquireOptions) -> u64 {
        match self {
            Self::OfRequest => options.cost,
            Self::Fixed(cost) => cost,
            Self::OfUnit(unit) => cost_in(options.units, unit),
        }
    }

    /// Returns the actual cost on this limit, which has held `held`. A fixed cost is settled apart.
    pub(crate) fn actual(self, actual: &Costs, held: u64) -> u64 {
        match self {
            Self::OfRequest => actual.number().unwrap_or(held),
            Self::Fixed(_) => held,
            Self::OfUnit(unit) => actual.of_unit(unit),
        }
    }

    /// Returns what of the actual cost on this limit exceeds `charge_before`, which the request was charged before. The
    /// limit has held `held` beyond that.
    pub(crate) fn actual_beyond(self, charge_before: u64, actual: &Costs, held: u64) -> u64 {
        self.actual(actual, held.saturating_add(charge_before)).saturating_sub(charge_before)
    }

    pub(crate) fn is_fixed(self) -> bool {
        matches!(self, Self::Fixed(_))
    }

    /// Returns the unit, if the limit names one.
    pub(crate) fn unit(self) -> Option<&'static str> {
        if let Self::OfUnit(unit) = self { Some(unit.name()) } else { None }
    }
}
