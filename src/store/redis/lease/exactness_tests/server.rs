//! The server: the model of its answers, on usages that are not the algorithms of the crate.

use std::collections::BTreeMap;

use super::usage::{Charges, Kind};
use super::{DURATION, QUOTAS};
use crate::store::redis::lease::LeaseReply;
use crate::store::redis::lease::server_model::{HeldCosts, KeyUsage as _, LeaseAnswer, LeaseTerms};

pub(super) struct Server {
    kind: Kind,
    accounts: BTreeMap<(usize, Vec<u8>), (Charges, HeldCosts)>,
    /// Leases yield, whatever the reason.
    pub(super) yields: bool,
}

impl Server {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, accounts: BTreeMap::new(), yields: false }
    }

    fn account(&mut self, limit: usize, key: &[u8]) -> &mut (Charges, HeldCosts) {
        let new = || (Charges::new(self.kind, &QUOTAS[limit]), HeldCosts::default());
        self.accounts.entry((limit, key.to_vec())).or_insert_with(new)
    }

    /// Returns the units that a log admits on a key beyond the bound.
    pub(super) fn beyond(&self, limit: usize, key: &[u8], log: &[u64]) -> u64 {
        self.accounts.get(&(limit, key.to_vec())).map_or(0, |(charges, _)| charges.beyond(log))
    }

    /// Decides on the keys of all limits. Returns for each limit whether it was charged, or `None` for a denial.
    pub(super) fn decide(&mut self, keys: &[Vec<u8>], cost: u64, now: u64) -> Option<Vec<bool>> {
        let mut charged = Vec::new();
        for (limit, key) in keys.iter().enumerate() {
            let (charges, costs) = self.account(limit, key);
            charged.push(costs.allow(cost, now, charges));
        }
        let is_allowed = QUOTAS.iter().zip(&charged).all(|(quota, charged)| quota.is_shadow || *charged);
        for (limit, key) in keys.iter().enumerate().filter(|(limit, _)| is_allowed && charged[*limit]) {
            self.account(limit, key).0.charge(now, cost);
        }
        is_allowed.then_some(charged)
    }

    /// Applies a report: `numbers` as it is sent.
    pub(super) fn renew(&mut self, limit: usize, key: &[u8], numbers: [u64; 7], now: u64) -> LeaseReply {
        let terms = LeaseTerms { most: QUOTAS[limit].max_held(), duration: DURATION, yields: self.yields };
        let (charges, costs) = self.account(limit, key);
        match costs.renew(numbers, now, terms, charges) {
            LeaseAnswer::Late { .. } => LeaseReply::Expired,
            LeaseAnswer::Applied { held, expiry, .. } | LeaseAnswer::Repeated { held, expiry } => {
                LeaseReply::Applied { held, expiry }
            }
        }
    }
}
