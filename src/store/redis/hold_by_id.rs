//! Holds with an id, and their settlement by the id.

use super::client::{OperationKind, QueuedOperation, RedisFuture, ReserveOperation, SettleOperation};
use super::cluster::cluster_slot;
use super::key_format::ReservationKeys;
use super::limiter_state::LimiterState;
use super::script::Operation;
use crate::decision::{AcquireOptions, Costs, ReservationId};
use crate::error::Error;
use crate::limiter::LimiterFuture;
use crate::store::inner::Reserve;

impl<Key: ?Sized> LimiterState<Key> {
    /// Submits a hold with an id.
    pub(super) fn reserve(&self, key: &Key, options: AcquireOptions, reserve: Reserve) -> Result<RedisFuture, Error> {
        reserve.check()?;
        let algorithms = self.algorithms(key);
        let template = self.decision_template(Operation::Reserve, key, &algorithms, options);
        self.client.submit_decision(|reply| {
            let kind = OperationKind::Mutate(Vec::new());
            let mut operation = self.queued_operation(key, algorithms, kind, reply)?;
            let (keys, max_ids) = (self.reservation_keys(&operation, reserve.id)?, self.max_ids);
            let reserve = ReserveOperation { options, reserve, template, keys, max_ids };
            operation.kind = OperationKind::Reserve(Box::new(reserve));
            Ok(operation)
        })
    }

    /// Submits the settlement of a hold by its id.
    pub(super) fn settle(&self, key: &Key, id: ReservationId, actual: Costs) -> LimiterFuture<()> {
        if let Err(error) = id.check().and_then(|()| self.check_units(actual.into())) {
            return LimiterFuture::ready(Err(error));
        }
        if self.is_exempt(key) {
            return LimiterFuture::ready(Ok(()));
        }
        let algorithms = self.algorithms(key);
        let template = self.decision_template(Operation::Settle, key, &algorithms, AcquireOptions::cost(0));
        self.client.submit_operation(|reply| {
            let kind = OperationKind::Mutate(Vec::new());
            let mut operation = self.queued_operation(key, algorithms, kind, reply)?;
            let record = self.reservation_keys(&operation, id)?.record;
            operation.kind = OperationKind::Settle(Box::new(SettleOperation { template, record, actual }));
            Ok(operation)
        })
    }

    fn reservation_keys(&self, operation: &QueuedOperation, id: ReservationId) -> Result<ReservationKeys, Error> {
        let keys = self.key_format.reservation_keys(&operation.keys, &operation.key_offsets, id);
        if self.client.config.health.server.is_cluster() && cluster_slot(&keys.record) != operation.slot() {
            return Err(Error::config(
                "a reservation id cannot share the cluster slot of its key: braces in the prefix prevent it; remove them",
            ));
        }
        Ok(keys)
    }
}
