//! Holds the cost of a request: as a part of the transaction, and alone for one limit.

use std::any::Any;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use super::deadlines::Deadline;
use super::limit_table::{CellOf, LimitTable, is_ahead_of_clock};
use super::transaction_limit::{AcquireContext, HeldLimit, LimitRead, LimitResult};
use crate::algorithm::Algorithm;
use crate::clock::Timestamp;
use crate::decision::{Decision, LimitStatus, Verdict};
use crate::limit::{AlgorithmSelector, SelectAlgorithm, SubKeyOf};
use crate::store::inner::{
    AtomicState, LimitCost, ShareRole, micros_floor,
    table::{Location, LockToken, Reading, SlotIndex, fingerprint},
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
        let chosen = self.limit.algorithm().select(context.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        let added = self.added_hold(context, algorithm);
        let deadline = self.add_hold(context.now, added, location, reading.cost, slot, token);
        let transition = context.transition(&self.limit, algorithm);
        let held = reading.held.saturating_add(reading.cost);
        let snapshot = transition.snapshot(&self.table.state(slot, token), held, *now);
        LimitResult { numbers: self.numbers_after_charge(read, snapshot), deadline }
    }

    /// Returns what the algorithm says of a hold: the algorithm that charges it later, and how long it lasts at most.
    fn added_hold<Key: ?Sized, S>(
        &self,
        context: &AcquireContext<'_, Key, S>,
        algorithm: &C::Algorithm,
    ) -> (Option<C::Algorithm>, Option<Duration>)
    where
        C: SelectAlgorithm<Key>,
    {
        if C::Algorithm::HELD_UNTIL_END {
            (None, algorithm.max_hold_duration())
        } else {
            (self.limit.algorithm().select_owned(context.key), None)
        }
    }

    /// Adds a held cost to the key. Returns the time at which the hold ends at the latest, if there is one.
    fn add_hold(
        &self,
        now: Timestamp,
        (own, max): (Option<C::Algorithm>, Option<Duration>),
        location: &Location,
        cost: u64,
        slot: SlotIndex,
        token: &LockToken,
    ) -> Option<Deadline> {
        self.table.hold(slot, cost, token);
        if let Some(own) = own {
            self.held_algorithms.set(location.hash(), own, token);
        }
        Some(self.deadlines.add(location.hash(), now, micros_floor(max?), cost, token))
    }

    /// Holds the cost of a request on this limit alone, if its key is present and it allows the request.
    ///
    /// Returns `None`, with nothing held, for everything that is left to the transaction: denials, absent and blocked keys,
    /// costs that are not the number of the request, and limits that need more than their state.
    // Rows "hold and settle" and "in flight" of docs/performance.md: 2421 and 1387 instructions instead of 4440
    // and 3801 by the transaction.
    pub(super) fn try_hold<Key, S>(&self, context: &AcquireContext<'_, Key, S>) -> Option<(Decision, HeldLimit)>
    where
        Key: ?Sized,
        C: SelectAlgorithm<Key>,
        P: SubKeyOf<Key>,
        P::SubKey: Hash,
        S: BuildHasher,
    {
        let (until_end, limit) = (C::Algorithm::HELD_UNTIL_END, &self.limit);
        // A caller that holds a cost beside requests in flight has a guard of two parts.
        let is_hold = context.options.hold != until_end && (context.options.until_end || !until_end);
        if !is_hold
            || context.credit.is_some()
            || limit.cost() != LimitCost::OfRequest
            || context.options.has_units()
            || !self.is_plain_alone()
        {
            return None;
        }
        let (now, hash) = (context.now, self.key_hash(context.key, context.hasher)?);
        self.end_due_holds(fingerprint(hash), now, context.clock);
        let chosen = limit.algorithm().select(context.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        let (mut location, mut state) = (Location::EMPTY, CellOf::<C>::empty());
        let Reading { held, .. } = self.table.read(hash, &mut location, &mut state);
        let slot = location.slot()?;
        let transition = context.transition(limit, algorithm);
        let cost = context.options.cost;
        if cost == 0
            || location.may_be_blocked()
            || is_ahead_of_clock(self.table.idle_at(slot), now, algorithm)
            || transition.verdict_with_held(&state, held, now) != Verdict::Allowed
        {
            return None;
        }
        // Nothing of the algorithm runs under the lock, so that a panic leaves nothing locked.
        let snapshot = transition.snapshot(&state, held.saturating_add(cost), now);
        let held_cost = self.held_cost(context, location.hash(), cost);
        drop(state);
        let added = self.added_hold(context, algorithm);
        let token = self.table.lock(&location)?;
        let deadline = self.add_hold(now, added, &location, cost, slot, &token);
        self.table.unlock(&location, &token);
        let status = LimitStatus::from_verdict(limit.name_handle().clone(), Verdict::Allowed, snapshot, false);
        Some((Decision::from_store(now, false, status), HeldLimit { deadline, ..held_cost }))
    }

    /// Returns what a settlement needs of a cost that is held on a key, without a deadline.
    pub(super) fn held_cost<Key: ?Sized, S>(
        &self,
        context: &AcquireContext<'_, Key, S>,
        hash: u64,
        held: u64,
    ) -> HeldLimit
    where
        C: SelectAlgorithm<Key>,
    {
        let own = self.limit.algorithm().select_owned(context.key);
        HeldLimit {
            table: self.table.id(),
            hash,
            algorithm: own.map(|own| Box::new(own) as Box<dyn Any + Send + Sync>),
            held,
            cost: self.limit.cost(),
            credit: context.credit.map_or(0, |charged| self.limit.credit_of(*charged)),
            until_end: C::Algorithm::HELD_UNTIL_END,
            deadline: None,
            expired_at: None,
        }
    }

    /// Returns whether the limit decides by its state and what is held on the key, and signals nothing.
    fn is_plain_alone<Key: ?Sized>(&self) -> bool
    where
        P: SubKeyOf<Key>,
    {
        self.is_plain && !self.limit.sub_key().keeps_free() && self.limit.share() == ShareRole::None
    }
}
