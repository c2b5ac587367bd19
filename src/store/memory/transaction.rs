//! The decision over any number of limits, of any types: all limits allow, or none is charged.
//!
//! All limits are locked, in the order of their tables. Then the transaction decides on their states, and charges or holds,
//! while no other thread sees any of them.

use std::convert::Infallible;
use std::time::Duration;

use super::part::Part;
use super::table::TableFull;
use super::transaction_limit::read_clock;
use crate::clock::{Clock, Timestamp};
use crate::decision::{AcquireOptions, Decision, LimitStatus, Verdict};
use crate::store::inner::{
    Counting, DecisionPart, HasReading, HeldEntry, LimitNumbers, LimitReading, Plan, ReadMode, ShareRole,
};

/// One limit of a decision: what was read, and the numbers after a charge.
#[derive(Clone, Copy)]
pub(super) struct LimitStep<'a> {
    pub(super) part: &'a dyn Part,
    reading: LimitReading,
    /// `None` if nothing was charged.
    numbers: Option<LimitNumbers>,
    /// The limit is a shadow or a share, and its table has no slot for the key.
    has_no_slot: bool,
}

impl<'a> LimitStep<'a> {
    pub(super) fn new(part: &'a dyn Part) -> Self {
        Self { part, reading: LimitReading::EMPTY, numbers: None, has_no_slot: false }
    }

    /// Returns the numbers after the decision.
    #[inline]
    fn numbers(&self) -> LimitNumbers {
        self.numbers.unwrap_or(self.reading.numbers())
    }
}

impl HasReading for LimitStep<'_> {
    #[inline]
    fn reading(&self) -> &LimitReading {
        &self.reading
    }

    #[inline]
    fn reading_mut(&mut self) -> &mut LimitReading {
        &mut self.reading
    }
}

/// A decision over the limits that apply.
pub(super) struct Transaction<'a> {
    steps: &'a mut [LimitStep<'a>],
    options: AcquireOptions,
    now: Timestamp,
    /// The limits and keys whose overdue requests have ended. The caller announces their capacity without the locks.
    ended: &'a mut Vec<(u64, u64)>,
}

impl<'a> Transaction<'a> {
    /// Locks all parts. `read_at` is the time that was read before.
    pub(super) fn new(
        steps: &'a mut [LimitStep<'a>],
        options: AcquireOptions,
        read_at: Timestamp,
        clock: &dyn Clock,
        ended: &'a mut Vec<(u64, u64)>,
    ) -> Self {
        let last = lock_all(steps);
        let now = if read_at.as_micros() < last { read_clock(clock) } else { read_at };
        for step in &*steps {
            step.part.start(now);
        }
        Self { steps, options, now, ended }
    }

    /// Decides, and charges or holds the cost if all limits allow. Returns the limits on which the cost is held as well.
    pub(super) fn acquire(mut self) -> (Decision, Vec<HeldEntry>) {
        for step in &*self.steps {
            step.part.end_due(self.now, self.ended);
        }
        let plan = loop {
            let plan = self.read_all(ReadMode::IfDenied);
            if plan.verdict.is_allowed() && self.readings().any(|reading| reading.counting == Counting::DecidesOnly)
                // Such a limit charges nothing, so no slot is searched for.
                && let Some(full) = self.find_full(|reading| reading.counting == Counting::DecidesOnly)
            {
                return (table_full_decision(full, self.now), Vec::new());
            }
            match self.ensure_slots(&plan) {
                Ok(true) => break plan,
                Ok(false) => {}
                Err(full) => return (table_full_decision(full, self.now), Vec::new()),
            }
        };
        for step in &*self.steps {
            if let Some(delay) = plan.charge_of(&step.reading) {
                step.part.prepare(&step.reading, delay);
            }
        }
        for step in &mut *self.steps {
            step.numbers = plan.charge_of(&step.reading).map(|_| step.part.commit(&step.reading));
        }
        let decision = self.decide(&plan);
        let held = if plan.holds { self.take_holds(&plan) } else { Vec::new() };
        (decision, held)
    }

    /// Returns the decision of [`acquire`](Self::acquire) without charging.
    pub(super) fn peek(mut self) -> Decision {
        for step in &*self.steps {
            step.part.end_due(self.now, self.ended);
        }
        loop {
            let plan = self.read_all(ReadMode::Snapshot);
            if let Some(step) = self.share_without_slot(&plan) {
                step.has_no_slot = true;
                continue;
            }
            let full = if plan.verdict.is_allowed() { self.find_full(|_| true) } else { None };
            return full.map_or_else(|| self.decide(&plan), |full| table_full_decision(full, self.now));
        }
    }

    fn readings(&self) -> impl Iterator<Item = &LimitReading> {
        self.steps.iter().map(|step| &step.reading)
    }

    /// Reads all limits, and returns what they decide together.
    #[inline]
    fn read_all(&mut self, mode: ReadMode) -> Plan {
        let now = self.now;
        let mode = if self.steps.len() > 1 { ReadMode::Together } else { mode };
        for step in &mut *self.steps {
            step.reading = step.part.read(now, mode);
            if step.has_no_slot {
                step.reading = step.reading.without_slot();
            }
        }
        let read_later = |steps: &mut [LimitStep<'_>], blocked| {
            let later = now.saturating_add(blocked);
            Ok::<_, Infallible>(steps.iter().map(|step| step.part.read(later, ReadMode::Together)).collect())
        };
        let Ok(plan) = Plan::of(self.steps, self.options, read_later);
        plan
    }

    /// Finds a slot for each key that the plan charges. Returns `false` if the limits must be read again, because a shadow or
    /// a share has no slot.
    ///
    /// First asks all tables: a denied request evicts no key.
    #[inline]
    fn ensure_slots(&mut self, plan: &Plan) -> Result<bool, TableFull> {
        for inserts in [false, true] {
            for step in &mut *self.steps {
                if plan.charge_of(&step.reading).is_some()
                    && let Err(full) = if inserts { step.part.ensure_slot() } else { step.part.is_full() }
                {
                    // Without a slot in the table of shares, the request borrows.
                    if !step.reading.shadow && step.reading.share != ShareRole::Share {
                        return Err(full);
                    }
                    step.has_no_slot = true;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Returns the limits on which the cost is held.
    #[cold]
    fn take_holds(&self, plan: &Plan) -> Vec<HeldEntry> {
        let held = self.steps.iter().filter(|step| step.reading.holds && plan.counts(&step.reading));
        held.map(|step| step.part.take_hold(&step.reading)).collect()
    }

    /// Returns an error if the table of an enforced limit has no slot for the key, of those that are `selected`.
    #[cold]
    fn find_full(&self, selected: impl Fn(&LimitReading) -> bool) -> Option<TableFull> {
        let is_selected = |reading: &LimitReading| {
            reading.cost > 0 && !reading.shadow && reading.share != ShareRole::Share && selected(reading)
        };
        let mut selected = self.steps.iter().filter(|step| is_selected(&step.reading));
        selected.find_map(|step| step.part.is_full().err())
    }

    /// Returns the share whose table has no slot for the key, if there is one: the request borrows.
    fn share_without_slot(&mut self, plan: &Plan) -> Option<&mut LimitStep<'a>> {
        let is_charged =
            |reading: &LimitReading| reading.share == ShareRole::Share && plan.charge_of(reading).is_some();
        let share = self.steps.iter_mut().find(|step| is_charged(&step.reading))?;
        share.part.is_full().is_err().then_some(share)
    }

    /// Builds the decision.
    #[inline]
    fn decide(&self, plan: &Plan) -> Decision {
        plan.decide(self.now, self.options, self.steps.iter().map(|step| DecidedLimit { step, plan }))
    }
}

/// Locks all parts in the order of their tables: two lists of limits may have the same tables in another order, after a
/// replacement. Returns the time of the last decision in any of them.
#[inline]
fn lock_all(steps: &[LimitStep<'_>]) -> u64 {
    let parts = || steps.iter().map(|step| step.part);
    if parts().is_sorted_by_key(Part::table_id) {
        return parts().map(Part::lock).max().unwrap_or(0);
    }
    let (mut last, mut locked) = (0, None);
    for _ in steps {
        let rest = parts().filter(|part| locked.is_none_or(|locked| part.table_id() > locked));
        if let Some(next) = rest.min_by_key(|part| part.table_id()) {
            last = next.lock().max(last);
            locked = Some(next.table_id());
        }
    }
    last
}

/// Denies a key for which the table has no slot.
#[cold]
fn table_full_decision(full: TableFull, now: Timestamp) -> Decision {
    let wait = Timestamp::from_micros(full.until).saturating_since(now);
    // Zero if the keys of the sets are idle and have held amounts: the time of their settlement is unknown. An estimate,
    // also because a key of these sets may move to another set before.
    let wait = if wait.is_zero() { Duration::from_secs(1) } else { wait };
    Decision::without_limit(now, Verdict::Denied { retry_after: wait }).with_estimate(true)
}

/// One limit of a decision that was made.
struct DecidedLimit<'a> {
    step: &'a LimitStep<'a>,
    plan: &'a Plan,
}

impl DecisionPart for DecidedLimit<'_> {
    #[inline]
    fn is_shadow(&self) -> bool {
        self.step.reading.shadow
    }

    #[inline]
    fn is_borrowing(&self) -> bool {
        self.step.reading.borrows
    }

    #[inline]
    fn verdict(&self) -> Verdict {
        self.plan.verdict_of(&self.step.reading)
    }

    #[inline]
    fn remaining(&self) -> u64 {
        self.step.numbers().snapshot.compute().remaining
    }

    #[inline]
    fn into_status(self) -> LimitStatus {
        let (numbers, name) = (self.step.numbers(), self.step.part.name().clone());
        LimitStatus::from_verdict(name, self.verdict(), numbers.snapshot, self.is_shadow())
            .with_block(self.step.reading.block())
            .with_borrowing(self.is_borrowing())
            .with_uncounted(self.step.has_no_slot && self.is_shadow())
            .with_near(numbers.near)
    }
}
