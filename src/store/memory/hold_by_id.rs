//! Calls with an id: holds and their settlement by the id, and requests that are charged once.

use std::sync::MutexGuard;

use super::acquire::table_full;
use super::limiter::{Memory, Shared};
use super::limits::MemoryLimits;
use super::reservations::{RecordKey, Records, Repeat, Reservations, Settlement};
use super::transaction_limit::{AcquireContext, read_clock};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, Costs, Decision, ReservationId, Verdict};
use crate::error::Error;
use crate::limiter::Outcome;
use crate::store::inner::{CallId, HeldCharge, HeldEntry};

impl<Key: ?Sized, L: MemoryLimits<Key>> Memory<Key, L> {
    /// Holds the cost under an id, unless the id is remembered.
    pub(super) fn hold_with_id(&self, key: &Key, options: AcquireOptions, reserve: CallId) -> Result<Outcome, Error> {
        reserve.check()?;
        let shared = &*self.shared;
        let (mut records, context) = self.lock_records(key, options);
        let Some(record) = self.record_key(&context, reserve) else {
            // No limit applies to the key.
            return Ok(shared.peek(&context).into());
        };
        match records.repeat(record, options.costs()).transpose()? {
            None => {}
            Some(Repeat::Denied(until)) => {
                return Ok(Decision::denied_repeat(context.now, until.saturating_since(context.now)).into());
            }
            Some(Repeat::Allowed) => {
                let peeked = shared.peek(&self.context(key, options.without_cost()));
                return Ok(peeked.into_repeat().into());
            }
        }
        if !shared.reservations.has_room(&records, record.0, true) {
            let decision = shared.peek(&context);
            let denied = if decision.is_allowed() { Decision::too_many_ids(context.now) } else { decision };
            return Ok(denied.into());
        }
        let (decision, limits) = shared.acquire(&context);
        if decision.is_allowed() {
            shared.reservations.make_room(&mut records, record.0, true);
            records.insert(record, reserve, context.now, options.costs(), limits);
            shared.reservations.publish(&records);
        }
        Ok(decision.into())
    }

    /// Settles a hold by its id.
    pub(super) fn settle_id(&self, key: &Key, id: ReservationId, actual: Costs) -> Result<(), Error> {
        id.check()?;
        self.check_units(&actual.into())?;
        let shared = &*self.shared;
        let (mut records, context) = self.lock_records(key, AcquireOptions::default());
        let charge = HeldCharge::Actual(&actual);
        let Some(record) = self.record_key(&context, CallId::hold(id)) else { return Ok(()) };
        match records.settle(record) {
            Settlement::Unknown => Err(Error::unknown_id()),
            Settlement::Nothing => Ok(()),
            Settlement::End(limits) => {
                shared.reservations.publish(&records);
                shared.settle_limits(&limits, charge)
            }
            Settlement::Excess(limits) => {
                let mut settled = Ok(());
                L::for_each(&shared.tables, &mut |table| {
                    let of_table = limits.iter().filter(|limit| limit.table == table.info().table_id());
                    let excess = of_table.map(|limit| limit.charged(charge).saturating_sub(limit.amount));
                    // Charges every limit, also after one has failed. Returns the first error.
                    for excess in excess.filter(|excess| *excess > 0) {
                        table.with_part(&context, &mut |part| {
                            settled = settled.and(part.surcharge(excess, context.now, context.clock));
                        });
                    }
                });
                settled.map_err(table_full)
            }
        }
    }

    /// Decides for a request that is charged once. Returns the limits on which a cost is held, and the request if its
    /// settlement must record what it charges.
    pub(super) fn acquire_once(
        &self,
        key: &Key,
        options: AcquireOptions,
        once: CallId,
    ) -> Result<(Decision, Vec<HeldEntry>, Option<ChargedFor>), Error> {
        once.check()?;
        let shared = &*self.shared;
        let (mut records, mut context) = self.lock_records(key, options);
        let record = self.record_key(&context, once);
        let charge_before = record.and_then(|record| records.repeatable(record));
        context.charge_before = charge_before.as_ref();
        let (decision, limits) = shared.acquire(&context);
        let Some(record) = record.filter(|_| decision.is_allowed()) else { return Ok((decision, limits, None)) };
        if charge_before.is_some() {
            records.repeated(record);
        }
        let charged_for = ChargedFor { record, once, charge_before };
        // What a hold is charged is known when it is settled.
        if options.hold {
            return Ok((decision, limits, Some(charged_for)));
        }
        // Not renewed if it is remembered: an id without repeats left is charged in full until it is forgotten.
        if charge_before.is_some() || !records.is_remembered(record) {
            charged_for.record_in(&mut records, &shared.reservations, context.now, options.costs());
        }
        Ok((decision, limits, None))
    }

    /// Decides for a request that is charged once, and holds nothing.
    #[cold]
    pub(super) fn check_once(&self, key: &Key, options: AcquireOptions, once: CallId) -> Decision {
        let decided = self.check_units(&options).and_then(|()| self.acquire_once(key, options, once));
        decided.map_or_else(|_| Decision::without_limit(self.now(), Verdict::ExceedsLimit), |(decision, ..)| decision)
    }

    /// Locks the records, and ends what has expired. A call with an id keeps the lock until it has recorded the id, so that of
    /// two calls with one id only the first holds or charges.
    fn lock_records<'a>(
        &'a self,
        key: &'a Key,
        options: AcquireOptions,
    ) -> (MutexGuard<'a, Records>, AcquireContext<'a, Key>) {
        let mut records = self.shared.reservations.lock();
        let context = self.context(key, options);
        self.shared.end_expired(&mut records, context.now);
        records.forget_old(context.now);
        (records, context)
    }

    /// Returns where the id of a key is recorded: under the sub-keys of all limits that apply to the key. `None` if there
    /// are none.
    fn record_key(&self, context: &AcquireContext<'_, Key>, call_id: CallId) -> Option<RecordKey> {
        let hash = self.shared.reservations.hash(call_id.is_hold(), |visit| {
            L::for_each(&self.shared.tables, &mut |limit| {
                limit.with_part(context, &mut |part| visit(part.table_id(), part.key_hash()));
            });
        });
        hash.map(|hash| (hash, call_id.id))
    }
}

/// A request whose settlement records what it charges.
#[derive(Clone, Copy)]
pub(super) struct ChargedFor {
    record: RecordKey,
    once: CallId,
    /// What the request was charged before, if this one repeats it.
    charge_before: Option<Costs>,
}

impl ChargedFor {
    pub(super) fn record(self, reservations: &Reservations, now: Timestamp, costs: Costs) {
        let mut records = reservations.lock();
        records.forget_old(now);
        self.record_in(&mut records, reservations, now, costs);
    }

    /// A repeat adds what it was charged. It records no id that was forgotten before its settlement: new repeats need a
    /// new charge of the whole cost.
    fn record_in(self, records: &mut Records, reservations: &Reservations, now: Timestamp, costs: Costs) {
        match self.charge_before {
            None => reservations.record(records, self.record, self.once, now, costs),
            Some(before) => records.add_charge(self.record, costs.beyond(before)),
        }
    }
}

impl<Key: ?Sized, L: MemoryLimits<Key>> Shared<Key, L> {
    /// Charges the holds with an id that have expired.
    #[inline]
    pub(super) fn end_due(&self) {
        if self.reservations.has_holds() {
            self.end_if_due();
        }
    }

    #[cold]
    fn end_if_due(&self) {
        if self.reservations.is_due(read_clock(&self.clock)) {
            // Read again under the lock: a time from before looks like a step back to an id that was recorded meanwhile.
            let mut records = self.reservations.lock();
            self.end_expired(&mut records, read_clock(&self.clock));
        }
    }

    #[cold]
    fn end_expired(&self, records: &mut Records, now: Timestamp) {
        for limits in records.take_stale(now) {
            let _ = self.settle_limits(&limits, HeldCharge::Nothing);
        }
        while let Some(limits) = records.take_expired(now) {
            // If the table is full, the key has no slot that could be charged.
            let _ = self.settle_limits(limits, HeldCharge::Held);
        }
        self.reservations.publish(records);
    }
}
