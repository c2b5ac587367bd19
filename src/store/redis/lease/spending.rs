//! Decisions by leases: each takes its cost from the leases of all limits, or from none.

use std::time::Duration;

use super::book::LeaseBook;
use super::quota::{LeasedLimit, QuotaFigures};
use super::slot::{Slot, Taken};
use crate::clock::Timestamp;
use crate::decision::{
    AcquireOptions, Decision, DecisionSource, Detail, LazySnapshot, LimitSnapshot, LimitStatus, Verdict,
};

/// What a decision needs of one limit. The parts of a decision are in the order of the limits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeasePart {
    /// The hash of the sub-key, never 0: see [`LeaseBook::part`].
    pub(crate) fingerprint: u64,
    /// The cost, never 0.
    pub(crate) cost: u64,
}

/// The lease of one limit in a decision.
#[derive(Clone, Copy)]
struct Share<'a> {
    limit: &'a LeasedLimit,
    slot: &'a Slot,
    index: u32,
    cost: u64,
    /// `None` for a shadow limit without room.
    taken: Option<Taken>,
}

impl LeaseBook {
    /// Decides by the leases, if they have the costs of all limits. `N` is at least the number of limits, and 1 only for
    /// one limit that is [not a shadow](Self::has_one_limit): the compiler then removes all loops.
    ///
    /// A shadow limit without room denies by itself, and charges nothing. A shadow limit without a lease, or whose
    /// renewal is late, has no answer, so Redis decides.
    #[inline]
    pub(crate) fn decide<const N: usize>(&self, parts: &[LeasePart], options: AcquireOptions) -> Option<Decision> {
        let mut shares = [None; N];
        let shares = first(&mut shares, parts.len());
        for ((share, limit), part) in shares.iter_mut().zip(&self.limits).zip(parts) {
            *share = self.take::<N>(limit, part);
            if share.is_none() {
                break;
            }
        }
        // After all costs were taken.
        let at = self.clock.now();
        if !shares.iter().all(|share| share.is_some_and(|share| share.may_spend(at))) {
            give_back(shares);
            return None;
        }
        let mut supports_scheduling = true;
        for share in &*shares {
            let Some(share) = share else { continue };
            self.note(share);
            supports_scheduling &= share.limit.is_shadow || self.figures(share).supports_scheduling;
        }
        let list_all = N > 1 && (self.has_shadows || shares.len() > 1 && options.detail == Detail::All);
        let statuses = shares.iter().flatten().map(|share| share.status(self.figures(share), at));
        let decision = Decision::combine(Timestamp::from_micros(at), list_all, statuses);
        Some(decision.with_scheduling(supports_scheduling).with_source(DecisionSource::Lease))
    }

    /// Returns whether the limiter has one limit, which is not a shadow.
    #[inline]
    pub(crate) fn has_one_limit(&self) -> bool {
        self.limits.len() == 1 && !self.has_shadows
    }

    #[inline]
    fn take<'a, const N: usize>(&'a self, limit: &'a LeasedLimit, part: &LeasePart) -> Option<Share<'a>> {
        let (index, slot) = self.find(part.fingerprint)?;
        let taken = slot.take(part.fingerprint, part.cost);
        let is_known = taken.is_some() || N > 1 && limit.is_shadow && slot.is_leased() && slot.is_short();
        is_known.then_some(Share { limit, slot, index, cost: part.cost, taken })
    }

    /// Asks for a renewal, if little is left.
    #[inline]
    fn note(&self, share: &Share<'_>) {
        if share.taken.is_none() {
            share.slot.add_demand(share.cost);
        }
        let is_low = share.taken.is_none_or(|taken| share.slot.is_low(taken.left()));
        if is_low && share.slot.mark_due() {
            self.push_due(share.index);
        }
    }

    #[inline]
    fn figures(&self, share: &Share<'_>) -> QuotaFigures {
        let fixed = share.limit.fixed.as_ref();
        fixed.map_or_else(|| self.slot_figures[share.index as usize].get(), |quota| quota.figures)
    }
}

/// Returns the first elements. With one limit their number is a constant, so the compiler removes all loops.
#[inline]
pub(crate) fn first<const N: usize, T>(elements: &mut [T; N], count: usize) -> &mut [T] {
    if N == 1 { elements } else { &mut elements[..count] }
}

#[cold]
fn give_back(shares: &[Option<Share<'_>>]) {
    for share in shares.iter().flatten() {
        if let Some(taken) = share.taken {
            share.slot.give_back(taken);
        }
    }
}

impl Share<'_> {
    #[inline]
    fn may_spend(&self, now: u64) -> bool {
        match self.taken {
            Some(taken) => self.slot.may_spend(taken, now),
            // What Redis has reported counts as long as a grant would have.
            None => !self.slot.has_passed(now),
        }
    }

    #[inline]
    fn status(&self, figures: QuotaFigures, at: u64) -> LimitStatus {
        let (left, verdict) = match self.taken {
            Some(taken) => (u64::from(taken.left()), Verdict::Allowed),
            None => self.denial(figures),
        };
        let (reported, idle_at) = self.slot.reported();
        let remaining = reported.saturating_add(left).min(figures.limit);
        let snapshot = LazySnapshot::new([figures.limit, figures.window, remaining, idle_at, at], snapshot);
        LimitStatus::from_verdict(self.limit.name.clone(), verdict, snapshot, self.limit.is_shadow)
    }

    /// Returns the remainder, and the verdict of a shadow limit without room.
    #[cold]
    fn denial(&self, figures: QuotaFigures) -> (u64, Verdict) {
        let left = self.slot.remaining();
        if self.cost > figures.limit {
            return (left, Verdict::ExceedsLimit);
        }
        (left, Verdict::Denied { retry_after: figures.time_of(self.cost.saturating_sub(left)) })
    }
}

/// The figures of a leased decision: estimates.
fn snapshot(&[limit, window, remaining, idle_at, at]: &[u64; 5]) -> LimitSnapshot {
    let next_token = if remaining < limit { window / limit.max(1) } else { 0 };
    LimitSnapshot {
        limit,
        window: Duration::from_micros(window),
        remaining,
        reset: Duration::from_micros(idle_at.saturating_sub(at)),
        next_token_after: Duration::from_micros(next_token),
    }
}
