use std::sync::Arc;
use std::time::Duration;

use crate::decision::AcquireOptions;
use crate::store::inner::micros_floor;
use crate::store::redis::script::{DynLuaAlgorithm, EntryTarget, LimitSet, Operation, OwnAlgorithm};

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
        own: &OwnAlgorithm,
        algorithm: &dyn DynLuaAlgorithm,
        expiry: Duration,
    ) -> Self {
        let limit = &limits.limits[index];
        let mut template = limit.template(index, Operation::Update, algorithm, 0, micros_floor(expiry));
        template.uses_fast_path = limits.limits.len() == 1 && algorithm.uses_fast_path(AcquireOptions::cost(1).hold());
        Self {
            limits: Arc::clone(limits),
            entry: EntryTarget {
                limit: index,
                algorithm: own.clone(),
                weight: usize::from(algorithm.weight()),
                template: Arc::new(template),
            },
            max_duration: algorithm.max_hold_duration().filter(|_| limit.held_until_end),
        }
    }
}
