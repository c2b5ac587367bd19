use std::sync::Arc;
use std::time::Duration;

use crate::store::inner::micros_floor;
use crate::store::redis::script::{DynLuaAlgorithm, EntryTarget, LimitSet, Operation};

/// The limit by which the updates of a session are made: the limit of its latest hold.
///
/// Holds before and after a replacement of the limits share a session, so that a process has one on each key.
pub(crate) struct SessionTarget {
    pub(crate) limits: Arc<LimitSet>,
    pub(crate) entry: EntryTarget,
    /// The time after which a request in flight ends, also if it has not.
    pub(super) max_duration: Option<Duration>,
}

impl SessionTarget {
    pub(super) fn new(
        limits: &Arc<LimitSet>,
        index: usize,
        own: Option<&Arc<dyn DynLuaAlgorithm>>,
        algorithm: &dyn DynLuaAlgorithm,
        expiry: Duration,
    ) -> Self {
        let limit = &limits.limits[index];
        Self {
            limits: Arc::clone(limits),
            entry: EntryTarget {
                limit: index,
                algorithm: own.cloned(),
                weight: usize::from(algorithm.weight()),
                template: Arc::new(limit.template(index, Operation::Update, algorithm, 0, micros_floor(expiry))),
            },
            max_duration: algorithm.max_hold_duration().filter(|_| limit.held_until_end),
        }
    }
}
