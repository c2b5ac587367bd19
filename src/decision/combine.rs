//! The rule that combines the limits of one request into one decision.
//!
//! A store reads each limit alone ([`LimitReading`]). [`Plan::of`] says what all limits decide together, and what each of
//! them is charged. After the charges, [`Plan::decide`] builds the decision. A store whose limits have another rule, such
//! as a chain of limiters, merges whole decisions: [`Decision::merge`].

use std::cmp::Reverse;
use std::iter;
use std::time::Duration;

use super::flags::DecisionFlags;
use super::near::NearLimit;
use super::options::{AcquireOptions, Detail};
use super::reading::{Counting, HasReading, LimitReading};
use super::shares::{ShareRole, combine_shares};
use super::status::LimitStatus;
use super::status_list::StatusList;
use super::verdict::Verdict;
use super::{Decision, DecisionSource};
use crate::clock::Timestamp;

/// What several limits decide together. A limit's verdict counts unless the limit is a shadow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The verdict of all limits together.
    pub(crate) verdict: Verdict,
    /// The limits schedule a common start. If not, each decides as for a caller that accepts no delay.
    schedules: bool,
    /// A limit holds its cost if it counts the request.
    pub(crate) holds: bool,
    is_estimate: bool,
    has_shadows: bool,
    /// A limit has a mark, so the decision may list limits that are near.
    has_marks: bool,
    limits: usize,
}

impl Plan {
    /// Creates the plan of limits of which all that are enforced allow the request now.
    #[inline]
    pub(crate) const fn allowed(limits: usize, schedules: bool, has_shadows: bool, has_marks: bool) -> Self {
        Self { verdict: Verdict::Allowed, schedules, holds: false, is_estimate: false, has_shadows, has_marks, limits }
    }

    /// Applies the whole rule to the readings of all limits: shares, schedules, and the end of a block.
    ///
    /// `read_later` returns the readings after the time that the block lasts. It is called only if the caller accepts a
    /// delay and a key is blocked.
    ///
    /// # Errors
    ///
    /// Returns the error of `read_later`.
    #[inline]
    pub(crate) fn of<T: HasReading, E>(
        limits: &mut [T],
        options: AcquireOptions,
        read_later: impl FnOnce(&mut [T], Duration) -> Result<Vec<LimitReading>, E>,
    ) -> Result<Self, E> {
        combine_shares(limits);
        let plan = Self::new(limits.iter().map(T::reading));
        match plan.block_to_await(options, limits.iter().map(T::reading)) {
            None => Ok(plan),
            Some(blocked) => plan.after_block(limits, blocked, read_later),
        }
    }

    #[cold]
    fn after_block<T: HasReading, E>(
        self,
        limits: &mut [T],
        blocked: Duration,
        read_later: impl FnOnce(&mut [T], Duration) -> Result<Vec<LimitReading>, E>,
    ) -> Result<Self, E> {
        let mut later = read_later(limits, blocked)?;
        combine_shares(&mut later);
        let later_plan = Self::new(later.iter());
        for (limit, later) in limits.iter_mut().zip(&later) {
            let reading = limit.reading_mut();
            *reading = reading.after_block(blocked, later, &later_plan);
        }
        // Whether the limits schedule starts does not depend on the block.
        Ok(Self { schedules: self.schedules, ..Self::new(limits.iter().map(T::reading)) })
    }

    /// Applies the rule to the readings of limits without shares and blocks.
    #[inline]
    pub(crate) fn new<'a>(readings: impl Iterator<Item = &'a LimitReading> + Clone) -> Self {
        Self::with_schedule(readings.clone(), || lasts_until_start(readings))
    }

    /// Applies the rule to the readings of all limits. `can_schedule` says whether all of them can schedule a common
    /// start, if each supports scheduling.
    #[inline]
    pub(crate) fn with_schedule<'a>(
        readings: impl Iterator<Item = &'a LimitReading> + Clone,
        can_schedule: impl FnOnce() -> bool,
    ) -> Self {
        let mut plan = Self::allowed(0, true, false, false);
        let mut all_allow = true;
        for reading in readings.clone() {
            plan.limits += 1;
            plan.has_shadows |= reading.shadow;
            plan.has_marks |= reading.near.has(NearLimit::HAS_MARK);
            plan.holds |= reading.holds;
            // A request whose cost an enforced limit holds must start now.
            plan.schedules &= reading.shadow || reading.supports_scheduling && !reading.holds;
            all_allow &= reading.verdict == Verdict::Allowed;
        }
        // A limit that allows the request now does so too for a caller that accepts no delay.
        if all_allow {
            return plan;
        }
        plan.schedules = plan.schedules && can_schedule();
        for reading in enforced(readings) {
            let own = plan.verdict_of(reading);
            plan.verdict = plan.verdict.stricter_of(own);
            // When a hold ends is unknown, so a wait behind a held cost is an estimate. When the table of shares has a slot
            // is unknown, too.
            plan.is_estimate |= reading.held > 0 && (!own.is_allowed() || reading.borrows)
                || reading.share == ShareRole::Share && reading.counting == Counting::NoSlot;
        }
        plan
    }

    /// Returns after what time the limits must be read again, because a block ends then.
    ///
    /// The caller accepts a delay, so each limit decides [as of the end of the block](LimitReading::after_block).
    fn block_to_await<'a>(
        &self,
        options: AcquireOptions,
        readings: impl Iterator<Item = &'a LimitReading> + Clone,
    ) -> Option<Duration> {
        // Nothing is scheduled beside a share, so the waits of now are exact.
        let has_share = readings.clone().any(|reading| reading.share == ShareRole::Share);
        let accepts_delay = !options.hold && options.max_delay.is_none_or(|max_delay| !max_delay.is_zero());
        let holds = enforced(readings.clone()).any(|reading| reading.holds);
        if self.limits < 2 || has_share || holds || self.verdict.is_allowed() || !accepts_delay {
            return None;
        }
        let blocked = enforced(readings).map(|reading| reading.blocked).max().unwrap_or_default();
        (blocked > 0).then(|| Duration::from_micros(blocked))
    }

    /// Returns the verdict of one of the limits.
    #[inline]
    pub(crate) fn verdict_of(&self, reading: &LimitReading) -> Verdict {
        if self.schedules { reading.verdict } else { reading.immediate }
    }

    /// Returns whether one of the limits counts the request if all allow it.
    #[inline]
    pub(crate) fn counts(&self, reading: &LimitReading) -> bool {
        reading.counting == Counting::Counts
            && !reading.borrows
            && self.verdict.is_allowed()
            && (!reading.shadow || self.verdict_of(reading).is_allowed())
    }

    /// Returns the delay after which the request is charged to one of the limits, or its cost is held there.
    #[inline]
    pub(crate) fn charge_of(&self, reading: &LimitReading) -> Option<Duration> {
        if reading.cost == 0 || !self.counts(reading) {
            return None;
        }
        // A shadow counts the request at the start that it would have scheduled.
        match if reading.shadow { self.verdict_of(reading) } else { self.verdict } {
            Verdict::AllowedAfter(delay) => Some(delay),
            _ => Some(Duration::ZERO),
        }
    }

    /// Builds the decision. The parts are in the order of the limits, with their numbers after the charges.
    #[inline]
    pub(crate) fn decide<P: DecisionPart>(
        &self,
        decided_at: Timestamp,
        options: AcquireOptions,
        mut parts: impl Iterator<Item = P>,
    ) -> Decision {
        let mut decision = Decision::without_limit(decided_at, self.verdict);
        decision.source = DecisionSource::Store;
        decision.supports_scheduling = self.schedules;
        decision.flags.set(DecisionFlags::ESTIMATE, self.is_estimate && !self.verdict.is_allowed());
        let lists_all = self.limits > 1 && options.lists_all(self.verdict);
        if lists_all || self.has_shadows || (self.has_marks && self.limits > 1) {
            decision.list(parts.map(P::into_status).collect(), lists_all);
        } else {
            let strictest = if self.limits == 1 { parts.next() } else { most_restrictive(parts) };
            decision.most_restrictive = strictest.map(P::into_status);
        }
        decision
    }
}

fn enforced<'a>(
    readings: impl Iterator<Item = &'a LimitReading> + Clone,
) -> impl Iterator<Item = &'a LimitReading> + Clone {
    readings.filter(|reading| !reading.shadow)
}

/// Returns whether the usage that each limit has charged lasts until the start that the other limits demand.
///
/// A limit that is idle before would have capacity until then, and a charge at the start would take that capacity from
/// every other request. Held costs do not count: they are no part of the state that is charged, and do not drain. Resets
/// and waits come nearer at the same pace. So the result stays the same until a limit is charged, and the wait of a
/// denial is exact whether the limits schedule or not.
#[inline]
fn lasts_until_start<'a>(readings: impl Iterator<Item = &'a LimitReading> + Clone) -> bool {
    let (mut longest, mut second) = (Duration::ZERO, Duration::ZERO);
    for reading in enforced(readings.clone()) {
        match reading.immediate {
            Verdict::Allowed => {}
            // Denied for good, whatever the others schedule.
            Verdict::ExceedsLimit => return true,
            _ if reading.wait() > longest => (longest, second) = (reading.wait(), longest),
            _ => second = second.max(reading.wait()),
        }
    }
    longest.is_zero()
        || enforced(readings).all(|reading| {
            // The longest wait of the other limits. If two limits share the longest wait, `second` equals it.
            let others = if reading.wait() == longest { second } else { longest };
            others.is_zero() || reading.charged_for() >= others
        })
}

/// One limit's part of a decision. The status is made on demand: it shares the limit's name, which takes an atomic
/// operation.
pub(crate) trait DecisionPart {
    fn is_shadow(&self) -> bool;
    /// Returns whether the limit has no part in the decision: a share from which the request borrows.
    fn is_borrowing(&self) -> bool;
    fn verdict(&self) -> Verdict;
    /// Returns the largest cost that is allowed after the decision.
    fn remaining(&self) -> u64;
    fn into_status(self) -> LimitStatus;
}

impl DecisionPart for LimitStatus {
    #[inline]
    fn is_shadow(&self) -> bool {
        Self::is_shadow(self)
    }

    #[inline]
    fn is_borrowing(&self) -> bool {
        Self::is_borrowing(self)
    }

    #[inline]
    fn verdict(&self) -> Verdict {
        self.verdict.unpack()
    }

    #[inline]
    fn remaining(&self) -> u64 {
        Self::remaining(self)
    }

    #[inline]
    fn into_status(self) -> LimitStatus {
        self
    }
}

/// Returns the most restrictive of enforced limits: the longest wait, then the least remaining, then the first.
#[inline]
fn most_restrictive<P: DecisionPart>(parts: impl Iterator<Item = P>) -> Option<P> {
    // The remaining of each limit is computed once: row "three limits, dynamic" of benches/figures.md.
    let rank = |part: &P| (part.verdict().strictness(), Reverse(part.remaining()));
    let mut parts = parts.filter(|part| !part.is_shadow() && !part.is_borrowing());
    let first = parts.next()?;
    let Some(second) = parts.next() else { return Some(first) };
    let mut strictest = (rank(&first), first);
    for part in iter::once(second).chain(parts) {
        let rank = rank(&part);
        if rank > strictest.0 {
            strictest = (rank, part);
        }
    }
    Some(strictest.1)
}

impl DecisionPart for (usize, &LimitStatus) {
    fn is_shadow(&self) -> bool {
        self.1.is_shadow()
    }

    fn is_borrowing(&self) -> bool {
        self.1.is_borrowing()
    }

    fn verdict(&self) -> Verdict {
        self.1.verdict()
    }

    fn remaining(&self) -> u64 {
        self.1.remaining()
    }

    fn into_status(self) -> LimitStatus {
        self.1.clone()
    }
}

impl AcquireOptions {
    /// Returns whether the decision of several limits lists all of them.
    #[inline]
    pub(crate) fn lists_all(self, verdict: Verdict) -> bool {
        match self.detail {
            Detail::MostRestrictive => false,
            Detail::AllIfDenied => !verdict.is_allowed(),
            Detail::All => true,
        }
    }
}

impl Decision {
    /// Creates the decision of limits that all allow the request now, and of which some are listed: all, or as
    /// [`Plan::decide`] lists them if there are shadows.
    pub(crate) fn of_listed(
        decided_at: Timestamp,
        supports_scheduling: bool,
        statuses: StatusList,
        lists_all: bool,
    ) -> Self {
        let mut decision = Self::without_limit(decided_at, Verdict::Allowed);
        decision.source = DecisionSource::Store;
        decision.supports_scheduling = supports_scheduling;
        decision.list(statuses, lists_all);
        decision
    }

    /// Creates a decision of several limits that lists all of them; without a limit it is allowed.
    pub fn from_limits(decided_at: Timestamp, limits: Vec<LimitStatus>) -> Self {
        let verdicts = limits.iter().filter(|status| !status.is_shadow()).map(LimitStatus::verdict);
        let verdict = verdicts.fold(Verdict::Allowed, Verdict::stricter_of);
        let mut decision = Self::without_limit(decided_at, verdict);
        decision.source = DecisionSource::Store;
        decision.list(limits.into_iter().collect(), true);
        decision
    }

    /// Adds the most restrictive limit, and the limits that the decision lists: all, or the most restrictive one, the
    /// shadows, and those that are near.
    // In place: row "shadow" of benches/figures.md.
    #[cold]
    fn list(&mut self, mut statuses: StatusList, lists_all: bool) {
        let listed = statuses.get().unwrap_or_default();
        let strictest = most_restrictive(listed.iter().enumerate());
        let index = strictest.map(|(index, _)| index);
        self.most_restrictive = strictest.map(|(_, status)| status.clone());
        // Beside shadows alone, the one enforced limit is the most restrictive one.
        let is_one_beside_shadows =
            index.is_some() && listed.iter().filter(|status| !status.is_shadow()).nth(1).is_none();
        if !lists_all && !is_one_beside_shadows {
            let mut next = 0..;
            statuses.retain_mut(|status| {
                let is_listed = next.next() == index || status.is_shadow();
                if !is_listed && status.is_near_limit() {
                    status.near = status.near.with(NearLimit::LISTED_AS_NEAR);
                }
                is_listed || status.is_near_limit()
            });
        }
        let count = statuses.get().map_or(0, <[_]>::len);
        let is_listed_by_itself = !lists_all && index.is_some() && count == 1;
        if !is_listed_by_itself {
            self.all_limits = statuses;
        }
    }

    /// Merges the decisions of limiters that must all allow the request, each with limits of its own.
    pub(crate) fn merge(options: AcquireOptions, parts: &[Self]) -> Self {
        let names_limit = |part: &Self| part.most_restrictive().is_some();
        let is_table_full = |part: &Self| !part.is_allowed() && part.is_estimate() && !names_limit(part);
        let denied_by_limit = parts.iter().any(|part| !part.is_allowed() && names_limit(part));
        // Beside a limit's denial, a full table says nothing: one limiter of all limits would not look for a slot.
        let parts: Vec<_> = parts.iter().filter(|part| !(denied_by_limit && is_table_full(part))).collect();
        let decided_at = parts.iter().map(|part| part.decided_at()).max().unwrap_or_default();
        let listed =
            Self::from_limits(decided_at, parts.iter().flat_map(|part| part.limits().iter().cloned()).collect());
        let verdict = parts.iter().map(|part| part.verdict()).fold(Verdict::Allowed, Verdict::stricter_of);
        let mut decision = Self::without_limit(decided_at, verdict);
        // Otherwise a policy made the verdict, and no limit did.
        if listed.verdict() == verdict {
            decision.list(listed.limits().iter().cloned().collect(), options.lists_all(verdict));
        }
        // The source of a limiter that denied; if both allowed, of one that did not decide by its store.
        let deciding = parts.iter().filter(|part| part.is_allowed() == verdict.is_allowed());
        let source = deciding.map(|part| part.source()).find(|source| *source != DecisionSource::Store);
        let denials = || parts.iter().filter(|part| !part.is_allowed());
        decision
            .with_source(source.unwrap_or_default())
            .with_estimate(denials().any(|part| part.is_estimate()))
            .with_denied_by_leases(denials().count() > 0 && denials().all(|part| part.is_denied_by_leases()))
    }
}
