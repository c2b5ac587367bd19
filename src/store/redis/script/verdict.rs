use std::time::Duration;

use super::encode::NO_KEY;
use super::fields::{CANNOT_SCHEDULE, DENIED_BY_LEASES, FIRST_BLOCKED, Failure, Operation, REPEATED};
use super::limit_info::{LimitInfo, OwnAlgorithm, limit_has_no_algorithm};
use super::replay::DynLuaAlgorithm;
use super::reply::{ReplayedState, ReplyReader, to_unsigned};
use super::template::OperationTemplate;
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, BlockReason, Decision, LazySnapshot, LimitSnapshot, LimitStatus, Verdict};
use crate::error::Error;
use crate::store::inner::{LimitReading, NearLimit, Plan, ShareRole, StateEncoding};

/// The script's reply to one decision: a value for each limit, 0 for a limit that does not apply.
pub(crate) struct ScriptVerdict {
    values: Vec<i64>,
    /// Of a denied repeat: for how many microseconds the id is remembered.
    flags: u64,
    /// For each limit a bit: the key is blocked.
    blocked: u64,
    /// For each limit a bit: the reason of the block is an escalation.
    escalated: u64,
    /// For each limit whose state is too large to travel, the three numbers of its snapshot.
    views: Vec<[u64; 3]>,
}

/// A request repeats a remembered id.
pub(crate) enum Repeated {
    /// For each limit what the request was charged.
    Charged(Vec<u64>),
    /// What it was charged has changed since the client was told.
    Changed,
}

/// The replay of a batch at one of its operations.
pub(crate) struct Replay<'a> {
    pub(crate) now: Timestamp,
    pub(crate) limits: &'a [LimitInfo],
    /// For each limit the algorithm chosen by the key. Empty if no limit's algorithm depends on the key.
    pub(crate) algorithms: &'a [OwnAlgorithm],
    /// For each limit the index of the operation's key in `states`.
    pub(crate) key_indices: &'a [u16],
    pub(crate) states: &'a mut [ReplayedState],
    /// The script did not make the decision, because its reply would have come too late.
    pub(crate) was_late: bool,
}

impl Replay<'_> {
    /// Returns whether the limit with this index has a part in the operation.
    pub(crate) fn applies(&self, limit: usize) -> bool {
        self.key_indices[limit] != NO_KEY
    }

    pub(crate) fn state(&mut self, limit: usize) -> &mut ReplayedState {
        &mut self.states[usize::from(self.key_indices[limit])]
    }

    /// Replays a settlement on the limit with this index.
    pub(crate) fn settle(
        &mut self,
        limit: usize,
        algorithm: Option<&dyn DynLuaAlgorithm>,
        released: i64,
        charged: i64,
    ) {
        let (now, encoding) = (self.now, self.limits[limit].script.state_encoding());
        let state = self.state(limit);
        state.held = state.held.saturating_add_signed(-released);
        if let (Some(algorithm), 1.., StateEncoding::Full) = (algorithm, charged, encoding) {
            state.replay_charge(algorithm, now, charged.unsigned_abs());
        }
    }
}

impl ScriptVerdict {
    pub(crate) fn read(reply: &mut ReplyReader<'_>, replay: &Replay<'_>) -> Option<Self> {
        let limits = replay.limits;
        // `collect` would not know the length.
        let mut values = Vec::with_capacity(limits.len());
        for index in 0..limits.len() {
            values.push(if replay.applies(index) { reply.next_i64()? } else { 0 });
        }
        let flags = if reply.used_fast_path { 0 } else { reply.next_i64()? };
        let failure = values.iter().copied().find_map(Failure::of);
        let mut views = Vec::new();
        let mut is_invalid = values.contains(&ReplyReader::NOT_A_NUMBER);
        if failure.is_none() {
            let has_view = |(index, limit): &(usize, &LimitInfo)| {
                limit.script.state_encoding() == StateEncoding::Header && replay.applies(*index)
            };
            for _ in limits.iter().enumerate().filter(has_view) {
                let view = reply.next_array::<3>()?.map(to_unsigned);
                is_invalid |= view.contains(&None);
                views.push(view.map(Option::unwrap_or_default));
            }
        }
        // One value decides for all limits. There is one, as one of them, or a view of a limit, is invalid.
        if is_invalid {
            values[0] = Failure::InvalidState.result();
        }
        let flags = flags.unsigned_abs();
        // The script has one flag for each limit that applies, and then another one.
        let mut bits = flags / FIRST_BLOCKED;
        let [blocked, escalated] = [(); 2].map(|()| {
            let mut of_limits = 0;
            for index in (0..limits.len()).filter(|index| replay.applies(*index)) {
                of_limits |= (bits & 1) << index;
                bits >>= 1;
            }
            of_limits
        });
        Some(Self { values, flags, blocked, escalated, views })
    }

    fn has_flag(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// Returns the reason of the key's block under the limit with this index, if the key is blocked.
    fn block(&self, index: usize) -> Option<BlockReason> {
        let has = |bits: u64| bits >> index & 1 != 0;
        let reason = if has(self.escalated) { BlockReason::Escalation } else { BlockReason::Administrator };
        has(self.blocked).then_some(reason)
    }

    pub(crate) fn has(&self, failure: Failure) -> bool {
        self.values.contains(&failure.result())
    }

    /// Returns how a hold with an id has failed, if it has: by an error, or by a denial.
    pub(crate) fn failed_reservation(
        &self,
        template: &OperationTemplate,
        now: Timestamp,
    ) -> Option<Result<Decision, Error>> {
        if template.operation != Operation::Reserve {
            return None;
        }
        match self.values.iter().copied().find_map(Failure::of)? {
            Failure::Conflict => Some(Err(Error::id_conflict())),
            Failure::AlreadySettled => Some(Err(Error::already_settled())),
            Failure::Repeated => Some(Ok(Decision::denied_repeat(now, Duration::from_micros(self.flags)))),
            Failure::TooManyIds => Some(Ok(Decision::too_many_ids(now))),
            _ => None,
        }
    }

    /// Returns what the server says about a request that repeats a remembered id, in place of a decision.
    pub(crate) fn repeated_request(&self, template: &OperationTemplate) -> Option<Repeated> {
        if !matches!(template.operation, Operation::Once | Operation::OnceHold) {
            return None;
        }
        if self.has(Failure::Conflict) {
            return Some(Repeated::Changed);
        }
        self.has_flag(REPEATED)
            .then(|| Repeated::Charged(self.values.iter().map(|cost| to_unsigned(*cost).unwrap_or_default()).collect()))
    }

    /// For each limit, whether the server does not know the session of the hold. `None` if it knows all.
    pub(crate) fn expired_sessions(&self) -> Option<Vec<bool>> {
        let expired: Vec<_> = self.values.iter().map(|value| *value == Failure::Expired.result()).collect();
        expired.contains(&true).then_some(expired)
    }

    /// Returns an error if the server could not hold the cost.
    pub(crate) fn check_hold(&self) -> Result<(), Error> {
        if self.has(Failure::Unsupported) {
            return Err(Error::unsupported(
                "hold failed: the Lua script of an algorithm has no function `charge`; add one (see `LuaAlgorithm`)",
            ));
        }
        if self.has(Failure::Full) {
            return Err(Error::unavailable(
                "hold failed: 64 sessions of other limiters hold costs on this key, which is the maximum; use fewer \
                 limiters that hold on one key, or a sub-key for each of them",
            ));
        }
        Ok(())
    }

    /// Replays the decision. Returns it, and for each limit the held cost, if the limit holds one (holds only).
    ///
    /// `template` is the decision's template, and `key` returns the key of the limit with an index.
    pub(crate) fn decision<'a>(
        &self,
        options: AcquireOptions,
        template: &OperationTemplate,
        replay: &mut Replay<'_>,
        key: impl Fn(usize) -> &'a [u8],
    ) -> Result<(Decision, Vec<Option<u64>>), Error> {
        let (now, limits, algorithms) = (replay.now, replay.limits, replay.algorithms);
        let is_repeat = self.has_flag(REPEATED);
        let charges = template.operation != Operation::Peek && !is_repeat;
        let kept_free = |index: usize| template.kept_free.get(index).copied().flatten();
        let is_common = |limit: &LimitInfo| limit.facts.share.role == ShareRole::Common && !limit.facts.is_shadow;
        let can_borrow = limits.iter().enumerate().any(|(index, limit)| replay.applies(index) && is_common(limit));
        let mut is_within_share = false;
        let mut readings = Vec::with_capacity(limits.len());
        for (index, (limit, &value)) in limits.iter().zip(&self.values).enumerate() {
            if !replay.applies(index) {
                continue;
            }
            let algorithm = limit.select(index, algorithms).ok_or_else(limit_has_no_algorithm)?;
            // The script returns the verdicts by which the limits decide together.
            let (mut verdict, own) = (parse_verdict(value), template.options(index, limit, options));
            // A share has its own verdict: above its share, the request borrows.
            let is_share = limit.facts.share.role == ShareRole::Share;
            is_within_share |= is_share && verdict == Verdict::Allowed;
            let borrows = is_share && verdict != Verdict::Allowed && self.block(index).is_none() && can_borrow;
            if borrows {
                verdict = Verdict::Allowed;
            }
            let reading = LimitReading {
                verdict,
                immediate: verdict,
                cost: own.cost,
                holds: own.hold,
                held: replay.state(index).held,
                is_bucket: algorithm.supports_scheduling(),
                supports_scheduling: algorithm.supports_scheduling()
                    && !options.hold
                    && kept_free(index).is_none()
                    && limit.facts.share.role == ShareRole::None,
                near: if limit.warn_keys.is_some() { NearLimit::HAS_MARK } else { NearLimit::NONE },
                shadow: limit.facts.is_shadow,
                share: limit.facts.share.role,
                borrows,
                ..LimitReading::EMPTY
            };
            readings.push((index, algorithm, reading));
        }
        let plan = Plan::with_schedule(readings.iter().map(|reading| &reading.2), || !self.has_flag(CANNOT_SCHEDULE));
        let mut views = self.views.iter();
        let mut statuses = Vec::with_capacity(limits.len());
        let mut held_costs = vec![None; limits.len()];
        for &(index, algorithm, ref reading) in &readings {
            let (limit, state) = (&limits[index], replay.state(index));
            let options = template.options(index, limit, options);
            let held = (options.hold && charges && plan.counts(reading)).then_some(options.cost);
            let charged_after = plan.charge_of(reading).filter(|_| charges);
            let is_view = limit.script.state_encoding() == StateEncoding::Header;
            let before = if limit.warn_keys.is_some() && !is_view {
                let held = state.held;
                Some(state.replay(|numbers| algorithm.replay(numbers, now, options, None, held))?)
            } else {
                None
            };
            if !mistake!(HeldCostsAreNotAdded) {
                state.held = state.held.saturating_add(held.unwrap_or(0));
            }
            held_costs[index] = held;
            let all = if is_view {
                algorithm.replay_view(views.next().copied().unwrap_or_default(), now)
            } else {
                // A hold charges no state: its cost is in `held`.
                let (charged_after, held) = (charged_after.filter(|_| !options.hold), state.held);
                state.replay(|numbers| algorithm.replay(numbers, now, options, charged_after, held))?
            };
            let needs_free = !(is_within_share && limit.facts.share.role == ShareRole::Common);
            let kept_free = kept_free(index).filter(|_| needs_free).unwrap_or_default();
            let mut reading = LimitReading { kept_free, ..*reading };
            let keys = limit.warn_keys.as_ref();
            let numbers = if charged_after.is_some() {
                reading.near = reading.numbers_of(keys, before.unwrap_or_else(|| before_view(&all, options.cost))).near;
                reading.numbers_after(keys, all, key(index), now)
            } else {
                reading.numbers_of(keys, all)
            };
            let (name, is_shadow) = (limit.facts.name.clone(), limit.facts.is_shadow);
            let status = LimitStatus::from_verdict(name, reading.verdict, numbers.snapshot, is_shadow);
            let status = status.with_block(self.block(index)).with_borrowing(reading.borrows);
            statuses.push(status.with_near(numbers.near));
        }
        let decision = plan.decide(now, options, statuses.into_iter()).with_repeat(is_repeat);
        Ok((decision.with_denied_by_leases(self.has_flag(DENIED_BY_LEASES)), held_costs))
    }
}

/// Returns the numbers before a charge for now, from those after it: the state before does not travel.
fn before_view(after: &LazySnapshot, cost: u64) -> LazySnapshot {
    let after = after.compute();
    LimitSnapshot { remaining: after.remaining.saturating_add(cost).min(after.limit), ..after }.into()
}

/// Reads a verdict as the function `peek` of a Lua script returns it: see
/// [`LuaAlgorithm`](crate::algorithm::LuaAlgorithm).
fn parse_verdict(value: i64) -> Verdict {
    match value {
        0 => Verdict::Allowed,
        -1 => Verdict::ExceedsLimit,
        wait if wait > 0 => Verdict::Denied { retry_after: Duration::from_micros(wait.unsigned_abs()) },
        delay => Verdict::AllowedAfter(Duration::from_micros(delay.unsigned_abs() - 1)),
    }
}
