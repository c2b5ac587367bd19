use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use redis::Script as HashedScript;

use super::fields::{self, Operation};
use super::limit_info::LimitInfo;
use super::template::OperationTemplate;
use crate::algorithm::LuaScript;

/// The text of a limiter's script, and its hash: the Lua scripts of its limits, and the code that runs them.
#[derive(Debug)]
pub(crate) struct Script {
    kernels: Vec<LuaScript>,
    has_leases: bool,
    has_fast_path: bool,
    pub(crate) text: String,
    pub(crate) hash: String,
}

/// Returns the code of the fast path of these limits: they have one script.
fn fast_path(limits: &[LimitInfo]) -> Option<&'static str> {
    let (first, others) = limits.split_first()?;
    let is_one = others.iter().all(|other| other.script == first.script);
    first.script.fast_path(limits.len()).filter(|_| is_one)
}

/// The scripts that were built last. To hash one takes a million instructions, and a process has few different ones.
static RECENT: Mutex<Vec<Arc<Script>>> = Mutex::new(Vec::new());
const MAX_RECENT: usize = 16;

impl Script {
    /// Returns the script of these limits.
    pub(crate) fn for_limits(limits: &[LimitInfo], has_leases: bool) -> Arc<Self> {
        let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |script: &&Arc<Self>| {
            script.has_leases == has_leases && script.kernels.iter().eq(limits.iter().map(|limit| &limit.script))
        };
        if let Some(script) = recent.iter().find(is_same) {
            return Arc::clone(script);
        }
        let script = Arc::new(Self::new(limits, has_leases));
        if recent.len() == MAX_RECENT {
            recent.remove(0);
        }
        recent.push(Arc::clone(&script));
        script
    }

    /// Builds the text. The text depends on the limits' algorithms only, not on their quotas, so equal limiters share a
    /// cached script.
    fn new(limits: &[LimitInfo], has_leases: bool) -> Self {
        let mut text = String::from(include_str!("prelude.lua"));
        if let Some(fast_path) = fast_path(limits) {
            let _ = writeln!(text, "local LIMITS = {}", limits.len());
            text.push_str(fast_path);
            text.push_str(include_str!("fast_reply.lua"));
        }
        text.push_str("local kernels = {}\n");
        let kernels = limits.iter().enumerate().map(|(index, limit)| {
            let kernel = index + 1;
            // Limits with one algorithm share its kernel: creating the closures of another one costs as much as a
            // decision.
            match limits[..index].iter().position(|other| other.script == limit.script) {
                Some(first) => format!("kernels[{kernel}] = kernels[{}]\n", first + 1),
                None => format!("kernels[{kernel}] = (function()\n{}\nend)()\n", limit.script.source()),
            }
        });
        text.extend(kernels);
        text.push_str(include_str!("read.lua"));
        text.push_str(include_str!("holds.lua"));
        if has_leases {
            text.push_str(include_str!("lease.lua"));
        }
        text.push_str(include_str!("reservations.lua"));
        text.push_str(
            "local run_decision, operate\nif operation_count > 0 then\nrun_decision, operate = (function()\n",
        );
        text.push_str(include_str!("operations.lua"));
        text.push_str("end)()\nend\n");
        text.push_str(include_str!("driver.lua"));
        let text = fields::resolve(&text);
        let hash = HashedScript::new(&text).get_hash().to_owned();
        Self {
            kernels: limits.iter().map(|limit| limit.script).collect(),
            has_leases,
            has_fast_path: fast_path(limits).is_some(),
            text,
            hash,
        }
    }

    /// Returns the number of the fast path that supports all of these templates: 1 for decisions, 2 for holds of one limit and
    /// their updates, 3 for decisions on one limit of any algorithm, 0 if none does.
    pub(crate) fn fast_path<'a>(&self, templates: impl Iterator<Item = &'a OperationTemplate>) -> usize {
        let has_one = self.kernels.len() == 1;
        let is_fast = |template: &OperationTemplate| template.uses_fast_path && self.has_fast_path;
        let path = |template: &OperationTemplate| match template.operation {
            Operation::Hold | Operation::Update if is_fast(template) && !self.has_leases && has_one => 2,
            Operation::Acquisition if is_fast(template) => 1,
            Operation::Acquisition if has_one && template.arg1 == 0 => 3,
            _ => 0,
        };
        let common = |path, other| match (path, other) {
            _ if path == other => path,
            (1 | 3, 1 | 3) if has_one => 3,
            _ => 0,
        };
        templates.map(path).reduce(common).unwrap_or(0)
    }
}
