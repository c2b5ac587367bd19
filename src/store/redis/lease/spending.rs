//! Decisions by leases: each takes its cost from the leases of all limits, or from none.

use std::time::Duration;

use arc_swap::ArcSwapOption;

use super::book::LeaseBook;
use super::quota::{LeasedLimit, QuotaFigures};
use super::slot::{LeaseSlot, TakenUnits};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, Decision, DecisionSource, LazySnapshot, LimitSnapshot, LimitStatus, Verdict};
use crate::store::inner::{NearLimit, Plan, WarnKeys};

/// What a decision needs of one limit. The parts of a decision are in the order of the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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
    slot: &'a LeaseSlot,
    index: u32,
    cost: u64,
    /// `None` for a shadow limit without room.
    taken: Option<TakenUnits>,
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
        for share in shares.iter().flatten() {
            self.note(share);
            supports_scheduling &= share.limit.info.facts.is_shadow || self.figures(share).supports_scheduling;
        }
        // Only a shadow can lack room here.
        let (has_shadows, has_marks) = (N > 1 && self.has_shadows, N > 1 && self.has_marks);
        let plan = Plan::allowed(shares.len(), supports_scheduling, has_shadows, has_marks);
        let statuses = shares.iter().flatten().map(|share| share.status(self.figures(share), at));
        Some(plan.decide(Timestamp::from_micros(at), options, statuses).with_source(DecisionSource::Lease))
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
        let is_short = || limit.info.facts.is_shadow && slot.is_leased() && slot.is_short();
        let is_known = taken.is_some() || N > 1 && is_short();
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
        fixed.map_or_else(|| self.figures_of_slot(share.index), |quota| quota.figures)
    }

    /// Returns the figures of a limit whose quota the key chooses. Beside the begin of a lease the slot may have the quota of
    /// another key: the figures are estimates anyway.
    pub(super) fn figures_of_slot(&self, index: u32) -> QuotaFigures {
        let figures = self.quotas.get(index as usize).map(ArcSwapOption::load);
        figures.and_then(|figures| figures.as_deref().copied()).unwrap_or_default()
    }
}

/// Returns the first elements.
///
/// With one limit their number is a constant. So the compiler removes the loops, and builds the decision in place: 601
/// instructions instead of 745 (case `leased` of `scripts/instructions`).
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
        let snapshot = LazySnapshot::new([figures.limit, figures.window_at(at), remaining, idle_at, at], snapshot);
        let status = LimitStatus::from_verdict(
            self.limit.info.facts.name.clone(),
            verdict,
            snapshot,
            self.limit.info.facts.is_shadow,
        );
        match &self.limit.info.warn_keys {
            None => status,
            Some(keys) => status.with_near(self.signal(keys, &snapshot, at)),
        }
    }

    /// Signals whether the estimate of the usage has reached the limit's mark since the last decision of this process.
    #[cold]
    fn signal(&self, keys: &WarnKeys, snapshot: &LazySnapshot, at: u64) -> NearLimit {
        let level = keys.warn_at.level(snapshot);
        if self.taken.is_none() {
            return level;
        }
        let was_near = self.slot.replace_near(level.has(NearLimit::NEAR));
        let before = if was_near { level } else { NearLimit::HAS_MARK };
        keys.charged(before, snapshot, self.slot.fingerprint(), Timestamp::from_micros(at))
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
        window: (window > 0).then(|| Duration::from_micros(window)),
        remaining,
        reset: Duration::from_micros(idle_at.saturating_sub(at)),
        next_token_after: Duration::from_micros(next_token),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;
    use crate::encode::EncodeKey;
    use crate::store::redis::lease::demand::MIN_DECISIONS;
    use crate::store::redis::lease::demand_tests;
    use crate::store::redis::lease::{LeaseRenewal, LeaseReply, LeaseTransport};

    const LIMITS: usize = 2;
    const DURATION: Duration = Duration::from_millis(100);

    fn book(clock: &ManualClock) -> Arc<LeaseBook> {
        demand_tests::book(clock, DURATION, &["a", "b"])
    }

    fn parts(book: &LeaseBook, key: &(impl EncodeKey + ?Sized)) -> [LeasePart; LIMITS] {
        std::array::from_fn(|limit| book.part(limit, AcquireOptions::default(), |hasher| key.hash_key(hasher)))
    }

    #[test]
    fn leased_decision_allocates_nothing() {
        let clock = ManualClock::new();
        let (book, key) = (book(&clock), IpAddr::from([192, 0, 2, 1]));
        let decide = || book.decide::<LIMITS>(&parts(&book, &key), AcquireOptions::default());
        for _ in 0..MIN_DECISIONS {
            assert!(decide().is_none(), "nothing is held yet");
            book.count_demand(&parts(&book, &key), |limit| Some(([].into(), book.limits[limit].fixed.clone()?)));
        }
        clock.advance(DURATION / 2);
        for report in book.take_due(true) {
            report.finish(LeaseReply::Applied { held: 100, expiry: 1 }, 0, None);
        }
        let mut decision = None;
        let allocations = allocation_counter::measure(|| decision = decide());
        assert!(decision.is_some_and(|decision| decision.source() == DecisionSource::Lease), "decided by leases");
        assert_eq!(allocations.count_total, 0);
    }

    /// The reports that a limiter has sent.
    #[derive(Default)]
    struct Sent(Mutex<Vec<LeaseRenewal>>);

    impl LeaseTransport for Sent {
        fn send(&self, renewal: LeaseRenewal) {
            self.0.lock().expect("no panic").push(renewal);
        }
    }

    /// The report that asks for units has no reply yet when the limiter is dropped.
    #[test]
    fn dropped_limiter_releases_the_units_that_a_report_in_flight_asks_for() {
        let clock = ManualClock::new();
        let (book, key) = (book(&clock), IpAddr::from([192, 0, 2, 1]));
        for _ in 0..MIN_DECISIONS {
            book.count_demand(&parts(&book, &key), |limit| Some(([].into(), book.limits[limit].fixed.clone()?)));
        }
        clock.advance(DURATION / 2);
        let in_flight = book.take_due(true);
        let numbers = |reports: &[LeaseRenewal]| {
            let sequences_and_wants = reports.iter().map(|report| [report.encode()[1], report.encode()[5]]);
            sequences_and_wants.collect::<Vec<_>>()
        };
        assert!(numbers(&in_flight).iter().all(|&[sequence, want]| sequence < 2.0 && want > 0.0), "asks for units");
        let released = Sent::default();
        book.release_on_drop(&released);
        assert_eq!(numbers(&released.0.lock().expect("no panic")), [[2.0, 0.0]; LIMITS]);
    }

    /// Keys of one type find the same lease if they have the same encoding, and otherwise another one.
    #[test]
    fn keys_share_a_lease_if_their_encodings_are_equal() {
        fn check<K: EncodeKey>(keys: &[K]) {
            let book = book(&ManualClock::new());
            let fingerprint = |key: &K| parts(&book, key).map(|part| part.fingerprint);
            let text = |key: &K| {
                let mut writer = crate::encode::KeyWriter::new();
                key.encode(&mut writer);
                writer.as_str().to_owned()
            };
            for (a, b) in keys.iter().flat_map(|a| keys.iter().map(move |b| (a, b))) {
                assert_eq!(fingerprint(a) == fingerprint(b), text(a) == text(b), "{} and {}", text(a), text(b));
                assert_ne!(fingerprint(a)[0], fingerprint(b)[1], "two limits");
            }
        }
        check(&[0_u64, 1, u64::MAX]);
        check(&[("a", "bc"), ("ab", "c"), ("", ","), (",", ""), ("a,b", "c")]);
        check(&[(("a", 1), 2), (("a", 12), 0), (("a1", 2), 0)]);
        check(&[None, Some(""), Some("-")]);
        check(&[(None, Some(1)), (Some(1), None), (None, None)]);
        check(&["192.0.2.1", "::ffff:192.0.2.1", "::"].map(|text| text.parse::<IpAddr>().expect("an address")));
        let flow = |flow| SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 80, flow, 0));
        check(&[flow(0), flow(1), SocketAddr::from(([192, 0, 2, 1], 80))]);
        check(&[Cow::Borrowed("a"), Cow::Owned("a".to_owned()), Cow::Borrowed("b")]);
        check(&[[1_u8, 2].as_slice(), &[1, 2, 0], &[], b"%"]);
        check(&[(), ()]);
        let book = book(&ManualClock::new());
        assert_eq!(parts(&book, "a"), parts(&book, &Box::new(Arc::new("a".to_owned()))));
    }
}
