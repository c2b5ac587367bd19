use std::sync::Arc;

use super::replay::DynLuaAlgorithm;
use super::template::{Operation, OperationTemplate};
use crate::algorithm::{LuaScript, ShareCapacity};
use crate::decision::{AcquireOptions, Name, ShareRole};
use crate::error::Error;
use crate::limit::{LimitCost, LimitFacts, Shares, WarnKeys};

/// The properties of a limit that do not depend on the key type.
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "properties that do not depend on each other")]
pub(crate) struct LimitInfo {
    pub(crate) name: Name,
    pub(crate) script: LuaScript,
    pub(crate) shadow: bool,
    pub(crate) cost: LimitCost,
    /// The limit [holds](crate::algorithm::Algorithm::HELD_UNTIL_END) every cost until the request ends.
    pub(crate) held_until_end: bool,
    /// The algorithm is a queue, which delays requests.
    pub(crate) is_queue: bool,
    /// The limit counts all keys together.
    pub(crate) is_global: bool,
    /// The limit may not apply to some keys.
    pub(crate) is_conditional: bool,
    /// The limit counts by the whole key.
    pub(crate) is_whole_key: bool,
    /// The limit keeps units free from some requests.
    pub(crate) keeps_free: bool,
    /// The part of the limit in the guaranteed shares of its limiter.
    pub(crate) share: ShareRole,
    /// Of a share the number of sub-keys that have one; of a limit beside shares the units that are kept free.
    pub(crate) share_units: u64,
    pub(crate) capacity: Option<ShareCapacity>,
    /// The mark of the near-limit signal, if the limit has one.
    pub(crate) warn_keys: Option<Arc<WarnKeys>>,
    /// The algorithm, if it is the same for all keys.
    pub(crate) fixed_algorithm: Option<Arc<dyn FixedAlgorithm>>,
}

impl LimitInfo {
    /// Returns what the checks of a limiter's limits need.
    pub(crate) fn facts(&self) -> LimitFacts<'_> {
        let &Self { is_conditional, is_whole_key, keeps_free, is_queue, cost, share, share_units, capacity, .. } = self;
        LimitFacts {
            name: self.name.as_str(),
            is_conditional,
            is_whole_key,
            keeps_free,
            is_queue,
            cost,
            is_shadow: self.shadow,
            share,
            share_units,
            capacity,
            warn_at: self.warn_keys.as_ref().map(|keys| keys.warn_at),
        }
    }

    /// Sets the part of the limit in the guaranteed shares of its limiter.
    pub(crate) fn set_shares(&mut self, shares: Option<Shares>) {
        if let Some(shares) = shares {
            shares.place_limit(self.cost, &mut self.share, &mut self.share_units);
        }
    }

    /// Returns the units that are kept free from a request that borrows, where the limit itself keeps `own` free.
    pub(crate) fn kept_free(&self, own: Option<u64>) -> Option<u64> {
        own.max((self.share == ShareRole::Common).then_some(self.share_units))
    }

    /// Returns the options of a decision for this limit.
    pub(crate) fn options(&self, options: AcquireOptions) -> AcquireOptions {
        let options = self.cost.options(options);
        if self.held_until_end { options.hold() } else { options }
    }

    /// Returns the key's own algorithm, or the limit's fixed one.
    pub(crate) fn algorithm<'a>(
        &'a self,
        own: Option<&'a Arc<dyn DynLuaAlgorithm>>,
    ) -> Option<&'a dyn DynLuaAlgorithm> {
        own.map(|own| &**own).or_else(|| self.fixed_algorithm.as_deref().map(FixedAlgorithm::algorithm))
    }

    /// Returns the algorithm of the limit with this index, where `own` has the algorithms chosen by the key.
    pub(crate) fn select<'a>(
        &'a self,
        index: usize,
        own: &'a [Option<Arc<dyn DynLuaAlgorithm>>],
    ) -> Option<&'a dyn DynLuaAlgorithm> {
        self.algorithm(own.get(index).and_then(Option::as_ref))
    }

    /// The template of an operation on this limit only. `index` is the limit's index.
    pub(crate) fn template(
        &self,
        index: usize,
        operation: Operation,
        algorithm: &dyn DynLuaAlgorithm,
        cost: u64,
        arg1: u64,
    ) -> OperationTemplate {
        let mut params = Vec::new();
        algorithm.params(cost, &mut params);
        params.extend([u64::from(self.shadow), cost]);
        let limit = u16::try_from(index + 1).unwrap_or(u16::MAX);
        let (kept_free, credits) = (Vec::new(), Vec::new());
        OperationTemplate { operation, limit, arg1, arg2: 0, cost, params, kept_free, credits, uses_fast_path: false }
    }
}

/// A limit with one algorithm for all keys.
pub(crate) trait FixedAlgorithm: Send + Sync {
    fn algorithm(&self) -> &dyn DynLuaAlgorithm;
}

pub(crate) fn limit_has_no_algorithm() -> Error {
    Error::unavailable("the decision failed: a limit has no algorithm for the key; return one from `per_key`")
}
