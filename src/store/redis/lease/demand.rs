//! Which keys get leases: those with enough demand that leases could serve.
//!
//! A lease is of use only if all limits of a decision have one. A limit *blocks* the leases of the other limits of a
//! decision if its key is cold, or if it has no room. The others then do not count the decision: they would hold units
//! that no request spends, which are missing elsewhere. A shadow limit without room blocks nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::book::LeaseBook;
use super::held_lease::HeldLease;
use super::quota::{LeasedLimit, LeasedQuota};
use super::spending::LeasePart;

/// The decisions within one duration below which a key is decided in Redis.
///
/// A lease with demand makes two reports in each duration. So with fewer decisions it would save few calls, or none:
/// docs/leases.md has the figures.
pub(super) const MIN_DECISIONS: u64 = 4;

/// Redis grants no fewer units.
const MIN_GRANT: u64 = 2;

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
        // The joint demand is not above that of any key.
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
        let Some((index, slot)) = self.find(part.fingerprint) else {
            self.watch(part, now);
            return cold;
        };
        if slot.is_leased() {
            return KeyState { slot: Some((index, None)), blocks: slot.is_short() && !limit.is_shadow };
        }
        match slot.count_demand(part.cost, now, self.terms.duration) / part.cost.max(1) {
            0..MIN_DECISIONS => cold,
            decisions => KeyState { slot: Some((index, Some(decisions))), blocks: slot.is_short() },
        }
    }

    /// Begins to count the demand on a key, if its set has a slot of a cold key.
    fn watch(&self, part: &LeasePart, now: u64) {
        let Ok(leases) = self.leases.try_lock() else { return };
        let mut set = self.set_of(part.fingerprint);
        let free = set.find(|(index, slot)| leases.is_free(*index) && slot.is_cold(now));
        if let Some((_, slot)) = free
            && self.find(part.fingerprint).is_none()
        {
            slot.assign(part.fingerprint);
            slot.count_demand(part.cost, now, self.terms.duration);
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
        let mut leases = self.leases();
        if slot.fingerprint() != part.fingerprint || !leases.is_free(index) {
            return slot.is_leased();
        }
        if let Some(figures) = self.slot_figures.get(index as usize) {
            figures.set(quota.figures);
        }
        let counted_at = slot.lease(decisions.saturating_mul(part.cost), self.terms.duration);
        leases.insert(index, HeldLease::new(key, quota, counted_at));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::clock::ManualClock;
    use crate::decision::AcquireOptions;
    use crate::encode::EncodeKey as _;
    use crate::observe::Observers;
    use crate::store::redis::RedisLimit;
    use crate::store::redis::lease::{Lease, LeaseBook, LeaseClock, RenewalReply, Reply};
    use crate::{Gcra, Limit, Quota};

    const DURATION: Duration = Duration::from_millis(100);

    /// Acquires `demand` times in each of 100 durations, at equal intervals, on a server with much room. Returns the
    /// decisions in Redis, and the reports.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number")]
    fn operations(demand: u32) -> (u32, u32) {
        let clock = ManualClock::new();
        let limit = Limit::new("user", Gcra::new(Quota::per_second(1_000_000)));
        let infos = [RedisLimit::<str>::new(limit).0.info()];
        let of_book = LeaseClock::new(Some(Arc::new(clock.clone())));
        let book = Arc::new(LeaseBook::new(Lease::new(DURATION), &infos, of_book, "api", &Observers::default()));
        let parts = [book.part(0, AcquireOptions::default(), |hasher| "alice".hash_key(hasher))];
        let (mut direct, mut reports, mut expiry) = (0, 0, 1);
        // The task looks at the leases sixteen times in each duration.
        for tick in 0..100 * 16 {
            for report in book.take_due(true) {
                reports += 1;
                expiry += 1;
                let held = report.encode()[5] as u64;
                report.finish(&RenewalReply { reply: Reply::Applied { held, expiry }, now: 0, figures: None });
            }
            let is_arrival = |of: u32| of * demand / 16;
            for _ in is_arrival(tick)..is_arrival(tick + 1) {
                if book.decide::<1>(&parts, AcquireOptions::default()).is_none() {
                    direct += 1;
                    book.count_demand(&parts, |_| Some(([].into(), book.quota(0, &infos[0], None)?)));
                }
            }
            clock.advance(DURATION / 16);
        }
        (direct, reports)
    }

    /// A lease makes two reports in each duration. So it saves calls from four decisions on.
    #[test]
    fn keys_with_less_than_four_decisions_in_a_duration_are_decided_in_redis() {
        for demand in [1, 2, 3, 4, 6, 8, 16, 64, 256] {
            let (direct, reports) = operations(demand);
            println!("{demand}: {direct} decisions in Redis and {reports} reports for {} decisions", demand * 100);
            if demand < 4 {
                assert_eq!((direct, reports), (demand * 100, 0));
            } else if demand > 4 {
                assert!(direct <= 3 * demand && reports <= 320, "{demand}: {direct} {reports}");
            }
        }
    }
}
