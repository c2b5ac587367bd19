//! The options of an acquire call, and its result: the decision.

mod block;
mod cold_drop;
mod combine;
mod costs;
mod flags;
mod near;
mod options;
mod reading;
mod reservation_id;
mod shares;
mod snapshot;
mod status;
mod status_list;
mod unit;
mod verdict;

use std::fmt;
use std::time::Duration;

pub use self::block::BlockReason;
pub(crate) use self::combine::{DecisionPart, Plan};
pub use self::costs::Costs;
pub(crate) use self::costs::UnitCosts;
use self::flags::DecisionFlags;
pub(crate) use self::near::{NearLimit, WarnAt};
pub use self::options::{AcquireOptions, Detail};
pub(crate) use self::reading::{Counting, HasReading, LimitNumbers, LimitReading};
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub use self::reservation_id::CallId;
pub use self::reservation_id::ReservationId;
pub(crate) use self::shares::ShareRole;
pub use self::snapshot::{LazySnapshot, LimitSnapshot};
pub use self::status::LimitStatus;
pub(crate) use self::status::{Name, first_invalid_name_char};
pub(crate) use self::status_list::StatusList;
pub(crate) use self::unit::Unit;
use self::verdict::PackedVerdict;
pub use self::verdict::Verdict;
use crate::clock::Timestamp;

/// The part of the system that made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DecisionSource {
    /// The limiter's own store.
    #[default]
    Store,
    /// The process's own [lease](crate::store) on a part of the limiter's quota.
    Lease,
    /// A cached denial of the limiter's own store that is still valid.
    Cache,
    /// The fallback limiter, because the store was unavailable.
    Fallback,
    /// No limit: a setting decided, because the store was unavailable or full.
    NoLimit,
}

/// What a guard holds apart from the cost that is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldParts {
    /// Fixed costs, if the options hold them.
    pub(crate) fixed: bool,
    /// What limits on requests in flight hold.
    pub(crate) until_end: bool,
}

impl HeldParts {
    pub(crate) const NONE: Self = Self { fixed: false, until_end: false };

    pub(crate) const fn include(self, other: Self) -> bool {
        (self.fixed || !other.fixed) && (self.until_end || !other.until_end)
    }
}

/// Returns whole seconds, rounded up.
pub(crate) fn ceil_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// The result of one acquire call.
///
/// With several limits, [`verdict`](Self::verdict) is the verdict of all limits together.
/// [`most_restrictive`](Self::most_restrictive) is the limit with the longest wait, or with the least remaining if no
/// limit requires a wait. [`limits`](Self::limits) lists all limits if the [`AcquireOptions`] say so, otherwise the
/// most restrictive limit, all shadows, and the limits that are [near](LimitStatus::is_near_limit).
#[derive(Clone)]
#[must_use = "the decision says whether the request is allowed"]
pub struct Decision {
    verdict: PackedVerdict,
    source: DecisionSource,
    supports_scheduling: bool,
    flags: DecisionFlags,
    decided_at: Timestamp,
    most_restrictive: Option<LimitStatus>,
    all_limits: StatusList,
}

/// Two decisions are equal if their public values are: what a guard holds is no part of the decision.
impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        self.verdict == other.verdict
            && self.source == other.source
            && self.supports_scheduling == other.supports_scheduling
            && self.is_estimate() == other.is_estimate()
            && self.is_denied_by_leases() == other.is_denied_by_leases()
            && self.has_too_many_ids() == other.has_too_many_ids()
            && self.is_repeat() == other.is_repeat()
            && self.decided_at == other.decided_at
            && self.most_restrictive == other.most_restrictive
            && self.all_limits == other.all_limits
    }
}

impl Decision {
    /// Creates a decision of one limit.
    pub fn from_limit(decided_at: Timestamp, status: LimitStatus) -> Self {
        Self::from_store(decided_at, false, status)
    }

    /// Creates a decision of one limit in a store.
    #[inline]
    pub(crate) fn from_store(decided_at: Timestamp, supports_scheduling: bool, status: LimitStatus) -> Self {
        Self {
            verdict: status.verdict,
            source: DecisionSource::Store,
            supports_scheduling,
            flags: DecisionFlags::NONE,
            decided_at,
            most_restrictive: Some(status),
            all_limits: StatusList::EMPTY,
        }
    }

    /// Returns the decision as of `elapsed` later.
    pub(crate) fn aged_by(&self, elapsed: Duration) -> Self {
        Self {
            verdict: self.verdict.aged_by(elapsed),
            decided_at: self.decided_at.saturating_add(elapsed),
            most_restrictive: self.most_restrictive.as_ref().map(|status| status.aged_by(elapsed)),
            all_limits: self.all_limits.map(|status| status.aged_by(elapsed)),
            ..*self
        }
    }

    /// Creates a decision that consults no limit.
    pub fn without_limit(decided_at: Timestamp, verdict: Verdict) -> Self {
        Self {
            verdict: PackedVerdict::pack(verdict),
            source: DecisionSource::NoLimit,
            supports_scheduling: false,
            flags: DecisionFlags::NONE,
            decided_at,
            most_restrictive: None,
            all_limits: StatusList::EMPTY,
        }
    }

    /// Sets the source of the decision.
    #[doc(hidden)]
    pub fn with_source(mut self, source: DecisionSource) -> Self {
        self.source = source;
        self
    }

    /// Sets whether the limiter schedules later starts for callers that accept a delay.
    ///
    /// If it does, a denial means that no start is possible within the accepted delay.
    #[doc(hidden)]
    pub fn with_scheduling(mut self, supports_scheduling: bool) -> Self {
        self.supports_scheduling = supports_scheduling;
        self
    }

    /// Returns whether the limiter schedules later starts.
    pub fn supports_scheduling(&self) -> bool {
        self.supports_scheduling
    }

    /// Sets whether [`retry_after`](Self::retry_after) is an estimate.
    pub fn with_estimate(mut self, is_estimate: bool) -> Self {
        self.flags.set(DecisionFlags::ESTIMATE, is_estimate);
        self
    }

    /// Returns whether [`retry_after`](Self::retry_after) is an estimate.
    ///
    /// A denial is exact unless costs are [held](crate::limiter::Held) on the key, because the limiter does not know
    /// when they are settled, and for how much. The estimate assumes that they are charged now. If only leases hold
    /// costs there, it assumes that they are charged at the end of the leases. If no other caller uses the key, that
    /// wait suffices, but a shorter one may do.
    ///
    /// These waits are estimates too: of a key for which a table [in memory](crate::WhenFull) has no slot, of a hold whose
    /// id [repeats](Self::is_repeat) another one or is one too many, and of a request with a higher cost than
    /// a [cached](crate::limiter::DeniedCache) denial has.
    pub fn is_estimate(&self) -> bool {
        self.flags.has(DecisionFlags::ESTIMATE)
    }

    /// Sets whether the request would be allowed if leases held nothing.
    pub(crate) fn with_denied_by_leases(mut self, is_denied_by_leases: bool) -> Self {
        self.flags.set(DecisionFlags::DENIED_BY_LEASES, is_denied_by_leases);
        self
    }

    /// Returns whether the request is denied only because of what processes hold by [leases](crate::store).
    ///
    /// Known to a limiter with leases only.
    pub fn is_denied_by_leases(&self) -> bool {
        self.flags.has(DecisionFlags::DENIED_BY_LEASES)
    }

    /// Creates the denial of a hold with an id, for a key that has the maximum number of ids.
    pub(crate) fn too_many_ids(decided_at: Timestamp) -> Self {
        // The time at which an id is forgotten is unknown to the caller of the store.
        let denied = Verdict::Denied { retry_after: Duration::from_secs(1) };
        let mut decision = Self::without_limit(decided_at, denied).with_estimate(true);
        decision.flags.set(DecisionFlags::TOO_MANY_IDS, true);
        decision
    }

    /// Returns whether a hold with an [id](AcquireOptions::id) is denied only because the key has the maximum number of
    /// ids, or all keys of a limiter in memory have.
    pub fn has_too_many_ids(&self) -> bool {
        self.flags.has(DecisionFlags::TOO_MANY_IDS)
    }

    /// Creates the denial of the repeat of a hold whose id is remembered for `remembered`.
    pub(crate) fn denied_repeat(decided_at: Timestamp, remembered: Duration) -> Self {
        // An estimate: the limits may deny a new hold then.
        Self::without_limit(decided_at, Verdict::Denied { retry_after: remembered })
            .with_estimate(true)
            .with_repeat(true)
    }

    pub(crate) fn with_repeat(mut self, is_repeat: bool) -> Self {
        self.flags.set(DecisionFlags::REPEAT, is_repeat);
        self
    }

    /// Returns whether the hold repeats the [id](AcquireOptions::id) of a hold that is still open. It holds nothing more.
    ///
    /// A repeat is denied if no [repeats](AcquireOptions::repeats) are left: the answer of HTTP is 409. The first hold
    /// stays open until it is settled or expires.
    pub fn is_repeat(&self) -> bool {
        self.flags.has(DecisionFlags::REPEAT)
    }

    /// Returns a peek of cost 0 as the decision on the repeat of a hold, which is allowed.
    pub(crate) fn into_repeat(mut self) -> Self {
        self.verdict = PackedVerdict::pack(Verdict::Allowed);
        // As in Redis: nothing is decided, so no start can be scheduled, and a block denies nothing.
        self.supports_scheduling = false;
        for limit in self.most_restrictive.iter_mut().chain(self.all_limits.iter_mut()) {
            limit.verdict = PackedVerdict::pack(Verdict::Allowed);
            *limit = limit.clone().with_block(None);
        }
        self.with_estimate(false).with_repeat(true)
    }

    /// Records which parts the guard of an allowed request has.
    #[inline]
    pub(crate) fn set_held_parts(&mut self, held_parts: HeldParts) {
        self.flags.set(DecisionFlags::HOLDS_FIXED, held_parts.fixed);
        self.flags.set(DecisionFlags::HOLDS_UNTIL_END, held_parts.until_end);
    }

    /// Returns which parts the guard has that the store returned with the decision.
    #[inline]
    pub(crate) fn held_parts(&self) -> HeldParts {
        HeldParts {
            fixed: self.flags.has(DecisionFlags::HOLDS_FIXED),
            until_end: self.flags.has(DecisionFlags::HOLDS_UNTIL_END),
        }
    }

    /// Returns the decision as a denial by its most restrictive limit, on which the request has this cost: other requests
    /// wait for this limit.
    pub(crate) fn into_denied(self, cost: u64, retry_after: Duration) -> Self {
        let most_restrictive = self.most_restrictive.map(|status| status.into_denied(cost, retry_after));
        let deny = |status: &LimitStatus| match &most_restrictive {
            Some(denied) if denied.name() == status.name() => denied.clone(),
            _ => status.clone(),
        };
        let (verdict, all_limits) = (Verdict::Denied { retry_after }, self.all_limits.map(deny));
        Self { verdict: PackedVerdict::pack(verdict), most_restrictive, all_limits, ..self }
    }

    /// Returns an allowed decision as one for a start after this delay, if the delay is not zero.
    pub(crate) fn into_delayed(mut self, delay: Duration) -> Self {
        self.verdict =
            PackedVerdict::pack(if delay.is_zero() { Verdict::Allowed } else { Verdict::AllowedAfter(delay) });
        self
    }

    /// Returns the decision with the most restrictive limit only.
    pub(crate) fn most_restrictive_only(&self) -> Self {
        Self { all_limits: StatusList::EMPTY, ..self.clone() }
    }

    /// Returns whether the request is allowed, now or after [`delay`](Self::delay).
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.verdict.is_allowed()
    }

    /// Returns whether the request is allowed without a delay.
    #[inline]
    pub(crate) fn is_allowed_now(&self) -> bool {
        self.verdict.is_allowed_now()
    }

    /// Returns the verdict of all limits together.
    pub fn verdict(&self) -> Verdict {
        self.verdict.unpack()
    }

    /// Returns the time until an allowed request may start, zero for other decisions.
    pub fn delay(&self) -> Duration {
        match self.verdict() {
            Verdict::AllowedAfter(delay) => delay,
            _ => Duration::ZERO,
        }
    }

    /// Returns the exact time after which a denied request succeeds, if no other caller uses the key.
    ///
    /// Returns `None` if the request is allowed, and if its cost [exceeds the limit](Self::exceeds_limit).
    pub fn retry_after(&self) -> Option<Duration> {
        match self.verdict() {
            Verdict::Denied { retry_after } => Some(retry_after),
            _ => None,
        }
    }

    /// Returns [`retry_after`](Self::retry_after) in whole seconds, rounded up and at least 1, as for `Retry-After`.
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after().map(|wait| ceil_seconds(wait).max(1))
    }

    /// Returns whether the cost exceeds what a limit ever allows.
    pub fn exceeds_limit(&self) -> bool {
        self.verdict() == Verdict::ExceedsLimit
    }

    /// Returns whether a block denies the request: the key is [blocked](LimitStatus::is_blocked) under one of
    /// [`limits`](Self::limits) that is not a shadow.
    pub fn is_blocked(&self) -> bool {
        self.block_reason().is_some()
    }

    /// Returns the reason of the block that denies the request. Of several blocks, the one that ends last counts.
    pub fn block_reason(&self) -> Option<BlockReason> {
        let blocked = self.limits().iter().filter(|status| status.is_blocked() && !status.is_shadow());
        blocked.max_by_key(|status| status.verdict().strictness())?.block_reason()
    }

    /// Returns a denial by a limit as of a block of the limit for `duration`, which has begun with the denial.
    pub(crate) fn into_blocked(self, limit: &str, duration: Duration) -> Self {
        let block = |status: LimitStatus| if status.name() == limit { status.into_escalated(duration) } else { status };
        let verdict = self.verdict().stricter_of(Verdict::Denied { retry_after: duration });
        Self {
            verdict: PackedVerdict::pack(verdict),
            most_restrictive: self.most_restrictive.map(block),
            all_limits: self.all_limits.map(|status| block(status.clone())),
            ..self
        }
    }

    /// Returns whether a limit that is not a shadow is [near](LimitStatus::is_near_limit) after the decision.
    pub fn is_near_limit(&self) -> bool {
        self.limits().iter().any(|status| status.is_near_limit() && !status.is_shadow())
    }

    /// Returns whether no limit of the limiter [applies](crate::Limit::only_if) to the request, which is therefore allowed.
    ///
    /// The layer treats the request as one that its extractor exempts.
    pub fn is_exempt(&self) -> bool {
        self.most_restrictive.is_none()
            && self.source != DecisionSource::NoLimit
            && self.is_allowed_now()
            && self.limits().is_empty()
    }

    /// Returns the part of the system that made the decision.
    pub fn source(&self) -> DecisionSource {
        self.source
    }

    /// Returns the time of the decision by the store's clock.
    pub fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Returns the most restrictive limit, `None` if a policy decided or no limit applies.
    pub fn most_restrictive(&self) -> Option<&LimitStatus> {
        self.most_restrictive.as_ref()
    }

    /// Returns all limits in their declared order if the [`AcquireOptions`] say so, otherwise the most restrictive
    /// limit, all shadows, and the limits that are [near](LimitStatus::is_near_limit).
    pub fn limits(&self) -> &[LimitStatus] {
        match self.all_limits.get() {
            Some(limits) => limits,
            None => self.most_restrictive.as_slice(),
        }
    }

    /// Returns the shadow limits that would have denied the request, regardless of the [`AcquireOptions`].
    pub fn shadow_denials(&self) -> impl Iterator<Item = &LimitStatus> {
        self.limits().iter().filter(|status| status.is_shadow() && !status.verdict().is_allowed())
    }

    /// Returns the remaining cost of the most restrictive limit, `None` if a policy decided or no limit applies.
    pub fn remaining(&self) -> Option<u64> {
        self.most_restrictive().map(LimitStatus::remaining)
    }

    /// Returns the time until the key is idle at the most restrictive limit, `None` if a policy decided or no limit
    /// applies.
    pub fn reset(&self) -> Option<Duration> {
        self.most_restrictive().map(LimitStatus::reset)
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("verdict", &self.verdict())
            .field("source", &self.source)
            .field("supports_scheduling", &self.supports_scheduling)
            .field("is_estimate", &self.is_estimate())
            .field("is_denied_by_leases", &self.is_denied_by_leases())
            .field("has_too_many_ids", &self.has_too_many_ids())
            .field("is_repeat", &self.is_repeat())
            .field("decided_at", &self.decided_at)
            .field("limits", &self.limits())
            .finish_non_exhaustive()
    }
}
