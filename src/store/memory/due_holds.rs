//! Ends the holds of requests in flight: those that have ended, and those that last longer than the maximum.

use std::cell::Cell;

use super::algorithm_eviction::AlgorithmEviction;
use super::deadlines::Deadlines;
use super::limit_table::{CellOf, LimitTable};
use crate::algorithm::Algorithm;
use crate::clock::{Clock, Timestamp};
use crate::limit::AlgorithmSelector;
use crate::store::inner::table::{Location, LockToken, SlotIndex, Table};
use crate::store::inner::{capacity_released, limit_id};

impl<C: AlgorithmSelector, P> LimitTable<C, P> {
    /// Before a decision: ends the holds of the key whose requests last longer than the maximum, and those of some other
    /// keys.
    pub(super) fn end_due_holds(&self, hash: u64, now: Timestamp, clock: &dyn Clock) {
        if C::Algorithm::HELD_UNTIL_END && self.deadlines.any_due(now) {
            self.end_due_holds_of(hash, now, clock);
            self.end_due_holds_of_others(now, clock, Deadlines::MAX_OTHER_KEYS);
        }
    }

    /// Before a search for a slot: ends the due holds of the keys that have the slots of an absent key.
    pub(super) fn end_due_holds_at(&self, location: &Location, now: Timestamp, clock: &dyn Clock) {
        if C::Algorithm::HELD_UNTIL_END && self.deadlines.any_due(now) {
            for hash in self.table.fingerprints_at(location) {
                self.end_due_holds_of(hash, now, clock);
            }
        }
    }

    /// Ends the due holds of up to `max` keys.
    pub(super) fn end_due_holds_of_others(&self, now: Timestamp, clock: &dyn Clock, max: usize) {
        for _ in 0..max {
            let Some(hash) = self.deadlines.next_due(now) else { return };
            if self.end_due_holds_of(hash, now, clock) == 0 {
                // `now` is too old to say that the clock has stepped back.
                return;
            }
        }
    }

    /// Ends the due holds of a key. Returns their sum.
    fn end_due_holds_of(&self, hash: u64, now: Timestamp, clock: &dyn Clock) -> u64 {
        let ended = Cell::new(0);
        self.end_hold(hash, now, |token| {
            ended.set(self.deadlines.take_due(hash, now, clock, token));
            ended.get()
        });
        if ended.get() > 0 {
            capacity_released([limit_id((self.table.id(), hash))]);
        }
        ended.get()
    }

    /// Ends a hold that is never charged, of the amount that `held` returns. This needs no slot, so it cannot fail.
    pub(super) fn end_hold(&self, hash: u64, now: Timestamp, held: impl Fn(&LockToken) -> u64) {
        let end = |table: &Table<CellOf<C>>, slot: SlotIndex, _: u64, token: &LockToken| {
            table.end_hold(slot, held(token), token);
        };
        let ended = self.table.update(hash, now.as_micros(), None::<&AlgorithmEviction<'_, C::Algorithm>>, end);
        debug_assert!(ended.is_ok(), "nothing is inserted");
    }
}
