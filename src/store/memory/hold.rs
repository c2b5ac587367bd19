//! Holds the cost of a request on one limit alone.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::limit_table::LimitTable;
use super::table::fingerprint;
use super::transaction_limit::{AcquireContext, HeldLimit};
use crate::algorithm::Algorithm;
use crate::decision::{Decision, LimitStatus, Verdict};
use crate::limit::{AlgorithmSelector, SelectAlgorithm, SubKeyOf};
use crate::store::inner::{LimitCost, ShareRole, micros_floor};

impl<C: AlgorithmSelector, P> LimitTable<C, P> {
    /// Holds the cost of a request on this limit alone, if its key is present and it allows the request.
    ///
    /// Returns `None`, with nothing held, for everything that is left to the transaction: denials, absent and blocked keys,
    /// costs that are not the number of the request, and limits that need more than their state.
    // Rows "hold and settle" and "in flight" of benches/figures.md.
    pub(super) fn try_hold<Key, S>(&self, context: &AcquireContext<'_, Key, S>) -> Option<(Decision, HeldLimit)>
    where
        Key: ?Sized,
        C: SelectAlgorithm<Key>,
        P: SubKeyOf<Key>,
        P::SubKey: Hash,
        S: BuildHasher,
    {
        let (until_end, limit) = (C::Algorithm::HELD_UNTIL_END, &self.limit);
        let &AcquireContext { key, options, .. } = context;
        // A caller that holds a cost beside requests in flight has a guard of two parts.
        let is_hold = options.hold != until_end && (options.keeps_guard || !until_end);
        let cost = options.cost;
        if !is_hold
            || cost == 0
            || context.credit.is_some()
            || limit.cost() != LimitCost::OfRequest
            || options.has_units()
            || !self.is_plain_alone()
        {
            return None;
        }
        let hash = fingerprint(self.key_hash(key, context.hasher)?);
        let chosen = limit.algorithm().select(key);
        let algorithm: &C::Algorithm = chosen.borrow();
        let own = if until_end { None } else { limit.algorithm().select_owned(key) };
        let transition = limit.transition(algorithm, key, options);
        let mut keys = self.table.lock(hash);
        let now = keys.decide_at(context.now, context.clock);
        let ended = if until_end { keys.end_due(now) } else { Vec::new() };
        if !ended.is_empty() {
            drop(keys);
            self.announce(&ended);
            keys = self.table.lock(hash);
        }
        let slot = keys.find(hash)?;
        let (state, held) = (keys.state(slot), keys.held(hash));
        if keys.block(hash, now).is_some() || transition.verdict_with_held(state, held, now) != Verdict::Allowed {
            return None;
        }
        // Before the hold: an algorithm that panics leaves nothing held.
        let snapshot = transition.snapshot(state, held.saturating_add(cost), now);
        let duration = if until_end { algorithm.max_hold_duration() } else { None };
        let max_duration = duration.map(|duration| (now, micros_floor(duration)));
        let (deadline, algorithm) = keys.hold(hash, cost, max_duration, own);
        drop(keys);
        let status = LimitStatus::from_verdict(limit.name_handle().clone(), Verdict::Allowed, snapshot, false);
        let held = HeldLimit {
            table: self.table.id(),
            hash,
            algorithm,
            held: cost,
            cost: LimitCost::OfRequest,
            credit: 0,
            until_end,
            deadline,
            expired_at: None,
        };
        Some((Decision::from_store(now, false, status), held))
    }

    /// Returns whether the limit decides by its state and what is held on the key, and signals nothing.
    fn is_plain_alone<Key: ?Sized>(&self) -> bool
    where
        P: SubKeyOf<Key>,
    {
        self.is_plain && !self.limit.sub_key().keeps_free() && self.limit.share() == ShareRole::None
    }
}
