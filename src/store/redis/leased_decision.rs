//! Decisions by the process's leases, without Redis.

use std::cell::Cell;
use std::sync::Arc;

use super::lease::{LeaseBook, LeasePart};
use super::limiter::Redis;
use super::limiter_state::LimiterState;
use crate::decision::{AcquireOptions, Decision};
use crate::encode::KeyWriter;

impl<Key: ?Sized> LimiterState<Key> {
    /// Decides by this process's leases on the key, if they have the costs of all limits.
    #[inline]
    pub(super) fn decide_by_lease(&self, key: &Key, options: AcquireOptions) -> Option<Decision> {
        let leases = self.leases.as_ref()?;
        // Redis holds costs one by one.
        if options.hold {
            return None;
        }
        if self.limits().len() == 1 {
            return self.decide_by_leases::<1>(leases, key, options);
        }
        self.decide_by_leases::<{ Redis::<str>::MAX_LIMITS }>(leases, key, options)
    }

    #[inline]
    fn decide_by_leases<const N: usize>(
        &self,
        leases: &Arc<LeaseBook>,
        key: &Key,
        options: AcquireOptions,
    ) -> Option<Decision> {
        let mut parts = [LeasePart::default(); N];
        let parts = &mut parts[..self.limits().len()];
        self.fill_parts(leases, key, options, parts);
        // A cost of 0 is denied if the usage is above the limit, which only Redis knows.
        if parts.iter().any(|part| part.cost == 0) {
            return None;
        }
        let decision = leases.decide::<N>(parts, options);
        let new_lease = |limit: usize| {
            let (keys, offsets) = self.encode(key).ok()?;
            let start = if limit == 0 { 0 } else { offsets[limit - 1] };
            let quota = leases.quota(limit, &self.limits()[limit], self.limit_fns[limit].algorithm(key))?;
            Some((keys[start..offsets[limit]].into(), quota))
        };
        if decision.is_none() && leases.count_demand(parts, new_lease) {
            leases.ensure_task(&Arc::downgrade(&self.client));
        }
        decision
    }

    #[inline]
    fn fill_parts(&self, leases: &LeaseBook, key: &Key, options: AcquireOptions, parts: &mut [LeasePart]) {
        thread_local! {
            /// Saves allocations.
            static BUFFERS: Cell<(KeyWriter, Vec<u64>)> = const { Cell::new((KeyWriter::new(), Vec::new())) };
        }
        let (mut sub_key, mut params) = BUFFERS.try_with(Cell::take).unwrap_or_default();
        for (index, part) in parts.iter_mut().enumerate() {
            let (limit, limit_fn) = (&self.limits()[index], &self.limit_fns[index]);
            sub_key.clear();
            limit_fn.encode(key, &mut sub_key);
            params.clear();
            if limit.fixed_algorithm.is_none() {
                limit_fn.push_params(key, &mut params);
            }
            let fingerprint = leases.fingerprint(index, sub_key.as_str(), &params);
            *part = LeasePart { fingerprint, cost: limit.options(options).cost };
        }
        let _ = BUFFERS.try_with(|buffers| buffers.set((sub_key, params)));
    }
}
