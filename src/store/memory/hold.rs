//! Holds the cost of a request on one limit alone.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use super::limit_table::LimitTable;
use super::plain;
use super::table::fingerprint;
use super::transaction_limit::AcquireContext;
use crate::algorithm::{Algorithm, ChargeOptions, Step};
use crate::decision::{Decision, LimitStatus, Verdict};
use crate::limit::{AlgorithmSelector, SelectAlgorithm, SubKeyOf};
use crate::limiter::HeldEntry;
use crate::store::inner::{LimitCost, ShareRole, micros_floor};

impl<C: AlgorithmSelector, P> LimitTable<C, P> {
    /// Holds the cost of a request on this limit alone, if it allows the request.
    ///
    /// Returns `None`, with nothing held, for everything that is left to the transaction: denials, blocked keys, costs that
    /// are not the number of the request, and limits that need more than their state.
    // Rows "hold and settle" and "in flight" of benches/figures.md.
    pub(super) fn try_hold<Key, S>(&self, context: &AcquireContext<'_, Key, S>) -> Option<(Decision, HeldEntry)>
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
        let is_hold = options.hold != until_end && (options.until_end || !until_end);
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
        let slot = keys.find(hash);
        if slot.is_none() && !keys.starts_idle(now) {
            return None;
        }
        let (state, held) = (slot.map_or(&self.table.info().zero, |slot| keys.state(slot)), keys.held(hash));
        if keys.block(hash, now).is_some() {
            return None;
        }
        // Before the hold: an algorithm that panics leaves nothing held.
        let snapshot = if held == 0 && !until_end {
            // The numbers of a held cost are those after its charge: no copy of the state.
            let allowed = algorithm.decide(state, now, ChargeOptions::within(cost, Some(Duration::ZERO)));
            let Step::Allow { next, delay: 0 } = allowed else { return None };
            plain::preview(algorithm, &next, now)
        } else if transition.verdict_with_held(state, held, now) == Verdict::Allowed {
            None
        } else {
            return None;
        };
        let snapshot = snapshot.unwrap_or_else(|| transition.snapshot(state, held.saturating_add(cost), now));
        let duration = if until_end { algorithm.max_hold_duration() } else { None };
        let max_duration = duration.map(|duration| (now, micros_floor(duration)));
        if slot.is_none() {
            // If the table is full, the transaction denies.
            keys.insert(hash, now, &self.eviction_policy(algorithm, now), self.table.info()).ok()?;
        }
        let hold = keys.hold(hash, cost, max_duration, own);
        drop(keys);
        let status = LimitStatus::from_verdict(limit.name_handle().clone(), Verdict::Allowed, snapshot, false);
        Some((Decision::from_store(now, false, status), self.entry(hash, cost, hold, 0)))
    }

    /// Returns whether the limit decides by its state and what is held on the key, and signals nothing.
    fn is_plain_alone<Key: ?Sized>(&self) -> bool
    where
        P: SubKeyOf<Key>,
    {
        self.is_plain && !self.limit.sub_key().keeps_free() && self.limit.share() == ShareRole::None
    }
}
