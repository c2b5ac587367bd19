//! Calls with an id: holds and their settlement by the id, and requests that are charged once.

use std::sync::Arc;

use super::client::{OnceOperation, OnceRequest, OperationKind, RedisFuture, ReserveOperation, SettleOperation};
use super::cluster::cluster_slot;
use super::key_format::ReservationKeys;
use super::limiter_state::LimiterState;
use super::script::{Operation, TemplateSettings};
use crate::decision::{AcquireOptions, Costs, ReservationId};
use crate::error::Error;
use crate::limiter::LimiterFuture;
use crate::store::inner::Remember;

impl<Key: ?Sized> LimiterState<Key> {
    /// Submits a hold with an id.
    pub(super) fn reserve(&self, key: &Key, options: AcquireOptions, reserve: Remember) -> Result<RedisFuture, Error> {
        reserve.check()?;
        let algorithms = self.algorithms(key);
        let template = self.decision_template(Operation::Reserve, key, &algorithms, options);
        self.client.submit_decision(|reply| {
            let kind = OperationKind::Mutate(Vec::new());
            let mut operation = self.queued_operation(key, algorithms, kind, reply)?;
            let (keys, max_ids) =
                (self.reservation_keys(&operation.keys, &operation.key_offsets, reserve)?, self.max_ids);
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
            let remember = Remember::hold(mistake!(AnotherIdIsSettled, ReservationId::new(b"0"), id));
            let record = self.reservation_keys(&operation.keys, &operation.key_offsets, remember)?.record;
            operation.kind = OperationKind::Settle(Box::new(SettleOperation { template, record, actual }));
            Ok(operation)
        })
    }

    /// Submits a decision that charges an id once.
    pub(super) fn acquire_once(
        &self,
        key: &Key,
        options: AcquireOptions,
        remember: Remember,
    ) -> Result<RedisFuture, Error> {
        remember.check()?;
        let algorithms = self.algorithms(key);
        let (keys, key_offsets) = self.encode(key)?;
        let id_keys = Arc::new(self.reservation_keys(&keys, &key_offsets, remember)?);
        let repeats = if options.hold { 0 } else { remember.repeats };
        let once = OnceOperation { keys: id_keys, remember, max_ids: self.max_ids, repeats };
        self.client.submit_once(OnceRequest {
            options,
            limits: Arc::clone(&self.limits),
            weight: self.weight(&algorithms),
            algorithms,
            keys,
            key_offsets,
            settings: TemplateSettings { kept_free: self.kept_free(key), hold_expiry: self.client.config.holds.expiry },
            holds: options.hold || self.holds_until_end(key),
            once,
        })
    }

    fn reservation_keys(
        &self,
        limit_keys: &[u8],
        offsets: &[usize],
        remember: Remember,
    ) -> Result<ReservationKeys, Error> {
        let keys = self.key_format.reservation_keys(limit_keys, offsets, remember);
        let first = offsets.iter().copied().find(|end| *end > 0).unwrap_or(0);
        let is_cluster = self.client.config.health.server.is_cluster();
        if is_cluster && cluster_slot(&keys.record) != cluster_slot(&limit_keys[..first]) {
            return Err(Error::config(
                "a reservation id cannot share the cluster slot of its key: braces in the prefix prevent it; remove them",
            ));
        }
        Ok(keys)
    }
}
