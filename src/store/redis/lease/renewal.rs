use std::sync::Arc;

use super::book::LeaseBook;
use super::ledger::{Reply, Report};
use crate::decision::LimitSnapshot;
use crate::store::redis::script::{OperationTemplate, to_f64};

/// A report from its queueing to its reply. A renewal that is dropped before [`finish`](Self::finish) has failed, and
/// the task sends the report again.
pub(crate) struct LeaseRenewal {
    book: Arc<LeaseBook>,
    slot: u32,
    id: u64,
    report: Report,
    pub(crate) key: Arc<[u8]>,
    is_finished: bool,
}

/// The server's reply, and its figures for estimates.
pub(crate) struct RenewalReply {
    pub(crate) reply: Reply,
    pub(crate) now: u64,
    pub(crate) figures: Option<LimitSnapshot>,
}

impl LeaseRenewal {
    pub(super) fn new(book: Arc<LeaseBook>, slot: u32, id: u64, report: Report, key: Arc<[u8]>) -> Self {
        Self { book, slot, id, report, key, is_finished: false }
    }

    pub(crate) fn template(&self) -> &Arc<OperationTemplate> {
        &self.book.limit.template
    }

    /// The run time of the operation in the script.
    pub(crate) fn weight(&self) -> usize {
        self.book.limit.weight
    }

    /// Returns the numbers to send.
    pub(crate) fn encode(&self) -> [f64; 7] {
        let Report { sequence, spent, unconfirmed, keep, want, expiry, .. } = self.report;
        [self.id, sequence, spent, unconfirmed, keep, want, expiry].map(to_f64)
    }

    /// Records the reply.
    pub(crate) fn finish(mut self, reply: &RenewalReply) {
        self.is_finished = true;
        self.book.finish(self.slot, &self.report, reply);
    }
}

impl Drop for LeaseRenewal {
    fn drop(&mut self) {
        if !self.is_finished {
            self.book.fail(self.slot);
        }
    }
}
