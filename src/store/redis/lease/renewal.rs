use std::sync::Arc;

use super::book::LeaseBook;
use super::held_lease::HeldLease;
use super::ledger::{LeaseReply, LeaseReport};
use super::quota::LeasedQuota;
use crate::decision::LimitSnapshot;
use crate::store::redis::script::{Report, to_f64};

/// A report from its queueing to its reply. A renewal that is dropped before [`finish`](Self::finish) has failed, and
/// the task sends the report again.
pub(crate) struct LeaseRenewal {
    book: Arc<LeaseBook>,
    slot: u32,
    id: u64,
    report: LeaseReport,
    /// The name of the key in Redis.
    pub(crate) key: Arc<[u8]>,
    pub(crate) quota: Arc<LeasedQuota>,
    is_finished: bool,
}

/// The server's reply, and its figures for estimates.
pub(crate) struct RenewalReply {
    pub(crate) reply: LeaseReply,
    pub(crate) now: u64,
    pub(crate) figures: Option<LimitSnapshot>,
}

impl LeaseRenewal {
    pub(super) fn new(book: Arc<LeaseBook>, slot: u32, lease: &HeldLease, report: LeaseReport) -> Self {
        let (key, quota) = (Arc::clone(&lease.key), Arc::clone(&lease.quota));
        Self { book, slot, id: lease.id, report, key, quota, is_finished: false }
    }

    /// Returns the numbers to send.
    pub(crate) fn encode(&self) -> Report<f64> {
        let LeaseReport { sequence, spent, unconfirmed, keep, want, expiry, .. } = self.report;
        Report { id: self.id, sequence, spent, unconfirmed, keep, want, expiry }.map(to_f64)
    }

    /// Records the reply.
    pub(crate) fn finish(mut self, reply: &RenewalReply) {
        self.is_finished = true;
        self.book.finish((self.slot, self.id), &self.report, reply);
    }
}

impl Drop for LeaseRenewal {
    fn drop(&mut self) {
        if !self.is_finished {
            self.book.fail((self.slot, self.id));
        }
    }
}
