//! The server: the model of its answers, on a bucket.

use crate::ledger::LeaseReply;
use crate::server_model::{HeldCosts, KeyUsage, LeaseAnswer, LeaseTerms};
use crate::system::{BURST, COST, DURATION, EMISSION, MAX_HELD};

/// The state of the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server {
    bucket: Bucket,
    costs: HeldCosts,
}

/// The theoretical arrival time of the bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Bucket(u64);

impl KeyUsage for Bucket {
    fn charge(&mut self, at: u64, units: u64) {
        if units > 0 {
            self.0 = self.0.max(at) + units * EMISSION;
        }
    }

    fn has_room(&self, now: u64, units: u64) -> bool {
        self.0.max(now) + units * EMISSION <= now + BURST * EMISSION
    }

    fn is_idle(&self, now: u64) -> bool {
        self.0 <= now
    }
}

impl Server {
    /// Decides a request.
    pub fn decide(&mut self, now: u64) -> bool {
        let is_allowed = self.costs.allow(COST, now, &mut self.bucket);
        if is_allowed {
            self.bucket.charge(now, COST);
        }
        is_allowed
    }

    /// Applies a report, and grants units, unless the lease must yield.
    pub fn renew(&mut self, numbers: [u64; 7], now: u64, yields: bool) -> LeaseReply {
        let terms = LeaseTerms { most: MAX_HELD, duration: DURATION, yields };
        match self.costs.renew(numbers, now, terms, &mut self.bucket) {
            LeaseAnswer::Late { .. } => LeaseReply::Expired,
            LeaseAnswer::Applied { held, expiry, .. } | LeaseAnswer::Repeated { held, expiry } => {
                LeaseReply::Applied { held, expiry }
            }
        }
    }
}
