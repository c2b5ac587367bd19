//! Calls with an id: holds and their settlement by the id, and requests that are charged once.

use std::sync::Arc;

use super::client::{IdOperation, OnceRequest, OperationKind, OperationTarget, ReserveOperation, SettleOperation};
use super::cluster::cluster_slot;
use super::key_format::ReservationKeys;
use super::limiter_state::LimiterState;
use super::script::{Operation, TemplateSettings};
use crate::decision::{AcquireOptions, Costs, ReservationId};
use crate::error::Error;
use crate::limiter::{LimiterFuture, Outcome};
use crate::store::inner::CallId;

impl<Key: ?Sized> LimiterState<Key> {
    /// Submits a hold with an id.
    pub(super) fn reserve(
        &self,
        key: &Key,
        options: AcquireOptions,
        reserve: CallId,
    ) -> Result<LimiterFuture<Outcome>, Error> {
        reserve.check()?;
        let algorithms = self.algorithms(key);
        let template = self.decision_template(Operation::Reserve, key, &algorithms, options);
        self.client.submit_decision(|reply| {
            let target = self.target(key, algorithms)?;
            let id = self.id(&target, reserve, reserve.repeats)?;
            let reserve = ReserveOperation { options, template, id };
            Ok(target.operation(OperationKind::Reserve(Box::new(reserve)), reply))
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
            let target = self.target(key, algorithms)?;
            let call_id = CallId::hold(id);
            let record = self.reservation_keys(&target, call_id)?.record;
            let settle = SettleOperation { template, record, actual };
            Ok(target.operation(OperationKind::Settle(Box::new(settle)), reply))
        })
    }

    /// Submits a decision that charges an id once.
    pub(super) fn acquire_once(
        &self,
        key: &Key,
        options: AcquireOptions,
        call_id: CallId,
    ) -> Result<LimiterFuture<Outcome>, Error> {
        call_id.check()?;
        let target = self.target(key, self.algorithms(key))?;
        let once = self.id(&target, call_id, if options.hold { 0 } else { call_id.repeats })?;
        self.client.submit_once(OnceRequest {
            options,
            target,
            settings: TemplateSettings { kept_free: self.kept_free(key), hold_expiry: self.client.config.holds.expiry },
            holds: options.hold || self.holds_until_end(key),
            once,
        })
    }

    fn id(&self, target: &OperationTarget, call_id: CallId, repeats: u16) -> Result<IdOperation, Error> {
        let keys = Arc::new(self.reservation_keys(target, call_id)?);
        Ok(IdOperation { keys, call_id, max_ids: self.max_ids, repeats })
    }

    fn reservation_keys(&self, target: &OperationTarget, call_id: CallId) -> Result<ReservationKeys, Error> {
        let keys = self.key_format.reservation_keys(&target.keys, &target.key_offsets, call_id);
        if self.client.config.health.server.is_cluster() && cluster_slot(&keys.record) != target.slot() {
            return Err(Error::config(
                "a reservation id cannot share the cluster slot of its key: braces in the prefix prevent it; remove them",
            ));
        }
        Ok(keys)
    }
}
