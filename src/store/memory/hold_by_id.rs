//! Holds with an id, and their settlement by the id.

use super::limiter::{Memory, Shared};
use super::limits::MemoryLimits;
use super::reservations::{RecordKey, Records, Settlement};
use super::transaction_limit::{HeldLimit, read_clock};
use crate::clock::{Clock, Timestamp};
use crate::decision::{AcquireOptions, Costs, Decision, ReservationId};
use crate::error::Error;
use crate::limiter::Outcome;
use crate::store::inner::{Reserve, table::LookupError};

impl<Key: ?Sized, L: MemoryLimits<Key, S>, C: Clock, S> Memory<Key, L, C, S> {
    /// Holds the cost under an id, unless the id is remembered.
    pub(super) fn hold_with_id(&self, key: &Key, options: AcquireOptions, reserve: Reserve) -> Result<Outcome, Error> {
        reserve.check()?;
        let shared = self.shared();
        // The lock is held until the id is recorded, so that two calls with one id hold once.
        let mut records = shared.reservations.lock();
        let context = self.context(key, options);
        shared.end_expired::<Key, L>(&mut records, context.now);
        records.forget_old(context.now);
        let Some(record) = self.record_key(key, reserve.id) else {
            // No limit applies to the key.
            return Ok(L::peek(&shared.tables, context).into());
        };
        if let Some(costs) = records.costs(record) {
            if costs != options.costs() {
                return Err(Error::id_conflict());
            }
            let peeked = L::peek(&shared.tables, self.context(key, options.without_cost()));
            return Ok(peeked.into_repeat().into());
        }
        if shared.reservations.is_full(&mut records, record.0) {
            let decision = L::peek(&shared.tables, context);
            let denied = if decision.is_allowed() { Decision::too_many_ids(context.now) } else { decision };
            return Ok(denied.into());
        }
        let (decision, limits) = L::acquire(&shared.tables, context, LookupError::NotApplicable);
        if decision.is_allowed() {
            records.insert(record, reserve, context.now, options.costs(), limits);
            shared.reservations.publish(&records);
        }
        Ok(decision.into())
    }

    /// Settles a hold by its id.
    pub(super) fn settle_id(&self, key: &Key, id: ReservationId, actual: Costs) -> Result<(), Error> {
        id.check()?;
        self.check_units(actual.into())?;
        let (shared, now) = (self.shared(), self.now());
        let mut records = shared.reservations.lock();
        shared.end_expired::<Key, L>(&mut records, now);
        records.forget_old(now);
        let actual_on = |limit: &HeldLimit| if limit.until_end { 0 } else { limit.cost.actual(&actual, limit.held) };
        let Some(record) = self.record_key(key, id) else { return Ok(()) };
        match records.settle(record) {
            Settlement::Unknown => Err(Error::unknown_id()),
            Settlement::Nothing => Ok(()),
            Settlement::End(limits) => {
                shared.reservations.publish(&records);
                shared.settle_limits::<Key, L>(&limits, actual_on)
            }
            Settlement::Excess(limits) => {
                let charged = |limit: HeldLimit| {
                    let excess = actual_on(&limit).saturating_sub(limit.held);
                    let nothing_held = HeldLimit { held: 0, expired_at: None, ..limit };
                    if excess == 0 { Ok(()) } else { shared.settle_limits::<Key, L>(&[nothing_held], |_| excess) }
                };
                limits.into_iter().map(charged).fold(Ok(()), Result::and)
            }
        }
    }

    /// Returns where the id of a key is recorded: under the sub-keys of all limits that apply to the key. `None` if there
    /// are none.
    fn record_key(&self, key: &Key, id: ReservationId) -> Option<RecordKey> {
        let context = self.context(key, AcquireOptions::default());
        let mut parts = Vec::new();
        L::for_each(&self.shared().tables, &mut |limit| {
            if limit.applies_to(key) {
                parts.push((limit.table_id(), limit.key_id(&context)));
            }
        });
        if parts.is_empty() { None } else { Some((self.shared().reservations.hash(&parts), id)) }
    }
}

impl<R, C: Clock, S> Shared<R, C, S> {
    /// Charges the holds with an id that have expired.
    #[inline]
    pub(super) fn end_due<Key: ?Sized, L: MemoryLimits<Key, S, Tables = R>>(&self) {
        if self.reservations.is_due(|| read_clock(&self.clock)) {
            self.end_expired::<Key, L>(&mut self.reservations.lock(), read_clock(&self.clock));
        }
    }

    #[cold]
    fn end_expired<Key: ?Sized, L: MemoryLimits<Key, S, Tables = R>>(&self, records: &mut Records, now: Timestamp) {
        while let Some(limits) = records.take_expired(now) {
            // If the table is full, the key has no slot that could be charged.
            let _ = self.settle_limits::<Key, L>(limits, |limit| if limit.until_end { 0 } else { limit.held });
        }
        self.reservations.publish(records);
    }
}
