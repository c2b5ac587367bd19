//! Limits that were charged in a plain case, and their decision.

use crate::clock::Timestamp;
use crate::decision::{Decision, LazySnapshot, LimitStatus, Verdict};
use crate::store::inner::{Name, NearLimit};

/// One limit, charged.
#[derive(Clone, Copy)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub struct Charged<'a> {
    pub(super) name: &'a Name,
    /// Without the units that are kept free: with them, the compiler does not know how the snapshot is computed. Row "memory
    /// Vec of two limits" of benches/figures.md, 1.3 times as long.
    pub(super) snapshot: LazySnapshot,
    pub(super) kept_free: u64,
    pub(super) is_bucket: bool,
    pub(super) is_shadow: bool,
    pub(super) supports_scheduling: bool,
    pub(super) near: NearLimit,
}

// In line as the functions of `plain.rs`, for row "three limits" of benches/figures.md.
impl Charged<'_> {
    #[inline(always)]
    pub(super) fn remaining(&self) -> u64 {
        self.snapshot.compute().remaining.saturating_sub(self.kept_free)
    }

    #[inline(always)]
    pub(super) fn status(&self) -> LimitStatus {
        let snapshot = self.snapshot.keeping_free(Some(self.kept_free), None, self.is_bucket);
        LimitStatus::from_verdict(self.name.clone(), Verdict::Allowed, snapshot, self.is_shadow).with_near(self.near)
    }
}

/// Builds the decision of limits that were charged. `None` if no limit applies.
pub(super) fn decision<const N: usize>(
    charged: [Option<Charged<'_>>; N],
    now: Timestamp,
    lists_all: bool,
) -> Option<Decision> {
    let charged = || charged.iter().flatten();
    let supports_scheduling = charged().all(|charged| charged.supports_scheduling);
    let is_one = charged().nth(1).is_none();
    if lists_all && !is_one || charged().any(|charged| charged.is_shadow) {
        let statuses = charged().map(Charged::status).collect();
        return Some(Decision::of_listed(now, supports_scheduling, statuses, lists_all && !is_one));
    }
    // Of equals, the first one.
    let least = if is_one { charged().next() } else { charged().min_by_key(|charged| charged.remaining()) };
    Some(Decision::from_store(now, supports_scheduling, least?.status()))
}

/// Builds the decision of one limit that was charged.
// Rows "memory warn_at" and "memory keep_free_by" of benches/figures.md: 1.16 and 1.14 times as long by `decision`.
#[inline(always)]
pub(super) fn alone(charged: Charged<'_>, now: Timestamp) -> Option<Decision> {
    if charged.is_shadow {
        return decision([Some(charged)], now, false);
    }
    Some(Decision::from_store(now, charged.supports_scheduling, charged.status()))
}
