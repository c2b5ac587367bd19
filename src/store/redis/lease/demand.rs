//! Which keys get leases: those with enough demand that leases could serve.
//!
//! A report takes the server about as long as [`REPORT_WORK`](super::held_lease::REPORT_WORK) decisions. So a key gets a
//! lease for [`MIN_DECISIONS`] in one duration, and keeps it while its reports save more than that ([`HeldLease`]).
//!
//! A process decides by leases only if it has a lease for each limit of the decision. A limit whose key is cold, or whose
//! quota has no units left to lease, gets none, so the decision goes to Redis. The decision then does not count as demand
//! of its other limits: their leases would hold units that no request of this process spends, and that other processes
//! need. A shadow limit without units to lease does not send the decision to Redis.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::book::LeaseBook;
use super::held_lease::HeldLease;
use super::quota::{LeasedLimit, LeasedQuota};
use super::spending::LeasePart;
use crate::store::redis::script::MIN_GRANT;

/// The decisions within one duration below which a key gets no lease.
///
/// A lease with demand makes two reports in each duration, which is the work of ten decisions: benches/NOTES.md has the
/// figures.
pub(super) const MIN_DECISIONS: u64 = 16;

/// The key of one limit in a decision that is made in Redis.
struct KeyState {
    /// The slot, and the decisions in the current window if the key is not leased. `None` for a cold key.
    slot: Option<(u32, Option<u64>)>,
    blocks: bool,
}

/// The name of a key in Redis, and its quota.
pub(crate) type NewLease = (Arc<[u8]>, Arc<LeasedQuota>);

impl LeaseBook {
    /// Counts a decision that is made in Redis. On keys with enough demand leases begin, which `new_lease` describes by
    /// the index of their limit. Returns whether a key of the decision has a lease.
    pub(crate) fn count_demand(&self, parts: &[LeasePart], new_lease: impl Fn(usize) -> Option<NewLease>) -> bool {
        if self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        let now = self.clock.now();
        let limits = self.limits.iter().zip(parts);
        let states: Vec<_> = limits.map(|(limit, part)| self.key_state(limit, part, now)).collect();
        let blocking = states.iter().filter(|state| state.blocks).count();
        // The joint demand is not above any key's demand.
        let decisions = states.iter().filter_map(|state| state.slot?.1).min().unwrap_or_default();
        let mut is_leased = false;
        for (limit, (state, part)) in states.iter().zip(parts).enumerate() {
            let Some((index, unleased)) = state.slot.filter(|_| blocking == usize::from(state.blocks)) else {
                continue;
            };
            let slot = self.slot(index);
            if unleased.is_none() {
                slot.add_demand(part.cost);
            } else if slot.is_short() || !self.begin(index, part, decisions, new_lease(limit)) {
                continue;
            }
            is_leased = true;
            if slot.mark_due() {
                self.push_due(index);
            }
        }
        is_leased
    }

    fn key_state(&self, limit: &LeasedLimit, part: &LeasePart, now: u64) -> KeyState {
        let cold = KeyState { slot: None, blocks: true };
        if limit.fixed.as_ref().is_some_and(|quota| part.cost > quota.figures.max_cost) {
            return cold;
        }
        let Some((index, slot)) = self.find(part.fingerprint) else {
            self.watch(part, now);
            return cold;
        };
        if slot.is_leased() {
            if limit.fixed.is_none() && part.cost > self.figures_of_slot(index).max_cost {
                return cold;
            }
            return KeyState { slot: Some((index, None)), blocks: slot.is_short() && !limit.info.facts.is_shadow };
        }
        if slot.is_resting(now) {
            return cold;
        }
        match slot.count_demand(part.cost, now, self.config.duration_micros()) / part.cost.max(1) {
            0..MIN_DECISIONS => cold,
            decisions => KeyState { slot: Some((index, Some(decisions))), blocks: slot.is_short() },
        }
    }

    /// Begins to count the demand on a key, if its set has a slot of a cold key.
    fn watch(&self, part: &LeasePart, now: u64) {
        // Decisions do not wait for the task: the next one on the key tries again.
        let Ok(leases) = self.leases.try_lock() else { return };
        let mut set = self.set_of(part.fingerprint);
        let free = set.find(|(index, slot)| leases.is_free(*index) && slot.is_cold(now));
        if let Some((_, slot)) = free
            // Under the lock, because another thread may have given the key a slot.
            && self.find(part.fingerprint).is_none()
        {
            slot.assign(part.fingerprint);
            slot.count_demand(part.cost, now, self.config.duration_micros());
        }
    }

    /// Begins a lease, without units. Returns whether the key has a lease.
    fn begin(&self, index: u32, part: &LeasePart, decisions: u64, new_lease: Option<NewLease>) -> bool {
        let slot = self.slot(index);
        let Some((key, quota)) = new_lease else { return false };
        if quota.max_held < MIN_GRANT {
            // The key blocks the leases of other limits.
            slot.set_short(true);
            return false;
        }
        if part.cost > quota.figures.max_cost {
            return false;
        }
        let mut leases = self.leases();
        // Before the lock, another thread may have begun the lease, or given the slot to another key.
        if slot.fingerprint() != part.fingerprint || !leases.is_free(index) {
            return slot.is_leased();
        }
        if let Some(of_slot) = self.quotas.get(index as usize) {
            of_slot.store(Some(Arc::new(quota.figures)));
        }
        let counted_at = slot.lease(decisions.saturating_mul(part.cost), self.config.duration_micros());
        leases.insert(index, HeldLease::new(key, quota, part.cost, counted_at));
        true
    }
}
