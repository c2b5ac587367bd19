use std::sync::Arc;
use std::time::Duration;

use crate::clock::micros_floor;
use crate::store::redis::script::{DynLuaAlgorithm, LimitSet, Operation, OperationTemplate};

/// The limit by which the updates of a session are made: the one of its latest hold.
///
/// Holds before and after a replacement of the limits share a session, so that a process has one on each key.
pub(crate) struct SessionTarget {
    pub(crate) limits: Arc<LimitSet>,
    /// The index of the limit.
    pub(crate) limit: usize,
    /// The algorithm, if it is chosen by the key.
    pub(crate) algorithm: Option<Arc<dyn DynLuaAlgorithm>>,
    /// The run time of one step in the script.
    pub(crate) weight: usize,
    /// The template of the session's updates.
    pub(crate) template: Arc<OperationTemplate>,
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
            limit: index,
            algorithm: own.cloned(),
            weight: usize::from(algorithm.weight()),
            template: Arc::new(limit.template(index, Operation::Update, algorithm, 0, micros_floor(expiry))),
            max_duration: algorithm.max_hold_duration().filter(|_| limit.held_until_end),
        }
    }
}
