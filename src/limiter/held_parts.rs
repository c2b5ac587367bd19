//! The parts of a guard: records of a store, or calls.

use std::cell::Cell;
use std::sync::Arc;

use super::future::LimiterFuture;
use crate::clock::Timestamp;
#[cfg(doc)]
use crate::decision::AcquireOptions;
use crate::decision::{Costs, UnitCosts};
use crate::error::Error;
use crate::limit::LimitCost;

/// What is held. A thread keeps the allocation of an ended guard for a later one, so a guard allocates nothing: rows "hold and
/// settle" and "in flight" of benches/figures.md.
#[derive(Default)]
#[allow(clippy::struct_field_names, reason = "parts are what it has")]
pub(super) struct Parts {
    /// The cost of limits that name no unit, if there is a cost to settle.
    pub(super) cost: Option<u64>,
    pub(super) units: UnitCosts,
    /// The units of the limiter.
    pub(super) known_units: Vec<&'static str>,
    pub(super) parts: Vec<Part>,
    /// The store that adds what it holds.
    pub(super) store: Option<Arc<dyn HoldStore>>,
    /// The limits for which requests wait that the end of the hold wakes.
    pub(super) wakes: Option<Arc<[u64]>>,
}

/// What one limit, or one limiter, holds.
pub(super) enum Part {
    /// Ended by a store, as this record says.
    Entry(Arc<dyn HoldStore>, HeldEntry),
    /// Ended by a limiter of a user's own, or in another way.
    Call { kind: HoldKind, amount: u64, end: EndCall },
}

pub(super) type EndCall = Box<dyn FnOnce(Costs) -> LimiterFuture<()> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// As wide as a word, as `LimitCost` is.
#[repr(u64)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub enum HoldKind {
    /// Charged by its actual cost.
    Settled,
    /// A fixed cost, which [`hold_all_costs`](AcquireOptions::hold_all_costs) holds. Charged whole, or released.
    Fixed,
    /// Held by a limit on requests in flight, and never charged.
    UntilEnd,
}

/// A store whose holds are records.
pub(crate) trait HoldStore: Send + Sync {
    /// Ends a hold, and charges the key. The time of the settlement in a store is kept by the store's address.
    fn end(
        &self,
        entry: &HeldEntry,
        charge: HeldCharge<'_>,
        settled_at: &mut Option<(usize, Timestamp)>,
    ) -> Result<(), Error>;
}

/// The record of a hold on one limit: what its settlement needs in place of the key.
#[derive(Clone, Copy, Debug)]
pub struct HeldEntry {
    /// The number of the limit's table.
    pub(crate) table: u64,
    /// The hash of the key.
    pub(crate) key: u64,
    /// The number of what the store keeps of the hold beside the amount, zero if it keeps nothing.
    pub(crate) id: u64,
    /// In microseconds. Of a cost that is held until the end, the time at which it ends at the latest; of any other, the
    /// time of the charge, if the hold has expired. Zero if there is none.
    pub(crate) at: u64,
    /// The held cost.
    pub(crate) amount: u64,
    /// What the limit costs.
    pub(crate) cost: LimitCost,
    /// What was charged for the request before. The settlement charges only what exceeds it.
    pub(crate) charge_before: u64,
    pub(crate) kind: HoldKind,
}

/// What the end of a hold charges on each limit.
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
#[derive(Clone, Copy)]
pub enum HeldCharge<'a> {
    Nothing,
    Held,
    /// The actual costs of the request, beyond what was charged for it before.
    Actual(&'a Costs),
}

impl HeldEntry {
    /// Returns what a limit with this cost holds.
    pub(crate) const fn kind_of(cost: LimitCost, until_end: bool) -> HoldKind {
        match cost {
            _ if until_end => HoldKind::UntilEnd,
            LimitCost::Fixed(_) => HoldKind::Fixed,
            _ => HoldKind::Settled,
        }
    }

    pub(crate) fn is_until_end(&self) -> bool {
        self.kind == HoldKind::UntilEnd
    }

    /// Returns what the limit charges.
    pub(crate) fn charged(&self, charge: HeldCharge<'_>) -> u64 {
        match charge {
            _ if self.is_until_end() => 0,
            HeldCharge::Nothing => 0,
            HeldCharge::Held => self.amount,
            HeldCharge::Actual(actual) => self.cost.actual_beyond(self.charge_before, actual, self.amount),
        }
    }
}

impl Part {
    pub(super) fn kind(&self) -> HoldKind {
        match self {
            Self::Entry(_, entry) => entry.kind,
            Self::Call { kind, .. } => *kind,
        }
    }

    fn amount(&self) -> u64 {
        match self {
            Self::Entry(_, entry) => entry.amount,
            Self::Call { amount, .. } => *amount,
        }
    }
}

/// What the parts that have ended return.
#[derive(Default)]
pub(super) struct Ended {
    /// The time of the settlement in a store, by the store's address.
    settled_at: Option<(usize, Timestamp)>,
    /// The first error of a store.
    error: Option<Error>,
    calls: Option<LimiterFuture<()>>,
}

impl Ended {
    /// Ends a hold. `actual` are the costs that are settled; `admitted` says whether fixed costs are charged.
    #[inline]
    pub(super) fn end(&mut self, part: Part, actual: &Costs, admitted: bool) {
        match part {
            Part::Entry(store, entry) => {
                let charge = match entry.kind {
                    HoldKind::Settled => HeldCharge::Actual(actual),
                    HoldKind::Fixed if admitted => HeldCharge::Held,
                    HoldKind::Fixed | HoldKind::UntilEnd => HeldCharge::Nothing,
                };
                if let Err(error) = store.end(&entry, charge, &mut self.settled_at) {
                    self.error.get_or_insert(error);
                }
            }
            Part::Call { kind, end, .. } => {
                let end = end(match kind {
                    HoldKind::Settled => *actual,
                    HoldKind::Fixed => Costs::from(u64::from(admitted)),
                    HoldKind::UntilEnd => Costs::from(0),
                });
                self.calls = Some(match self.calls.take() {
                    None => end,
                    Some(others) => others.and(end),
                });
            }
        }
    }

    #[inline]
    pub(super) fn is_ok(&self) -> bool {
        self.error.is_none() && self.calls.is_none()
    }

    pub(super) fn detach_calls(&mut self) {
        if let Some(calls) = self.calls.take() {
            calls.detach();
        }
    }

    pub(super) fn into_future(self) -> LimiterFuture<()> {
        let result = LimiterFuture::ready(self.error.map_or(Ok(()), Err));
        match self.calls {
            None => result,
            Some(calls) => result.and(calls),
        }
    }
}

thread_local! {
    static SPARE: Cell<Option<Box<Parts>>> = const { Cell::new(None) };
}

impl Parts {
    /// The maximum capacity of a list that a thread keeps.
    const MAX_CAPACITY: usize = 16;

    /// Returns parts without a hold, which take the allocation of an ended guard.
    #[inline]
    #[allow(clippy::unnecessary_box_returns, reason = "the allocation is kept")]
    pub(super) fn new(cost: Option<u64>) -> Box<Self> {
        // A thread that ends has no spare one.
        let mut parts = SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default();
        parts.cost = cost;
        parts
    }

    /// Keeps the allocation of parts that have ended.
    #[inline]
    pub(super) fn keep(mut self: Box<Self>) {
        if self.parts.capacity() <= Self::MAX_CAPACITY {
            (self.units, self.store, self.wakes) = (UnitCosts::NONE, None, None);
            self.known_units.clear();
            let _ = SPARE.try_with(|spare| spare.set(Some(self)));
        }
    }

    /// Checks that a limit names each unit.
    pub(super) fn check_units(&self, actual: Costs) -> Result<(), Error> {
        let units = actual.unit_costs();
        if self.cost.is_none() || units.is_none() {
            return Ok(());
        }
        units.check(&|visit| self.all_known_units().for_each(visit))
    }

    /// Returns the units in which the guard can be settled, some more than once.
    fn all_known_units(&self) -> impl Iterator<Item = &'static str> {
        self.known_units.iter().copied().chain(self.units.iter().map(|(unit, _)| unit))
    }

    /// Returns the part of the costs that this guard settles. A guard that is joined with it can know other units.
    pub(super) fn known_costs(&self, actual: Costs) -> Costs {
        actual.only_in(|unit| self.all_known_units().any(|known| known == unit))
    }

    pub(super) fn costs(&self) -> Costs {
        Costs::from_parts(Some(self.cost()), self.units)
    }

    /// Without a cost to settle, the largest one that is held until the end.
    pub(super) fn cost(&self) -> u64 {
        let until_end = || self.parts.iter().filter(|part| part.kind() == HoldKind::UntilEnd).map(Part::amount);
        self.cost.unwrap_or_else(|| until_end().max().unwrap_or(0))
    }
}
