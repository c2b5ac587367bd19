//! The server's side of leases for buckets, written anew: neither the script nor the algorithms of the crate.

use std::collections::BTreeMap;

use super::{DURATION, Quota};
use crate::store::redis::lease::Reply;

/// What a process holds on a key.
#[derive(Clone, Copy)]
struct Entry {
    held: u64,
    spent: u64,
    sequence: u64,
    expiry: u64,
}

/// A bucket. The usage is in millionths of a token.
#[derive(Default)]
struct Bucket {
    usage: u64,
    at: u64,
    entries: BTreeMap<u64, Entry>,
}

const TOKEN: u64 = 1_000_000;

impl Bucket {
    fn charge(&mut self, quota: &Quota, at: u64, units: u64) {
        self.usage = self.usage.saturating_sub(quota.rate * at.saturating_sub(self.at)) + units * TOKEN;
        self.at = self.at.max(at);
    }

    /// Charges expired entries as of their expiries, and drains until now.
    fn proceed(&mut self, quota: &Quota, now: u64) {
        let mut expired: Vec<_> = self.entries.iter().filter(|(_, entry)| entry.expiry <= now).collect();
        expired.sort_by_key(|(_, entry)| entry.expiry);
        let expired: Vec<_> = expired.into_iter().map(|(id, entry)| (*id, *entry)).collect();
        for (id, entry) in expired {
            self.entries.remove(&id);
            self.charge(quota, entry.expiry, entry.held);
        }
        self.charge(quota, now, 0);
    }

    fn held(&self) -> u64 {
        self.entries.values().map(|entry| entry.held).sum()
    }

    fn has_room(&self, quota: &Quota, units: u64) -> bool {
        self.usage + (self.held() + units) * TOKEN <= quota.burst * TOKEN
    }
}

#[derive(Default)]
pub(super) struct Server {
    buckets: BTreeMap<(usize, Vec<u8>), Bucket>,
}

impl Server {
    fn bucket(&mut self, quotas: &[Quota], limit: usize, key: &[u8], now: u64) -> &mut Bucket {
        let bucket = self.buckets.entry((limit, key.to_vec())).or_default();
        bucket.proceed(&quotas[limit], now);
        bucket
    }

    /// Decides on the keys of all limits. Returns for each limit whether it was charged, or `None` for a denial.
    pub(super) fn decide(&mut self, quotas: &[Quota], keys: &[Vec<u8>], cost: u64, now: u64) -> Option<Vec<bool>> {
        let mut charged = Vec::new();
        for (limit, key) in keys.iter().enumerate() {
            charged.push(self.bucket(quotas, limit, key, now).has_room(&quotas[limit], cost));
        }
        let is_allowed = quotas.iter().zip(&charged).all(|(quota, charged)| quota.is_shadow || *charged);
        for (limit, key) in keys.iter().enumerate().filter(|(limit, _)| is_allowed && charged[*limit]) {
            self.bucket(quotas, limit, key, now).charge(&quotas[limit], now, cost);
        }
        is_allowed.then_some(charged)
    }

    /// Applies a report: `numbers` as it is sent.
    pub(super) fn renew(&mut self, quotas: &[Quota], limit: usize, key: &[u8], numbers: [u64; 7], now: u64) -> Reply {
        let [id, sequence, spent, unconfirmed, keep, want, named_expiry] = numbers;
        let quota = &quotas[limit];
        let bucket = self.bucket(quotas, limit, key, now);
        let entry = bucket.entries.get(&id).copied();
        match entry {
            Some(entry) if sequence < entry.sequence => return Reply::Expired,
            Some(entry) if sequence == entry.sequence => {
                return Reply::Applied { held: entry.held, expiry: entry.expiry };
            }
            None if named_expiry > 0 && named_expiry <= now => return Reply::Expired,
            _ => {}
        }
        bucket.charge(quota, now, entry.map_or(unconfirmed, |entry| spent.saturating_sub(entry.spent)));
        let expiry = entry.map_or(named_expiry, |entry| entry.expiry);
        bucket.entries.insert(id, Entry { held: keep, spent, sequence, expiry });
        let must_stop = keep > 0 && !bucket.has_room(quota, 0);
        let mut units = want.saturating_sub(keep).min(quota.max_held().saturating_sub(bucket.held()));
        while units >= 2 && !bucket.has_room(quota, 2 * units) {
            units /= 2;
        }
        let granted = if must_stop || units < 2 { 0 } else { units };
        if entry.is_none() && keep + granted == 0 {
            bucket.entries.remove(&id);
            return Reply::Applied { held: 0, expiry: 0 };
        }
        let expiry = if must_stop { expiry } else { now + DURATION };
        bucket.entries.insert(id, Entry { held: keep + granted, spent, sequence, expiry });
        Reply::Applied { held: keep + granted, expiry }
    }
}
