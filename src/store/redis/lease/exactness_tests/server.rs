//! The server's side of leases, written anew: neither the script nor the algorithms of the crate.

use std::collections::BTreeMap;

use super::usage::{Charges, Kind, UNIT};
use super::{DURATION, Quota};
use crate::store::redis::lease::LeaseReply;

/// What a process holds on a key.
#[derive(Clone, Copy)]
struct Entry {
    /// The units that the process may spend.
    granted: u64,
    /// Those that count for the key: all of them, unless they were charged when they were granted.
    held: u64,
    spent: u64,
    sequence: u64,
    expiry: u64,
}

/// What a key of one limit has charged, and what is held.
#[derive(Default)]
struct Account {
    charges: Charges,
    entries: BTreeMap<u64, Entry>,
}

impl Account {
    /// Charges expired entries as of their expiries.
    fn proceed(&mut self, kind: Kind, quota: &Quota, now: u64) {
        let mut expired: Vec<_> = self.entries.iter().filter(|(_, entry)| entry.expiry <= now).collect();
        expired.sort_by_key(|(_, entry)| entry.expiry);
        let expired: Vec<_> = expired.into_iter().map(|(id, entry)| (*id, *entry)).collect();
        for (id, entry) in expired {
            self.entries.remove(&id);
            self.charges.charge(kind, quota, entry.expiry, entry.held);
        }
    }

    fn held(&self) -> u64 {
        self.entries.values().map(|entry| entry.held).sum()
    }

    fn has_room(&self, kind: Kind, quota: &Quota, now: u64, units: u64) -> bool {
        self.charges.used(kind, quota, now) + (self.held() + units) * UNIT <= quota.burst * UNIT
    }
}

pub(super) struct Server {
    kind: Kind,
    accounts: BTreeMap<(usize, Vec<u8>), Account>,
    /// Leases yield, whatever the reason: no report gets units, and those that keep some must stop.
    pub(super) yields: bool,
    /// The control: units are charged when they are granted, and hold nothing.
    charges_at_grant: bool,
}

impl Server {
    pub(super) fn new(kind: Kind, charges_at_grant: bool) -> Self {
        Self { kind, accounts: BTreeMap::new(), yields: false, charges_at_grant }
    }

    fn account(&mut self, quotas: &[Quota], limit: usize, key: &[u8], now: u64) -> &mut Account {
        let account = self.accounts.entry((limit, key.to_vec())).or_default();
        account.proceed(self.kind, &quotas[limit], now);
        account
    }

    /// Returns the units that a log admits on a key beyond the bound.
    pub(super) fn beyond(&self, quotas: &[Quota], limit: usize, key: &[u8], log: &[u64]) -> u64 {
        let account = self.accounts.get(&(limit, key.to_vec()));
        account.map_or(0, |account| account.charges.beyond(self.kind, &quotas[limit], log))
    }

    /// Decides on the keys of all limits. Returns for each limit whether it was charged, or `None` for a denial.
    pub(super) fn decide(&mut self, quotas: &[Quota], keys: &[Vec<u8>], cost: u64, now: u64) -> Option<Vec<bool>> {
        let (kind, mut charged) = (self.kind, Vec::new());
        for (limit, key) in keys.iter().enumerate() {
            charged.push(self.account(quotas, limit, key, now).has_room(kind, &quotas[limit], now, cost));
        }
        let is_allowed = quotas.iter().zip(&charged).all(|(quota, charged)| quota.is_shadow || *charged);
        for (limit, key) in keys.iter().enumerate().filter(|(limit, _)| is_allowed && charged[*limit]) {
            self.account(quotas, limit, key, now).charges.charge(kind, &quotas[limit], now, cost);
        }
        is_allowed.then_some(charged)
    }

    /// Applies a report: `numbers` as it is sent.
    pub(super) fn renew(
        &mut self,
        quotas: &[Quota],
        limit: usize,
        key: &[u8],
        numbers: [u64; 7],
        now: u64,
    ) -> LeaseReply {
        let [id, sequence, spent, unconfirmed, keep, want, named_expiry] = numbers;
        let (kind, quota, yields, charges_at_grant) = (self.kind, &quotas[limit], self.yields, self.charges_at_grant);
        let account = self.account(quotas, limit, key, now);
        let entry = account.entries.get(&id).copied();
        match entry {
            Some(entry) if sequence < entry.sequence => return LeaseReply::Expired,
            Some(entry) if sequence == entry.sequence => {
                return LeaseReply::Applied { held: entry.granted, expiry: entry.expiry };
            }
            None if named_expiry > 0 && named_expiry <= now => return LeaseReply::Expired,
            _ => {}
        }
        let charged = entry.map_or(unconfirmed, |entry| spent.saturating_sub(entry.spent));
        account.charges.charge(kind, quota, now, if charges_at_grant { 0 } else { charged });
        let held_of = |granted| if charges_at_grant { 0 } else { granted };
        let expiry = entry.map_or(named_expiry, |entry| entry.expiry);
        account.entries.insert(id, Entry { granted: keep, held: held_of(keep), spent, sequence, expiry });
        let must_stop = keep > 0 && (yields || !account.has_room(kind, quota, now, 0));
        let mut units = want.saturating_sub(keep).min(quota.max_held().saturating_sub(account.held()));
        while units >= 2 && !account.has_room(kind, quota, now, 2 * units) {
            units /= 2;
        }
        let granted = if must_stop || yields || units < 2 { 0 } else { units };
        if entry.is_none() && keep + granted == 0 {
            account.entries.remove(&id);
            return LeaseReply::Applied { held: 0, expiry: 0 };
        }
        let expiry = if must_stop { expiry } else { now + DURATION };
        if charges_at_grant {
            account.charges.charge(kind, quota, now, granted);
        }
        let all = keep + granted;
        account.entries.insert(id, Entry { granted: all, held: held_of(all), spent, sequence, expiry });
        LeaseReply::Applied { held: keep + granted, expiry }
    }
}
