use std::fmt::Write as _;

use redis::Script as HashedScript;

use super::fields::{self, Operation};
use super::limit_info::LimitInfo;
use super::template::OperationTemplate;

/// The text of a limiter's script, and its hash: the Lua scripts of its limits, and the code that runs them.
#[derive(Debug)]
pub(crate) struct Script {
    /// There is one limit.
    has_one_limit: bool,
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

impl Script {
    /// Builds the text. The text depends on the limits' algorithms only, not on their quotas, so equal limiters share a
    /// script of the server.
    pub(crate) fn new(limits: &[LimitInfo], has_leases: bool) -> Self {
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
        Self { has_one_limit: limits.len() == 1, has_leases, has_fast_path: fast_path(limits).is_some(), text, hash }
    }

    /// Returns the number of the fast path that supports all of these templates: 1 for decisions, 2 for holds of one limit and
    /// their updates, 3 for decisions on one limit of any algorithm, 0 if none does.
    pub(crate) fn fast_path<'a>(&self, templates: impl Iterator<Item = &'a OperationTemplate>) -> usize {
        let is_fast = |template: &OperationTemplate| template.uses_fast_path && self.has_fast_path;
        let path = |template: &OperationTemplate| match template.operation {
            Operation::Hold | Operation::Update if is_fast(template) && !self.has_leases && self.has_one_limit => 2,
            Operation::Acquisition if is_fast(template) => 1,
            Operation::Acquisition if self.has_one_limit && template.arg1 == 0 => 3,
            _ => 0,
        };
        let common = |path, other| match (path, other) {
            _ if path == other => path,
            (1 | 3, 1 | 3) if self.has_one_limit => 3,
            _ => 0,
        };
        templates.map(path).reduce(common).unwrap_or(0)
    }
}
