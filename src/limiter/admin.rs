use std::time::Duration;

use super::capacity::capacity_released;
use super::future::LimiterFuture;
use super::{Limiter, LimitsOfKey};
#[cfg(doc)]
use crate::decision::AcquireOptions;
use crate::decision::BlockReason;
use crate::decision::{Costs, ReservationId};

/// An operation on one key that is no decision, for [`Limiter::administer`](super::Limiter::administer).
///
/// A limit that was not named has the name `default`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdminOperation<'a> {
    /// Sets the usage of the key under one limit, as if the key had used `used` just now.
    SetUsage {
        /// The name of the limit.
        limit: &'a str,
        /// The usage to set.
        used: u64,
    },
    /// Blocks the key under one limit: the limit denies the key for `duration`, whatever its usage.
    ///
    /// A block applies to the sub-key by which the limit counts. A later block replaces an earlier one. A `duration` of
    /// zero lifts the block. The usage of the key does not change.
    Block {
        /// The name of the limit.
        limit: &'a str,
        /// For how long the limit denies the key.
        duration: Duration,
        /// Why, for the decisions that the block denies.
        reason: BlockReason,
    },
    /// Resets the usage of the key under all limits to the usage of a never-seen key. Blocks stay.
    Reset,
    /// Ends the hold with this [id](AcquireOptions::id), and charges the actual costs. Costs of 0 release the hold.
    Settle {
        /// The id of the hold.
        id: ReservationId,
        /// The actual costs.
        actual: Costs,
    },
}

impl AdminOperation<'_> {
    /// Returns the operation on the limit with this name, if it is on one limit.
    pub(super) fn on_limit(self, limit: &str) -> AdminOperation<'_> {
        match self {
            Self::SetUsage { used, .. } => AdminOperation::SetUsage { limit, used },
            Self::Block { duration, reason, .. } => AdminOperation::Block { limit, duration, reason },
            Self::Reset => AdminOperation::Reset,
            Self::Settle { id, actual } => AdminOperation::Settle { id, actual },
        }
    }

    /// Whether the limiter may allow more after the operation than before.
    fn may_add_capacity(&self) -> bool {
        !matches!(self, Self::Block { duration, .. } if !duration.is_zero())
    }

    /// Returns the future of this operation, which wakes the waiting requests of the key in the end.
    pub(crate) fn wake_waiters<Key: ?Sized>(
        &self,
        limiter: &impl Limiter<Key>,
        key: &Key,
        done: LimiterFuture<()>,
    ) -> LimiterFuture<()> {
        if !self.may_add_capacity() {
            return done;
        }
        let mut limits = Vec::new();
        limiter.limits_of(key, &mut LimitsOfKey::new(&mut |limit| limits.push(limit.id)));
        done.map(move |()| capacity_released(limits))
    }
}
