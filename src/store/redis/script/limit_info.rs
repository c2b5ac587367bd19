use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::fields::Operation;
use super::replay::DynLuaAlgorithm;
use super::source::Script;
use super::template::OperationTemplate;
use crate::algorithm::LuaScript;
use crate::decision::AcquireOptions;
use crate::error::Error;
use crate::store::inner::{LimitFacts, WarnKeys};

/// The properties of a limit that do not depend on the key type.
#[derive(Clone)]
pub(crate) struct LimitInfo {
    pub(crate) facts: LimitFacts,
    pub(crate) script: LuaScript,
    /// The limit [holds](crate::algorithm::Algorithm::HELD_UNTIL_END) every cost until the request ends.
    pub(crate) held_until_end: bool,
    /// The limit counts all keys together.
    pub(crate) is_global: bool,
    /// The mark of the near-limit signal, if the limit has one.
    pub(crate) warn_keys: Option<Arc<WarnKeys>>,
    /// The algorithm, if it is the same for all keys.
    pub(crate) fixed_algorithm: Option<Arc<dyn FixedAlgorithm>>,
}

impl LimitInfo {
    /// Returns the options of a decision for this limit.
    pub(crate) fn options(&self, options: AcquireOptions) -> AcquireOptions {
        let options = self.facts.cost.options(options);
        if self.held_until_end { options.hold() } else { options }
    }

    /// Returns the key's own algorithm, or the limit's fixed one.
    pub(crate) fn algorithm<'a>(&'a self, own: &'a OwnAlgorithm) -> Option<&'a dyn DynLuaAlgorithm> {
        own.as_deref().or_else(|| self.fixed_algorithm.as_deref().map(FixedAlgorithm::fixed_algorithm))
    }

    /// Returns the algorithm of the limit with this index, where `own` has the algorithms chosen by the key.
    pub(crate) fn select<'a>(&'a self, index: usize, own: &'a [OwnAlgorithm]) -> Option<&'a dyn DynLuaAlgorithm> {
        self.algorithm(own.get(index).unwrap_or(&None))
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
        let limit = u16::try_from(index + 1).unwrap_or(u16::MAX);
        let mut template = OperationTemplate { operation, limit, arg1, cost, ..OperationTemplate::default() };
        template.push_params(algorithm, cost);
        template.params.extend([u64::from(self.facts.is_shadow), cost]);
        template
    }
}

/// The algorithm of a limit for one key, if the key selects it.
pub(crate) type OwnAlgorithm = Option<Arc<dyn DynLuaAlgorithm>>;

/// A limit with one algorithm for all keys.
pub(crate) trait FixedAlgorithm: Send + Sync {
    fn fixed_algorithm(&self) -> &dyn DynLuaAlgorithm;
}

pub(crate) fn limit_has_no_algorithm() -> Error {
    Error::unavailable("the decision failed: a limit has no algorithm for the key; return one from `per_key`")
}

/// The limits of a limiter until they are replaced, and their script.
pub(crate) struct LimitSet {
    /// Counts the replacements: a later set has a higher number.
    pub(crate) generation: u64,
    pub(crate) limits: Vec<LimitInfo>,
    pub(crate) script: Script,
    /// The time after which a session expires.
    pub(crate) hold_expiry: Duration,
    /// A server has run the script, so calls name it by its hash.
    is_loaded: AtomicBool,
}

impl LimitSet {
    pub(crate) fn new(generation: u64, limits: Vec<LimitInfo>, has_leases: bool, hold_expiry: Duration) -> Self {
        let script = Script::new(&limits, has_leases);
        Self { generation, limits, script, hold_expiry, is_loaded: AtomicBool::new(false) }
    }

    /// Whether a server has run the script. The server may have lost it since then.
    pub(crate) fn is_loaded(&self) -> bool {
        // Relaxed: a thread that misses the store sends the script once more.
        self.is_loaded.load(Ordering::Relaxed)
    }

    /// Records that a server has run the script.
    pub(crate) fn set_loaded(&self) {
        if !self.is_loaded() {
            self.is_loaded.store(true, Ordering::Relaxed);
        }
    }
}

/// The limit by which a process changes an entry that it has on a key in Redis: the entry of a session, or of a lease.
pub(crate) struct EntryTarget {
    pub(crate) limits: Arc<LimitSet>,
    /// The index of the limit.
    pub(crate) limit: usize,
    /// The algorithm, if the key chooses it.
    pub(crate) algorithm: OwnAlgorithm,
    /// The run time of one change in the script.
    pub(crate) weight: usize,
    /// The template of the changes: updates, or reports.
    pub(crate) template: Arc<OperationTemplate>,
}
