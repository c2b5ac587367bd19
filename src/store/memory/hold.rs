//! Holds the cost of a request on a key.

use std::borrow::Borrow;

use super::limit_table::LimitTable;
use super::transaction_limit::{AcquireContext, LimitRead, LimitResult};
use crate::algorithm::Algorithm;
use crate::limit::{AlgorithmSelector, SelectAlgorithm, SubKeyOf};
use crate::store::inner::{
    micros_floor,
    table::{LockToken, SlotIndex},
};

impl<C: AlgorithmSelector, P> LimitTable<C, P> {
    /// Holds the cost on the key.
    pub(super) fn hold<Key: ?Sized, S>(
        &self,
        context: &AcquireContext<'_, Key, S>,
        read: &LimitRead,
        slot: SlotIndex,
        token: &LockToken,
    ) -> LimitResult
    where
        C: SelectAlgorithm<Key>,
        P: SubKeyOf<Key>,
    {
        let LimitRead { location, now, reading, .. } = read;
        self.table.hold(slot, reading.cost, token);
        if let Some(own) = self.limit.algorithm().select_owned(context.key)
            && !C::Algorithm::HELD_UNTIL_END
        {
            self.held_algorithms.set(location.hash(), own, token);
        }
        let chosen = self.limit.algorithm().select(context.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        let deadline = algorithm
            .max_hold_duration()
            .filter(|_| C::Algorithm::HELD_UNTIL_END)
            .map(|max| self.deadlines.add(location.hash(), context.now, micros_floor(max), reading.cost, token));
        let transition = context.transition(&self.limit, algorithm);
        let held = reading.held.saturating_add(reading.cost);
        let snapshot = transition.snapshot(&self.table.state(slot, token), held, *now);
        LimitResult { numbers: self.numbers_after_charge(read, snapshot), deadline }
    }
}
