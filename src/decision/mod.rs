//! What is asked of a limiter, and what it answers.

mod cold_drop;
mod options;
mod snapshot;
mod status;
mod verdict;

use std::fmt;
use std::time::Duration;

use self::cold_drop::ColdDrop;
pub use self::options::AcquireOptions;
pub use self::snapshot::{LazySnapshot, LimitSnapshot};
pub use self::status::LimitStatus;
pub(crate) use self::status::{Name, first_invalid_name_char};
use self::verdict::PackedVerdict;
pub use self::verdict::Verdict;
use crate::clock::Timestamp;

/// Who made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DecisionSource {
    /// The limiter's own store.
    #[default]
    Store,
    /// The limiter's own store, earlier: a refusal that still holds was remembered.
    Cache,
    /// Another limiter that stands in while the store can't answer.
    Fallback,
    /// A declared policy: for a store that can't answer, or that is full.
    Policy,
}

/// What a limiter decided, and how the key stands now.
///
/// Where several limits decide together, [`verdict`](Self::verdict) is over all of them, and
/// [`standing`](Self::standing) is the one that speaks: the one to wait longest for if the request is refused, else
/// the one with the least remaining. [`standings`](Self::standings) lists them all where the [`AcquireOptions`] wanted that.
#[derive(Clone, PartialEq)]
pub struct Decision {
    verdict: PackedVerdict,
    source: DecisionSource,
    supports_scheduling: bool,
    is_estimate: bool,
    decided_at: Timestamp,
    standing: Option<LimitStatus>,
    #[allow(clippy::box_collection, reason = "a word in every decision, for what few list")]
    every: ColdDrop<Box<Vec<LimitStatus>>>,
}

impl Decision {
    /// A decision of one limit.
    #[must_use]
    pub fn from_limit(decided_at: Timestamp, standing: LimitStatus) -> Self {
        Self {
            verdict: standing.verdict,
            source: DecisionSource::Store,
            supports_scheduling: false,
            is_estimate: false,
            decided_at,
            standing: Some(standing),
            every: ColdDrop::NOTHING,
        }
    }

    /// A decision of one limit, as a store makes it.
    #[inline(always)]
    pub(crate) fn from_store(decided_at: Timestamp, supports_scheduling: bool, standing: LimitStatus) -> Self {
        Self {
            verdict: standing.verdict,
            source: DecisionSource::Store,
            supports_scheduling,
            is_estimate: false,
            decided_at,
            standing: Some(standing),
            every: ColdDrop::NOTHING,
        }
    }

    /// A decision of several limits together, from all their standings; one without any limit is allowed.
    #[must_use]
    pub fn from_limits(decided_at: Timestamp, standings: Vec<LimitStatus>) -> Self {
        let mut decision = Self::by_policy(decided_at, Verdict::Allowed);
        decision.source = DecisionSource::Store;
        for standing in &standings {
            decision.merge(standing.clone());
        }
        decision.every = ColdDrop::of(Box::new(standings));
        decision
    }

    /// A decision of all of a store's limits, in their order; with `list_all` it lists them: see [`AcquireOptions::lists_all`].
    pub(crate) fn combine(
        decided_at: Timestamp,
        list_all: bool,
        mut standings: impl Iterator<Item = LimitStatus>,
    ) -> Self {
        match if list_all { None } else { standings.next() } {
            None => Self::from_limits(decided_at, standings.collect()),
            Some(first) => {
                let mut decision = Self::from_limit(decided_at, first);
                standings.for_each(|standing| decision.merge(standing));
                decision
            }
        }
    }

    /// The same refusal, remembered for a while.
    pub(crate) fn aged_by(&self, elapsed: Duration) -> Self {
        Self {
            verdict: self.verdict.aged_by(elapsed),
            source: DecisionSource::Cache,
            supports_scheduling: self.supports_scheduling,
            is_estimate: self.is_estimate,
            decided_at: self.decided_at.saturating_add(elapsed),
            standing: self.standing.as_ref().map(|standing| standing.aged_by(elapsed)),
            every: self.every.get().map_or(ColdDrop::NOTHING, |every| {
                ColdDrop::of(Box::new(every.iter().map(|standing| standing.aged_by(elapsed)).collect()))
            }),
        }
    }

    /// A decision that no limit made: a declared policy did, as the store could not answer.
    #[must_use]
    pub fn by_policy(decided_at: Timestamp, verdict: Verdict) -> Self {
        Self {
            verdict: PackedVerdict::pack(verdict),
            source: DecisionSource::Policy,
            supports_scheduling: false,
            is_estimate: false,
            decided_at,
            standing: None,
            every: ColdDrop::NOTHING,
        }
    }

    /// The same decision, made by somebody else.
    #[must_use]
    pub fn with_source(mut self, source: DecisionSource) -> Self {
        self.source = source;
        self
    }

    /// Notes that whoever decided promises later turns to those who accept a delay: so that a refusal means that none
    /// comes in time, and it is no use to wait and ask again.
    #[must_use]
    pub fn with_scheduling(mut self, supports_scheduling: bool) -> Self {
        self.supports_scheduling = supports_scheduling;
        self
    }

    /// Whether whoever decided promises later turns.
    #[must_use]
    pub fn supports_scheduling(&self) -> bool {
        self.supports_scheduling
    }

    /// Notes that [`retry_after`](Self::retry_after) is an estimate: the limiter cannot know when there will be room.
    #[must_use]
    pub fn with_estimate(mut self, is_estimate: bool) -> Self {
        self.is_estimate = is_estimate;
        self
    }

    /// Whether [`retry_after`](Self::retry_after) is an estimate.
    ///
    /// A denial is exact, unless costs are [held](crate::limiter::Held) on the key: the limiter cannot know when they are
    /// settled, and for how much. The estimate is the time that the key would have to wait if they were charged now.
    #[must_use]
    pub fn is_estimate(&self) -> bool {
        self.is_estimate
    }

    /// What was allowed after a delay, refused for that long.
    pub(crate) fn into_denied(mut self, retry_after: Duration) -> Self {
        self.verdict = PackedVerdict::pack(Verdict::Denied { retry_after });
        self
    }

    /// Counts in one more limit, unless it is a shadow.
    pub(crate) fn merge(&mut self, standing: LimitStatus) {
        if standing.shadow {
            return;
        }
        self.verdict = PackedVerdict::pack(self.verdict().stricter_of(standing.verdict()));
        let speaks = match &self.standing {
            None => true,
            Some(speaking) => louder(&standing, speaking),
        };
        if speaks {
            self.standing = Some(standing);
        }
    }

    /// Whether the request may pass, at once or after [`delay`](Self::delay).
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.verdict.is_allowed()
    }

    /// Whether it may pass at once.
    #[inline(always)]
    pub(crate) fn is_allowed_now(&self) -> bool {
        self.verdict.is_allowed_now()
    }

    /// The verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict.unpack()
    }

    /// How long an allowed request must wait for its turn. Zero if it need not, or is refused.
    #[must_use]
    pub fn delay(&self) -> Duration {
        match self.verdict() {
            Verdict::AllowedAfter(delay) => delay,
            _ => Duration::ZERO,
        }
    }

    /// For a refused request the exact time after which the same request succeeds, if nobody else uses the key.
    ///
    /// `None` if it is allowed, and if it can never be: [`exceeds_limit`](Self::exceeds_limit) tells.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.verdict() {
            Verdict::Denied { retry_after } => Some(retry_after),
            _ => None,
        }
    }

    /// Whether the request costs more than can ever be had.
    #[must_use]
    pub fn exceeds_limit(&self) -> bool {
        self.verdict() == Verdict::ExceedsLimit
    }

    /// Who decided.
    #[must_use]
    pub fn source(&self) -> DecisionSource {
        self.source
    }

    /// When it was decided, by the store's clock.
    #[must_use]
    pub fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// The limit that speaks. `None` if no limit was consulted: a policy decided.
    #[must_use]
    pub fn most_restrictive(&self) -> Option<&LimitStatus> {
        self.standing.as_ref()
    }

    /// Every limit in its declared order, where the [`AcquireOptions`] wanted that or there is one only; else the one that
    /// speaks.
    #[must_use]
    pub fn limits(&self) -> &[LimitStatus] {
        match self.every.get() {
            Some(every) => every,
            None => self.standing.as_slice(),
        }
    }

    /// The shadow limits that would have refused the request. They are known whatever the [`AcquireOptions`] wanted.
    pub fn shadow_denials(&self) -> impl Iterator<Item = &LimitStatus> {
        self.limits().iter().filter(|standing| standing.shadow && !standing.verdict().is_allowed())
    }

    /// How much could be had now, by the limit that speaks. `None` if a policy decided.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.most_restrictive().map(LimitStatus::remaining)
    }

    /// The time until the key is as good as new, by the limit that speaks. `None` if a policy decided.
    #[must_use]
    pub fn reset(&self) -> Option<Duration> {
        self.most_restrictive().map(LimitStatus::reset)
    }
}

/// Whether `new` speaks rather than `old`: the longer wait, or with none the smaller remainder. The first of equals.
fn louder(new: &LimitStatus, old: &LimitStatus) -> bool {
    let wait = |standing: &LimitStatus| match standing.verdict() {
        Verdict::Allowed => (0, Duration::ZERO),
        Verdict::AllowedAfter(delay) => (1, delay),
        Verdict::Denied { retry_after } => (2, retry_after),
        Verdict::ExceedsLimit => (3, Duration::ZERO),
    };
    match wait(new).cmp(&wait(old)) {
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Equal => new.remaining() < old.remaining(),
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("verdict", &self.verdict())
            .field("source", &self.source)
            .field("supports_scheduling", &self.supports_scheduling)
            .field("is_estimate", &self.is_estimate)
            .field("decided_at", &self.decided_at)
            .field("standings", &self.limits())
            .finish_non_exhaustive()
    }
}
