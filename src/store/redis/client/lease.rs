//! Reports of leases.

use std::sync::Arc;

use super::Client;
use super::operation::{OperationKind, QueuedOperation};
use crate::store::redis::lease::{LeaseRenewal, LeaseTransport};

impl LeaseTransport for Client {
    fn send(&self, renewal: LeaseRenewal) {
        let limits = self.config.limits.len();
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
            Ok(QueuedOperation { kind, keys, key_offsets, algorithms, weight: quota.weight, answer_by: None, reply })
        };
        // The renewal receives the result by itself.
        drop(self.enqueue(operation, None));
    }
}
