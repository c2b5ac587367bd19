use std::sync::Arc;

use super::replay::DynLuaAlgorithm;
use super::template::OperationTemplate;

/// The limit by which a process changes an entry that it has on a key in Redis: the entry of a session, or of a lease.
pub(crate) struct EntryTarget {
    /// The index of the limit.
    pub(crate) limit: usize,
    /// The algorithm, if the key chooses it.
    pub(crate) algorithm: Option<Arc<dyn DynLuaAlgorithm>>,
    /// The run time of one change in the script.
    pub(crate) weight: usize,
    /// The template of the changes: updates, or reports.
    pub(crate) template: Arc<OperationTemplate>,
}
