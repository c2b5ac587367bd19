//! Decisions by leases: each takes its cost from the leases of all limits, or from none.

use std::time::Duration;

use super::book::LeaseBook;
use super::quota::{LeasedLimit, QuotaFigures};
use super::slot::Taken;
use crate::clock::Timestamp;
use crate::decision::{
    AcquireOptions, Decision, DecisionSource, Detail, LazySnapshot, LimitSnapshot, LimitStatus, Verdict,
};

/// What a decision needs of one limit. The parts of a decision are in the order of the limits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeasePart {
    /// The hash of the sub-key: see [`LeaseBook::fingerprint`].
    pub(crate) fingerprint: u64,
    /// The cost, never 0.
    pub(crate) cost: u64,
}

/// What a decision has taken from the lease of one limit.
#[derive(Clone, Copy, Default)]
struct Share {
    slot: u32,
    /// `None` for a shadow limit without room.
    taken: Option<Taken>,
}

impl LeaseBook {
    /// Decides by the leases, if they have the costs of all limits. `N` is at least the number of limits.
    ///
    /// A shadow limit without room denies by itself, and charges nothing. A shadow limit without a lease, or whose
    /// renewal is late, has no answer, so Redis decides.
    #[inline]
    pub(crate) fn decide<const N: usize>(&self, parts: &[LeasePart], options: AcquireOptions) -> Option<Decision> {
        let (mut shares, mut count) = ([Share::default(); N], 0);
        for (limit, part) in self.limits.iter().zip(parts) {
            let Some(share) = self.take(limit, part) else { break };
            shares[count] = share;
            count += 1;
        }
        let shares = &shares[..count];
        // After all costs were taken.
        let at = self.clock.now();
        if count == parts.len() && shares.iter().all(|share| self.may_spend(share, at)) {
            return Some(self.decision(parts, shares, at, options));
        }
        for Share { slot, taken } in shares {
            if let Some(taken) = *taken {
                self.slot(*slot).give_back(taken);
            }
        }
        None
    }

    #[inline]
    fn take(&self, limit: &LeasedLimit, part: &LeasePart) -> Option<Share> {
        let (index, slot) = self.find(part.fingerprint)?;
        let taken = slot.take(part.fingerprint, part.cost);
        let is_known = taken.is_some() || limit.is_shadow && slot.is_leased() && slot.is_short();
        is_known.then_some(Share { slot: index, taken })
    }

    #[inline]
    fn may_spend(&self, share: &Share, now: u64) -> bool {
        let slot = self.slot(share.slot);
        match share.taken {
            Some(taken) => slot.may_spend(taken, now),
            // What Redis has reported counts as long as a grant would have.
            None => !slot.has_passed(now),
        }
    }

    #[inline]
    fn decision(&self, parts: &[LeasePart], shares: &[Share], at: u64, options: AcquireOptions) -> Decision {
        let mut supports_scheduling = true;
        let mut list_all = parts.len() > 1 && options.detail == Detail::All;
        for ((limit, part), share) in self.limits.iter().zip(parts).zip(shares) {
            list_all |= limit.is_shadow;
            supports_scheduling &= limit.is_shadow || self.figures(limit, share.slot).supports_scheduling;
            self.note(part, share);
        }
        let limits = self.limits.iter().zip(parts).zip(shares);
        let statuses = limits.map(|((limit, part), share)| self.status(limit, part, share, at));
        Decision::combine(Timestamp::from_micros(at), list_all, statuses)
            .with_scheduling(supports_scheduling)
            .with_source(DecisionSource::Lease)
    }

    /// Asks for a renewal, if little is left.
    fn note(&self, part: &LeasePart, share: &Share) {
        let slot = self.slot(share.slot);
        if share.taken.is_none() {
            slot.add_demand(part.cost);
        }
        let is_low = share.taken.is_none_or(|taken| slot.is_low(taken.left()));
        if is_low && slot.mark_due() {
            self.push_due(share.slot);
        }
    }

    fn figures(&self, limit: &LeasedLimit, slot: u32) -> QuotaFigures {
        limit.fixed.as_ref().map_or_else(|| self.slot_figures[slot as usize].get(), |quota| quota.figures)
    }

    fn status(&self, limit: &LeasedLimit, part: &LeasePart, share: &Share, at: u64) -> LimitStatus {
        let (figures, slot) = (self.figures(limit, share.slot), self.slot(share.slot));
        let (left, verdict) = match share.taken {
            Some(taken) => (u64::from(taken.left()), Verdict::Allowed),
            None if part.cost > figures.limit => (slot.remaining(), Verdict::ExceedsLimit),
            None => {
                let left = slot.remaining();
                (left, Verdict::Denied { retry_after: figures.time_of(part.cost.saturating_sub(left)) })
            }
        };
        let (reported, idle_at) = slot.reported();
        let remaining = reported.saturating_add(left).min(figures.limit);
        let snapshot = LazySnapshot::new([figures.limit, figures.window, remaining, idle_at, at], snapshot);
        LimitStatus::from_verdict(limit.name.clone(), verdict, snapshot, limit.is_shadow)
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
