//! The rule of guaranteed shares: a request within its share needs no free units in the common limits, and any other
//! request borrows.
//!
//! | | Share | Common limit |
//! |---|---|---|
//! | The share allows the request now: *within its share* | charged | must allow the cost; charged |
//! | The share does not allow the request now, or does not apply: the request *borrows* | not charged | must allow the cost and the kept units; charged with the cost |
//!
//! A share never denies, apart from a block of its key, and if no common limit applies: then there is nothing to borrow.
//! If the common limits deny a request that borrows, the request is
//! allowed as soon as one of the two ways is open: the share and the common limits allow the cost, or the common limits
//! allow the cost and the kept units.

use std::time::Duration;

use super::reading::{Counting, HasReading};
use super::verdict::Verdict;

/// The part of a limit in the guaranteed shares of its limiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ShareRole {
    /// The limit has no part in shares.
    #[default]
    None,
    /// Sub-keys have a share.
    Share,
    /// The limit is beside shares of the same cost.
    Common,
}

/// The order of verdicts by the time until the request is allowed, for a caller that accepts no delay.
fn wait(verdict: Verdict) -> Duration {
    match verdict {
        Verdict::Allowed | Verdict::AllowedAfter(_) => Duration::ZERO,
        Verdict::Denied { retry_after } => retry_after,
        Verdict::ExceedsLimit => Duration::MAX,
    }
}

/// Applies the rule of guaranteed shares to the readings of all limits, before [`Plan`](super::Plan) combines them.
///
/// The reading of a common limit has the verdict for a request that borrows, and as the immediate verdict the one for a
/// request within its share. The rule replaces both by the verdict with which the limit takes part in the decision.
#[inline]
pub(super) fn combine_shares<T: HasReading>(items: &mut [T]) {
    if items.iter().any(|item| item.reading().share != ShareRole::None) {
        combine(items);
    }
}

#[cold]
fn combine<T: HasReading>(items: &mut [T]) {
    let is_common = |item: &T| item.reading().share == ShareRole::Common && !item.reading().shadow;
    let can_borrow = items.iter().any(is_common);
    // Without a share that applies, only one way is left.
    let (mut own, mut is_within) = (Verdict::ExceedsLimit, false);
    for item in items.iter_mut() {
        let share = item.reading_mut();
        if share.share == ShareRole::Share {
            own = share.immediate;
            if share.counting == Counting::NoSlot {
                own = own.stricter_of(NO_SLOT);
            }
            is_within = own == Verdict::Allowed;
            share.borrows = !is_within && share.blocked == 0 && can_borrow;
            share.verdict = if share.blocked > 0 {
                Verdict::Denied { retry_after: Duration::from_micros(share.blocked) }
            } else if can_borrow {
                Verdict::Allowed
            } else {
                own
            };
            share.immediate = share.verdict;
        }
    }
    let (mut within, mut borrowing) = (own, Verdict::Allowed);
    for item in items.iter_mut() {
        let common = item.reading_mut();
        if common.share == ShareRole::Common && !common.shadow {
            within = within.stricter_of(common.immediate);
            borrowing = borrowing.stricter_of(common.verdict);
        }
    }
    let all_within = is_within || wait(within) < wait(borrowing);
    for item in items.iter_mut() {
        let common = item.reading_mut();
        if common.share != ShareRole::Common {
            continue;
        }
        let own_within = own.stricter_of(common.immediate);
        let goes_within = if common.shadow { wait(own_within) < wait(common.verdict) } else { all_within };
        if is_within || goes_within {
            common.verdict = own_within;
        }
        common.immediate = common.verdict;
        if is_within {
            common.kept_free = 0;
        }
        let wait = common.verdict.wait_for_more(common.cost);
        common.snapshot = common.snapshot.keeping_free(Some(common.kept_free), wait, common.is_bucket);
    }
}

/// The share's table is full. When a slot is free is unknown.
const NO_SLOT: Verdict = Verdict::Denied { retry_after: Duration::from_secs(1) };
