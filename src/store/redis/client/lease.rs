//! Reports of leases.

use std::sync::Arc;

use super::Client;
use super::operation::{OperationKind, QueuedOperation};
use crate::store::redis::lease::{LeaseRenewal, LeaseTransport};
use crate::store::redis::script::LimitSet;

/// Sends the reports of leases under these limits.
pub(crate) struct LeaseSender {
    pub(crate) client: Arc<Client>,
    pub(crate) limits: Arc<LimitSet>,
}

impl LeaseTransport for LeaseSender {
    fn send(&self, renewal: LeaseRenewal) {
        let limits = self.limits.limits.len();
        let operation = |reply| {
            let (quota, keys) = (Arc::clone(&renewal.quota), renewal.key.to_vec());
            // The other limits have no part in it.
            let key_offsets = (0..limits).map(|limit| if limit < quota.limit { 0 } else { keys.len() }).collect();
            let mut algorithms = Vec::new();
            if let Some(own) = &quota.algorithm {
                algorithms.resize(quota.limit, None);
                algorithms.push(Some(Arc::clone(own)));
            }
            let kind = OperationKind::Lease(Box::new(renewal));
            let (limits, weight) = (Arc::clone(&self.limits), quota.weight);
            Ok(QueuedOperation {
                kind,
                limits,
                keys,
                key_offsets,
                algorithms,
                weight,
                once: None,
                answer_by: None,
                reply,
            })
        };
        // The renewal receives the result by itself.
        drop(self.client.enqueue(operation, None));
    }
}
