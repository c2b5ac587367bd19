//! Reports of leases.

use super::Client;
use super::operation::{OperationKind, QueuedOperation};
use crate::store::redis::lease::{LeaseRenewal, LeaseTransport};

impl LeaseTransport for Client {
    fn send(&self, renewal: LeaseRenewal) {
        let operation = |reply| {
            let (keys, weight) = (renewal.key.to_vec(), renewal.weight());
            let key_offsets = vec![keys.len()];
            let kind = OperationKind::Lease(Box::new(renewal));
            Ok(QueuedOperation { kind, keys, key_offsets, algorithms: Vec::new(), weight, answer_by: None, reply })
        };
        // The renewal receives the result by itself.
        drop(self.enqueue(operation, None));
    }
}
