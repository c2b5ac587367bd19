//! Decisions by the process's leases, without Redis.

use std::sync::Arc;

use super::lease::{LeaseBook, LeasePart, first};
use super::limiter::Redis;
use super::limiter_state::LimiterState;
use super::limits::RedisLimit;
use crate::decision::AcquireOptions;
use crate::limiter::{LimiterFuture, Outcome};

impl<Key: ?Sized> LimiterState<Key> {
    /// Decides by this process's leases on the key, if they have the costs of all limits, or in Redis.
    #[inline]
    pub(super) fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        match &self.leases {
            // Redis holds costs one by one, and remembers ids.
            Some(leases) if !options.hold && options.call_id.is_none() => {
                if leases.has_one_limit() {
                    return self.acquire_by_leases::<1>(leases, key, options);
                }
                self.acquire_by_leases::<{ Redis::<str>::MAX_LIMITS }>(leases, key, options)
            }
            _ => self.acquire_in_redis(key, options),
        }
    }

    #[inline]
    fn acquire_by_leases<const N: usize>(
        &self,
        leases: &Arc<LeaseBook>,
        key: &Key,
        options: AcquireOptions,
    ) -> LimiterFuture<Outcome> {
        let mut parts = [LeasePart::default(); N];
        let parts = first(&mut parts, self.limit_fns.len());
        for (index, (part, RedisLimit(limit))) in parts.iter_mut().zip(&*self.limit_fns).enumerate() {
            *part = leases.part(index, options, |hasher| limit.hash(key, hasher));
        }
        // A cost of 0 is denied if the usage is above the limit, which only Redis knows.
        if parts.iter().any(|part| part.cost == 0) {
            return self.acquire_in_redis(key, options);
        }
        if let Some(decision) = leases.decide::<N>(parts, options) {
            return LimiterFuture::ready(Ok(decision.into()));
        }
        self.count_demand(leases, key, parts);
        self.acquire_in_redis(key, options)
    }

    /// Counts a decision that is made in Redis.
    #[cold]
    fn count_demand(&self, leases: &Arc<LeaseBook>, key: &Key, parts: &[LeasePart]) {
        let new_lease = |limit: usize| {
            let target = self.target(key, Vec::new()).ok()?;
            let quota = leases.quota(limit, self.limit_fns[limit].0.own_algorithm(key))?;
            Some((target.key(limit).into(), quota))
        };
        if leases.count_demand(parts, new_lease) {
            leases.ensure_task(&Arc::downgrade(&self.client));
        }
    }
}
