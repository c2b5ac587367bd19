//! The server's side of the protocol: `src/store/redis/script/lease.lua` and `holds.lua`, for a bucket.

use crate::bug::Bug;
use crate::ledger::{LeaseReply, LeaseReport};
use crate::system::{BURST, DURATION, EMISSION, HOLDERS, MAX_HELD};

/// The entry of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    held: u64,
    spent: u64,
    sequence: u64,
    expiry: u64,
}

/// The state of the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server {
    /// The theoretical arrival time of the bucket.
    tat: u64,
    /// The sum of the held units. Signed, for a bug.
    held: i64,
    entries: [Option<Entry>; HOLDERS],
}

impl Server {
    /// Charges units as of a time.
    fn charge(&mut self, at: u64, units: u64) {
        if units > 0 {
            self.tat = self.tat.max(at) + units * EMISSION;
        }
    }

    /// Whether a cost is allowed on top of `held` units.
    fn allows(&self, now: u64, held: i64, cost: u64) -> bool {
        let units = held + signed(cost);
        signed(self.tat.max(now)) + units * signed(EMISSION) <= signed(now + BURST * EMISSION)
    }

    /// Charges the expired entries, in the order of their expiries.
    fn expire(&mut self, now: u64, bug: Bug) {
        if bug == Bug::TtlWithoutHolds && self.tat <= now {
            *self = Self::default();
            return;
        }
        let mut expired: Vec<(u64, usize)> = Vec::new();
        for (holder, entry) in self.entries.iter().enumerate() {
            expired.extend(entry.filter(|entry| entry.expiry <= now).map(|entry| (entry.expiry, holder)));
        }
        expired.sort_unstable();
        for (expiry, holder) in expired {
            if let Some(entry) = self.entries[holder].take() {
                self.held -= signed(entry.held);
                if bug != Bug::ExpiredHoldDropped {
                    self.charge(expiry, entry.held);
                }
            }
        }
    }

    /// Decides a request of cost 1.
    pub fn decide(&mut self, now: u64, bug: Bug) -> bool {
        self.expire(now, bug);
        let held = if bug == Bug::HoldsNotCounted { 0 } else { self.held };
        let is_allowed = self.allows(now, held, 1);
        if is_allowed {
            self.charge(now, 1);
        }
        is_allowed
    }

    /// Applies a report, and grants units, unless the lease must yield.
    pub fn renew(&mut self, holder: usize, report: &LeaseReport, now: u64, yields: bool, bug: Bug) -> LeaseReply {
        self.expire(now, bug);
        let entry = self.entries[holder];
        if let Some(entry) = entry
            && report.sequence <= entry.sequence
            && bug != Bug::SequenceIgnored
        {
            if report.sequence < entry.sequence {
                return LeaseReply::Expired;
            }
            return LeaseReply::Applied { held: entry.held, expiry: entry.expiry };
        }
        if entry.is_none() && report.expiry > 0 && report.expiry <= now && bug != Bug::LateRenewalApplied {
            return LeaseReply::Expired;
        }
        let charged = entry.map_or(report.unconfirmed, |entry| report.spent.saturating_sub(entry.spent));
        if bug != Bug::ChargedAtGrant {
            self.charge(now, charged);
        }
        let before = entry.map_or(0, |entry| entry.held);
        self.held += signed(report.keep) - signed(before);
        let released = before.saturating_sub(charged + report.keep);
        if bug == Bug::ReleasedTwice {
            self.held -= signed(released);
        }
        let has_no_room = report.keep > 0 && !self.allows(now, self.held, 0);
        let yields_kept = yields && report.keep > 0;
        let must_stop = yields_kept || has_no_room && bug != Bug::LateRenewalApplied;
        let room = u64::try_from(signed(MAX_HELD) - self.held).unwrap_or(0);
        let mut granted = report.want.saturating_sub(report.keep).min(room);
        while granted > 0 && (must_stop || yields || !self.allows(now, self.held, 2 * granted)) {
            granted /= 2;
        }
        let held = report.keep + granted;
        if entry.is_none() && held == 0 {
            return LeaseReply::Applied { held: 0, expiry: 0 };
        }
        self.held += signed(granted);
        let old_expiry = entry.map_or(report.expiry, |entry| entry.expiry);
        let expiry = if must_stop { old_expiry } else { now + DURATION };
        if bug == Bug::ChargedAtGrant {
            self.held -= signed(held);
            self.charge(now, granted);
            self.entries[holder] = Some(Entry { held: 0, spent: report.spent, sequence: report.sequence, expiry });
        } else {
            self.entries[holder] = Some(Entry { held, spent: report.spent, sequence: report.sequence, expiry });
        }
        LeaseReply::Applied { held, expiry }
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("a small number")
}
