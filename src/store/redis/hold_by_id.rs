//! Calls with an id: holds and their settlement by the id, and requests that are charged once.

use std::sync::Arc;

use super::client::{IdOperation, OperationKind, OperationTarget};
use super::cluster::cluster_slot;
use super::limiter_state::LimiterState;
use super::script::{LimitInfo, MAX_EXACT, Operation, to_f64};
use crate::decision::{AcquireOptions, Costs, ReservationId};
use crate::error::Error;
use crate::limiter::{LimiterFuture, Outcome};
use crate::store::inner::{CallId, micros_floor};

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
            // For how long the limit holds at most, or 0 if it holds nothing.
            let holds = |index: usize, limit: &LimitInfo| {
                let algorithm = limit.select(index, &target.algorithms).filter(|_| limit.options(options).hold);
                to_f64(algorithm.map_or(0, |own| own.max_hold_duration().map_or(MAX_EXACT, micros_floor)))
            };
            let id = self.id(&target, reserve, reserve.repeats, holds)?;
            Ok(target.operation(OperationKind::Decide(options, template), reply).with_id(id))
        })
    }

    /// Submits the settlement of a hold by its id.
    pub(super) fn settle(&self, key: &Key, id: ReservationId, actual: Costs) -> Result<LimiterFuture<()>, Error> {
        id.check()?;
        self.check_units(actual.into())?;
        if self.is_exempt(key) {
            return Ok(LimiterFuture::ready(Ok(())));
        }
        let algorithms = self.algorithms(key);
        let template = self.decision_template(Operation::Settle, key, &algorithms, AcquireOptions::cost(0));
        Ok(self.client.submit_operation(|reply| {
            let target = self.target(key, algorithms)?;
            // In place of a cost that only Redis knows: the held one.
            let number = |_, limit: &LimitInfo| {
                let [own, other] = [0, 1].map(|held| limit.facts.cost.actual(&actual, held));
                if own == other { to_f64(own) } else { -1.0 }
            };
            let id = self.id(&target, CallId::hold(id), 0, number)?;
            Ok(target.operation(OperationKind::Settle(template), reply).with_id(id))
        }))
    }

    /// Returns the id of an operation with these keys. `number` returns what the operation sends for a limit.
    pub(super) fn id(
        &self,
        target: &OperationTarget,
        call_id: CallId,
        repeats: u16,
        number: impl Fn(usize, &LimitInfo) -> f64,
    ) -> Result<IdOperation, Error> {
        let keys = self.key_format.reservation_keys(&target.keys, &target.key_offsets, call_id);
        if self.client.config.health.server.is_cluster() && cluster_slot(&keys.record) != target.slot() {
            return Err(Error::config(
                "a reservation id cannot share the cluster slot of its key: braces in the prefix prevent it; remove them",
            ));
        }
        let numbers = self.limits().iter().enumerate().map(|(index, limit)| number(index, limit)).collect();
        Ok(IdOperation { keys: Arc::new(keys), call_id, max_ids: self.settings.max_ids, repeats, numbers })
    }
}
