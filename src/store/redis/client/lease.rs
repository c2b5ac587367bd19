//! Reports of leases.

use std::sync::Arc;

use super::Client;
use super::operation::{OperationKind, OperationTarget};
use crate::store::redis::lease::{LeaseRenewal, LeaseTransport};
use crate::store::redis::script::LimitSet;

/// Sends the reports of leases under these limits.
pub(crate) struct LeaseSender {
    pub(crate) client: Arc<Client>,
    pub(crate) limits: Arc<LimitSet>,
}

impl LeaseTransport for LeaseSender {
    fn send(&self, renewal: LeaseRenewal) {
        let operation = |reply| {
            let (key, quota) = (Arc::clone(&renewal.key), Arc::clone(&renewal.quota));
            let kind = OperationKind::Lease(Box::new(renewal));
            Ok(OperationTarget::of_entry(&self.limits, &key, &quota.entry).operation(kind, reply))
        };
        // The renewal receives the result by itself.
        drop(self.client.enqueue(operation, None));
    }
}
