//! The pure part of a decision: what a limit reads from the state of a key, and the state after a charge.
//!
//! A store makes a decision in three steps, of which only the first and the last see states:
//!
//! 1. [`Transition::read`] makes a reading of each limit.
//! 2. [`Plan`](crate::decision::Plan) combines the readings.
//! 3. [`Transition::charge`] makes the next state of each limit that the plan charges. The store writes all of them or
//!    none. A charge needs the delay on which all limits have agreed, so it cannot be a part of the reading.

use std::time::Duration;

use super::{AlgorithmSelector, Limit};
use crate::algorithm::{Algorithm, AlgorithmExt as _, ChargeOptions, State, Step};
use crate::clock::{Timestamp, micros_floor};
use crate::decision::{
    AcquireOptions, BlockReason, Costs, Counting, LazySnapshot, LimitReading, NearLimit, ShareRole, Verdict, WarnAt,
};

/// What a reading must contain besides the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// A snapshot if the limit denies. Otherwise the charge makes one.
    IfDenied,
    /// A snapshot in any case.
    Snapshot,
    /// A snapshot, and the verdict for a caller that accepts no delay: for several limits.
    Together,
}

/// One limit of a decision, with the algorithm for the key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transition<'a, A> {
    algorithm: &'a A,
    /// The cost and the delay of the decision for this limit. Not all options, of which a decision would make copies: row
    /// "memory share, borrowing" of benches/figures.md.
    options: ChargeOptions,
    /// The limit holds the cost. A hold starts now or is denied.
    holds: bool,
    keeps_guard: bool,
    /// The decision holds its cost. A limit with a fixed cost charges it, and starts now, too.
    is_hold: bool,
    shadow: bool,
    /// The units that are kept free from the request, if the limit keeps any free.
    kept_free: Option<u64>,
    share: ShareRole,
    /// The mark of the near-limit signal, if the limit has one.
    warn_at: Option<WarnAt>,
}

impl<C: AlgorithmSelector, P> Limit<C, P> {
    /// Returns the options of a decision for this limit.
    #[inline]
    pub(crate) fn options(&self, options: AcquireOptions) -> AcquireOptions {
        let options = self.cost.options(options);
        if C::Algorithm::HELD_UNTIL_END { options.hold_cost().max_delay(Duration::ZERO) } else { options }
    }

    /// Returns whether the limit holds its cost of a request with these options.
    #[inline]
    pub(crate) fn holds(&self, options: &AcquireOptions) -> bool {
        C::Algorithm::HELD_UNTIL_END || options.hold && (options.holds_fixed_costs || !self.cost.is_fixed())
    }

    /// Returns the cost that this limit has charged for a request of these costs. A repeat of the request is charged only
    /// what exceeds it. A limit in flight has charged nothing.
    #[cold]
    pub(crate) fn charge_before_of(&self, charged: Costs) -> u64 {
        if C::Algorithm::HELD_UNTIL_END { 0 } else { self.cost.options(charged.into()).cost }
    }

    /// Returns the limit's part of a decision on a key from whose requests `kept_free` units are kept free.
    #[inline]
    pub(crate) fn transition<'a>(
        &self,
        algorithm: &'a C::Algorithm,
        kept_free: Option<u64>,
        options: AcquireOptions,
    ) -> Transition<'a, C::Algorithm> {
        let (is_hold, options, share) = (options.hold, self.options(options), self.share.role);
        let (holds, keeps_guard) = (options.hold, options.keeps_guard);
        let options = ChargeOptions::within(options.cost, if holds { Some(Duration::ZERO) } else { options.max_delay });
        let warn_at = self.warn_keys().map(|keys| keys.warn_at);
        Transition { algorithm, options, holds, keeps_guard, is_hold, shadow: self.shadow, kept_free, share, warn_at }
    }
}

impl<A: Algorithm> Transition<'_, A> {
    /// Charges less by `charge_before`, which was charged before for the same request.
    #[cold]
    pub(crate) fn less(mut self, charge_before: u64) -> Self {
        self.options.cost = self.options.cost.saturating_sub(charge_before);
        self
    }

    /// Decides on a state, as if the costs that are `held` on the key were charged.
    ///
    /// `block` is the time until the block of the key ends, and its reason. Most keys are not blocked.
    // Without inlining of this function and `charge`, 3662 instructions instead of 3405: row "three limits, dynamic" of
    // benches/figures.md.
    #[inline(always)]
    pub(crate) fn read(
        &self,
        state: &A::State,
        held: u64,
        block: Option<(Duration, BlockReason)>,
        now: Timestamp,
        mode: ReadMode,
    ) -> LimitReading {
        let (blocked, block_reason) = block.unwrap_or_default();
        let &Self { algorithm, options, holds, keeps_guard, is_hold, shadow, kept_free, share, warn_at } = self;
        let cost = options.cost;
        // A hold changes no state, so no later start can be scheduled.
        let is_bucket = algorithm.supports_scheduling();
        let mut supports_scheduling = is_bucket && !is_hold && kept_free.is_none() && share == ShareRole::None;
        let decides_only = A::HELD_UNTIL_END && !keeps_guard;
        let counting = if decides_only { Counting::DecidesOnly } else { Counting::Counts };
        // A share schedules nothing ahead.
        let alone = ChargeOptions::within(cost, Some(Duration::ZERO));
        let options = match if share == ShareRole::Share { Some(0) } else { kept_free } {
            None => options,
            Some(units) => ChargeOptions::within(cost.saturating_add(units), Some(Duration::ZERO)),
        };
        let (mut verdict, mut snapshot, charged_for) = if held > 0 || holds {
            let (verdict, snapshot) = algorithm.peek_with_held(state, now, options, held);
            (verdict, snapshot, micros_floor(algorithm.snapshot(state, now).compute().reset))
        } else {
            (algorithm.peek(state, now, options), LazySnapshot::EMPTY, u64::MAX)
        };
        let mut immediate = if mode == ReadMode::Together && supports_scheduling && verdict != Verdict::Allowed {
            algorithm.peek_with_held(state, now, ChargeOptions::within(options.cost, Some(Duration::ZERO)), held).0
        } else {
            verdict
        };
        if share == ShareRole::Common {
            // A request within its share needs no free units: see `combine_shares`.
            immediate = algorithm.peek_with_held(state, now, alone, held).0;
        }
        if !blocked.is_zero() {
            // No start is scheduled during the block. If a start after the block is early enough, the caller retries
            // then.
            supports_scheduling &= !verdict.is_allowed();
            let blocked = Verdict::Denied { retry_after: blocked };
            (verdict, immediate) = (verdict.stricter_of(blocked), immediate.stricter_of(blocked));
        }
        let may_charge = mode == ReadMode::IfDenied
            && cost > 0
            && counting == Counting::Counts
            && share == ShareRole::None
            && warn_at.is_none();
        if held == 0 && !(may_charge && verdict.is_allowed()) {
            snapshot = algorithm.snapshot(state, now);
        }
        if share == ShareRole::None {
            snapshot = snapshot.keeping_free(kept_free, verdict.wait_for_more(cost), is_bucket);
        }
        LimitReading {
            verdict,
            immediate,
            snapshot,
            charged_for,
            cost,
            holds,
            held,
            blocked: micros_floor(blocked),
            block_reason,
            supports_scheduling,
            is_bucket,
            shadow,
            share,
            kept_free: kept_free.unwrap_or_default(),
            borrows: false,
            counting,
            // Beside a share, a mark is a part of the whole limit: not all requests keep units free.
            near: warn_at.map_or(NearLimit::NONE, |warn_at| warn_at.level(&snapshot)),
        }
    }

    /// Returns the state after a charge for a start after `delay`. The state has not changed since the reading.
    // See `read`.
    #[inline(always)]
    pub(crate) fn charge(
        &self,
        state: &A::State,
        reading: &LimitReading,
        now: Timestamp,
        delay: Duration,
    ) -> Option<<A::State as State>::Next> {
        // The same decision makes the next state, unless other limits delay the request or costs are held. The common
        // case of `decide` is in line: row "three limits, dynamic" of benches/figures.md.
        let is_unchanged = reading.verdict == Verdict::Allowed && delay.is_zero() && reading.held == 0;
        let forced = ChargeOptions::forced(self.options.cost, delay);
        let mut step = self.algorithm.decide(state, now, if is_unchanged { self.options } else { forced });
        if !matches!(step, Step::Allow { .. }) {
            // The key selects another algorithm by now.
            step = self.algorithm.decide(state, now, forced);
        }
        if let Step::Allow { next, .. } = step { Some(next) } else { None }
    }

    /// Returns the numbers of a state after the decision, for the next request. They include the units that are kept
    /// free: see [`LimitReading::kept_free`].
    #[inline]
    pub(crate) fn snapshot(&self, state: &A::State, held: u64, now: Timestamp) -> LazySnapshot {
        if held == 0 {
            self.algorithm.snapshot(state, now)
        } else {
            self.algorithm.peek_with_held(state, now, self.options, held).1
        }
    }
}
