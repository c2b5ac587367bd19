//! What the server holds on a key, and how it answers the reports of leases: `holds.lua` and `lease.lua`, written anew.
//!
//! It is the one model of that rule, and depends on nothing else. The server of the simulated client uses it, so
//! `redis: script_model` compares it with the scripts, reply by reply. The random schedules (`exactness_tests`) and the
//! exhaustive exploration (`model/`) use it with usages of their own.

use std::collections::BTreeMap;

/// The least number of units that the server grants.
const MIN_GRANT: u64 = 2;

/// The usage of a key.
pub(crate) trait KeyUsage {
    /// Charges units as of a time. None change nothing.
    fn charge(&mut self, at: u64, units: u64);
    /// Whether so many units are allowed on top of the usage.
    fn has_room(&self, now: u64, units: u64) -> bool;
    /// Whether the usage has drained.
    fn is_idle(&self, now: u64) -> bool;
}

/// The costs that one process, or a group of ids, holds on a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) held: u64,
    /// The sum of the released costs. Of a lease: the sum of the spent units.
    pub(crate) released: u64,
    /// The sum of the charged costs. Of a lease: the number of the last report.
    pub(crate) charged: u64,
    pub(crate) expiry: u64,
}

/// What a report is answered by, except for the usage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTerms {
    /// The units that are held on the key at most after a grant.
    pub(crate) most: u64,
    pub(crate) duration: u64,
    /// No report gets units, and a lease that keeps some must stop.
    pub(crate) yields: bool,
}

/// The answer to the report of a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaseAnswer {
    Applied {
        held: u64,
        expiry: u64,
        charged: u64,
    },
    /// The last report was answered so before.
    Repeated {
        held: u64,
        expiry: u64,
    },
    /// The report is older than the last one, or about a hold that has expired: then without an expiry.
    Late {
        expiry: u64,
    },
}

/// The held costs of a key, by the ids of their holders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HeldCosts {
    pub(crate) entries: BTreeMap<u64, Entry>,
    /// The longest time after which an operation has let one of them expire.
    pub(crate) span: u64,
}

impl HeldCosts {
    pub(crate) fn total(&self) -> u64 {
        self.entries.values().map(|entry| entry.held).sum()
    }

    /// Returns an entry, known or new, that expires after a time.
    pub(crate) fn extend(&mut self, id: u64, now: u64, time: u64) -> &mut Entry {
        self.span = self.span.max(time);
        let entry = self.entries.entry(id).or_default();
        entry.expiry = now + time;
        entry
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.entries.remove(&id);
        if self.entries.is_empty() {
            self.span = 0;
        }
    }

    /// Whether a cost is allowed beside the held ones.
    pub(crate) fn allow(&mut self, cost: u64, now: u64, usage: &mut impl KeyUsage) -> bool {
        self.expire(now, usage);
        usage.has_room(now, mistake!(HeldCostsDoNotCount, 0, self.total()) + cost)
    }

    /// Charges each expired entry as of its expiry, and returns them in that order.
    pub(crate) fn expire(&mut self, now: u64, usage: &mut impl KeyUsage) -> Vec<(u64, Entry)> {
        if mistake!(KeyExpiresWithItsUsage) && usage.is_idle(now) {
            *self = Self::default();
        }
        let expired = self.entries.iter().filter(|(_, entry)| entry.expiry <= now);
        let mut expired: Vec<_> = expired.map(|(id, entry)| (*id, *entry)).collect();
        expired.sort_by_key(|(_, entry)| entry.expiry);
        for (id, entry) in &expired {
            self.remove(*id);
            usage.charge(entry.expiry, mistake!(ExpiredCostsAreDropped, 0, entry.held));
        }
        expired
    }

    /// Applies the report of a lease, and grants units. The numbers are those that the process sends.
    pub(crate) fn renew(
        &mut self,
        [id, sequence, spent, unconfirmed, keep, want, named_expiry]: [u64; 7],
        now: u64,
        terms: LeaseTerms,
        usage: &mut impl KeyUsage,
    ) -> LeaseAnswer {
        let [spent, unconfirmed] = mistake!(SpentUnitsAreNotReported, [0, 0], [spent, unconfirmed]);
        self.expire(now, usage);
        let known = self.entries.get(&id).copied();
        let entry = known.unwrap_or(Entry { expiry: named_expiry, ..Entry::default() });
        let Entry { held: held_before, expiry, .. } = entry;
        if known.is_some() && sequence <= entry.charged && !mistake!(ReportIsAppliedAgain) {
            let is_last = sequence == entry.charged;
            return if is_last {
                LeaseAnswer::Repeated { held: held_before, expiry }
            } else {
                LeaseAnswer::Late { expiry }
            };
        }
        if known.is_none() && expiry > 0 && expiry <= now && !mistake!(LateReportIsApplied) {
            return LeaseAnswer::Late { expiry: 0 };
        }
        let charged = if known.is_some() { spent.saturating_sub(entry.released) } else { unconfirmed };
        usage.charge(now, mistake!(GrantIsCharged, 0, charged));
        let kept = self.total() - held_before + keep;
        let has_room = usage.has_room(now, kept) || mistake!(LateReportIsApplied);
        let must_stop = keep > 0 && (terms.yields || !has_room);
        let wanted = want.saturating_sub(keep).min(terms.most.saturating_sub(kept));
        let mut granted = if must_stop || terms.yields { 0 } else { wanted };
        // A grant is at most half of the room.
        while granted > 0 && (granted < MIN_GRANT || !usage.has_room(now, kept + 2 * granted)) {
            granted /= 2;
        }
        let held = keep + granted;
        if known.is_none() && held == 0 {
            return LeaseAnswer::Applied { held: 0, expiry: 0, charged };
        }
        let expiry = if must_stop { expiry } else { now + terms.duration };
        let released = held_before.saturating_sub(charged + keep);
        let mut counted = mistake!(ReleasedUnitsAreSubtractedTwice, held.saturating_sub(released), held);
        if mistake!(GrantIsCharged) {
            usage.charge(now, granted);
            counted = 0;
        }
        *self.extend(id, now, terms.duration) = Entry { held: counted, released: spent, charged: sequence, expiry };
        LeaseAnswer::Applied { held, expiry, charged }
    }
}
