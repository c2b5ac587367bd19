//! What a store has read of one limit.

use std::time::Duration;

use super::block::BlockReason;
use super::combine::Plan;
use super::near::NearLimit;
use super::shares::ShareRole;
use super::snapshot::LazySnapshot;
use super::verdict::Verdict;

/// The decision of one limit alone, and what the other limits need to know of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitReading {
    /// The verdict with the delay that the caller accepts.
    pub(crate) verdict: Verdict,
    /// The verdict for a caller that accepts no delay. If the limit does not schedule, the same as `verdict`; for a
    /// limit beside shares see [`combine_shares`].
    pub(crate) immediate: Verdict,
    /// The numbers before the decision.
    pub(crate) snapshot: LazySnapshot,
    /// The microseconds until the charged usage ends, if the reset of `snapshot` includes held costs, otherwise
    /// `u64::MAX`.
    pub(crate) charged_for: u64,
    /// The cost on this limit.
    pub(crate) cost: u64,
    /// The cost is held, not charged.
    pub(crate) holds: bool,
    /// The costs that are held on the key.
    pub(crate) held: u64,
    /// The microseconds until the key's block ends, zero if it is not blocked.
    pub(crate) blocked: u64,
    /// The reason of the block, if the key is blocked.
    pub(crate) block_reason: BlockReason,
    pub(crate) supports_scheduling: bool,
    /// The units of the limit return one after another. All algorithms that can schedule starts are buckets.
    pub(crate) is_bucket: bool,
    pub(crate) shadow: bool,
    pub(crate) share: ShareRole,
    /// The units that a common limit keeps free from the request. The snapshot includes them until
    /// [`combine_shares`].
    pub(crate) kept_free: u64,
    /// The request borrows: the share has no part in the decision.
    pub(crate) borrows: bool,
    pub(crate) counting: Counting,
    /// Whether the usage is at the limit's mark before the decision.
    pub(crate) near: NearLimit,
}

/// The numbers of a limit: before the decision, or after a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitNumbers {
    pub(crate) snapshot: LazySnapshot,
    /// What is known of the limit's mark.
    pub(crate) near: NearLimit,
}

/// Whether a limit counts a request that it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    Counts,
    /// The limit counts requests in flight, and the caller keeps no guard: the limit decides, and holds nothing.
    DecidesOnly,
    /// The table has no slot for the key of this shadow, which therefore does not count the request.
    NoSlot,
}

impl LimitReading {
    pub(crate) const EMPTY: Self = Self {
        verdict: Verdict::ExceedsLimit,
        immediate: Verdict::ExceedsLimit,
        snapshot: LazySnapshot::EMPTY,
        charged_for: u64::MAX,
        cost: 0,
        holds: false,
        held: 0,
        blocked: 0,
        block_reason: BlockReason::Administrator,
        supports_scheduling: false,
        is_bucket: false,
        shadow: false,
        share: ShareRole::None,
        kept_free: 0,
        borrows: false,
        counting: Counting::Counts,
        near: NearLimit::NONE,
    };

    /// Returns the reason of the key's block, if the key is blocked.
    #[inline]
    pub(crate) fn block(&self) -> Option<BlockReason> {
        (self.blocked > 0).then_some(self.block_reason)
    }

    /// Returns the numbers before the decision.
    #[inline]
    pub(crate) fn numbers(&self) -> LimitNumbers {
        LimitNumbers { snapshot: self.snapshot, near: self.near }
    }

    /// Returns the reading of a shadow or a share whose table has no slot for the key.
    pub(crate) fn without_slot(self) -> Self {
        Self { counting: Counting::NoSlot, ..self }
    }

    /// Returns the reading as of `span` earlier: denials and numbers count from then.
    #[cold]
    pub(crate) fn as_of_earlier(self, span: Duration) -> Self {
        let longer = |verdict| match verdict {
            Verdict::Denied { retry_after } => Verdict::Denied { retry_after: retry_after + span },
            verdict => verdict,
        };
        let snapshot = self.snapshot.compute().as_of_earlier(span).into();
        Self { verdict: longer(self.verdict), immediate: longer(self.immediate), snapshot, ..self }
    }

    /// Returns the wait of a caller that accepts no delay.
    pub(super) fn wait(&self) -> Duration {
        if let Verdict::Denied { retry_after } = self.immediate { retry_after } else { Duration::ZERO }
    }

    pub(super) fn charged_for(&self) -> Duration {
        match self.charged_for {
            u64::MAX => self.snapshot.compute().reset,
            micros => Duration::from_micros(micros),
        }
    }

    /// Returns the reading of a limit of a decision that is blocked for so long, for a caller that accepts a delay.
    ///
    /// Until then nothing is allowed, and from then on starts can be scheduled again. So the wait that a limit returns
    /// now for a caller that accepts no delay can be too long. `later` is the reading as of the end of the block, and
    /// `plan` the plan of these readings.
    pub(super) fn after_block(&self, blocked: Duration, later: &Self, plan: &Plan) -> Self {
        let verdict = match plan.verdict_of(later) {
            _ if self.shadow => self.verdict,
            Verdict::Denied { retry_after } => Verdict::Denied { retry_after: retry_after + blocked },
            Verdict::ExceedsLimit => Verdict::ExceedsLimit,
            _ if self.blocked == 0 => Verdict::Allowed,
            _ => Verdict::Denied { retry_after: Duration::from_micros(self.blocked) },
        };
        Self { verdict, immediate: verdict, ..*self }
    }
}

/// What contains the reading of one limit.
pub(crate) trait HasReading {
    fn reading(&self) -> &LimitReading;
    fn reading_mut(&mut self) -> &mut LimitReading;
}

impl HasReading for LimitReading {
    #[inline]
    fn reading(&self) -> &LimitReading {
        self
    }

    #[inline]
    fn reading_mut(&mut self) -> &mut LimitReading {
        self
    }
}
