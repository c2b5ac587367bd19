use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::limit_info::LimitInfo;
use super::source::Script;

/// The limits of a limiter until they are replaced, and their script.
pub(crate) struct LimitSet {
    /// Counts the replacements: a later set has a higher number.
    pub(crate) generation: u64,
    pub(crate) limits: Vec<LimitInfo>,
    pub(crate) script: Arc<Script>,
    /// A server has run the script, so calls name it by its hash.
    is_loaded: AtomicBool,
}

impl LimitSet {
    pub(crate) fn new(generation: u64, limits: Vec<LimitInfo>, has_leases: bool) -> Self {
        let script = Script::for_limits(&limits, has_leases);
        Self { generation, limits, script, is_loaded: AtomicBool::new(false) }
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
