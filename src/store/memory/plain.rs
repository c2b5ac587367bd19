//! The plain cases of limits whose types are known: only the states determine the decision. All else is a
//! [chain](super::chain) or a transaction.
//!
//! Rows "hot key" and "three limits" of benches/figures.md: the transaction takes 6.5 and 9.3 times as long.

// The functions of this file that are always in line earn rows of benches/figures.md together: "three limits" takes 68 ns
// instead of 40 without, and "fixed_window" 25 instead of 22.5.

use std::borrow::Borrow;
use std::hash::Hash;
use std::time::Duration;

use super::charged::{Charged, alone};
use super::limit_table::{KeyedTable, LimitTable, StateOf};
use super::table::{Keys, ShardGuard, SlotIndex};
use super::transaction_limit::{AcquireContext, NotDecided};
use crate::algorithm::{Algorithm, ChargeOptions, State, Step};
use crate::clock::{Clock, Timestamp};
use crate::decision::{AcquireOptions, Decision, LazySnapshot, LimitStatus, Verdict};
use crate::limit::{AlgorithmSelector, SelectAlgorithm, SubKeyOf};
use crate::limiter::Held;
use crate::store::inner::{HeldEntry, InLine, NearLimit, ShareRole, micros_floor};

/// Decides one request on a present key: one that is allowed immediately, or denied. An error charges nothing.
///
/// This function has no loop, and lends nothing to a function that is not in line. So all that it reads stays in
/// registers, and the decision is written once, where the caller needs it.
// Without inlining, row "hot key" of benches/figures.md takes 1.55 times as long.
#[inline(always)]
pub(super) fn try_acquire<Key, C, P>(
    limit: &KeyedTable<C, P>,
    context: &AcquireContext<'_, Key>,
) -> Result<Decision, NotDecided>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key>,
    P: SubKeyOf<Key>,
    P::SubKey: Hash,
{
    if context.options.hold || context.options.has_units() || !limit.table.is_plain {
        return Err(NotDecided::NotApplicable);
    }
    let hash = limit.key_hash(context).ok_or(NotDecided::NotApplicable)?;
    PlainLimit::of::<false, _, _>(limit, context, hash).decide_present(context.now, context.clock)
}

/// Decides any request on one limit that decides by its states, on a present or absent key; charges, or holds on, any other
/// limit that allows it: see [`PlainLimit`]. `None` leaves the request to the transaction.
pub(super) fn try_complete<Key, C, P>(
    limit: &KeyedTable<C, P>,
    context: &AcquireContext<'_, Key>,
    held: Option<&mut Held>,
) -> Option<Decision>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key>,
    P: SubKeyOf<Key>,
    P::SubKey: Hash,
{
    let (options, hash) = (&context.options, limit.key_hash(context)?);
    if !options.hold && limit.table.is_plain {
        return PlainLimit::of::<false, _, _>(limit, context, hash).decide_any(context.now, context.clock);
    }
    let plain = PlainLimit::of::<true, _, _>(limit, context, hash);
    if plain.options.cost == 0 {
        return None;
    }
    if limit.table.limit.holds(options) {
        let own = limit.table.own_algorithm(context.key, options);
        return plain.hold_alone(context.now, context.clock, options, own, held?);
    }
    plain.charge_alone(context.now, context.clock, options.hold)
}

/// Stores the next state. Returns its snapshot.
#[inline(always)]
fn store<A: Algorithm>(
    state: &mut A::State,
    next: <A::State as State>::Next,
    algorithm: &A,
    now: Timestamp,
) -> LazySnapshot {
    // Before the state is stored: the compiler then knows that it is of this quota, and drops a snapshot that is not used.
    // Row "hot key" of benches/figures.md.
    let preview = algorithm.snapshot_of_next(&next, now, InLine);
    state.apply(next);
    match preview {
        Some(snapshot) => snapshot,
        None => algorithm.snapshot(state, now),
    }
}

/// One limit, before the locks.
///
/// `ALL` says whether a limit may be a shadow, have a mark, or keep units free, whether the key may be absent, and whether
/// any cost is decided: without, the compiler drops all that. Row "three limits" of benches/figures.md.
pub(super) struct PlainLimit<'a, C: AlgorithmSelector, Chosen> {
    pub(super) table: &'a LimitTable<C>,
    pub(super) hash: u64,
    pub(super) options: ChargeOptions,
    /// The algorithm, or a reference to it.
    pub(super) chosen: Chosen,
    pub(super) kept_free: Option<u64>,
    /// The request borrows from the common limits: its share does not apply, or does not allow it now.
    pub(super) borrows: bool,
}

impl<'a, C: AlgorithmSelector, Chosen: Borrow<C::Algorithm>> PlainLimit<'a, C, Chosen> {
    /// Returns `None` if the limit needs the transaction, and `Some(None)` if it does not apply to the key.
    #[inline(always)]
    #[allow(clippy::option_option, reason = "the outer one ends the plain case")]
    pub(super) fn new<const ALL: bool, Key, P>(
        limit: &'a KeyedTable<C, P>,
        context: &AcquireContext<'_, Key>,
    ) -> Option<Option<Self>>
    where
        Key: ?Sized,
        C: SelectAlgorithm<Key, Selected<'a> = Chosen>,
        P: SubKeyOf<Key>,
        P::SubKey: Hash,
    {
        if C::Algorithm::HELD_UNTIL_END || !(ALL || limit.table.is_plain) {
            return None;
        }
        let Some(hash) = limit.key_hash(context) else {
            // A request to which the share does not apply borrows.
            return (ALL || limit.table.limit.share() != ShareRole::Share).then_some(None);
        };
        let plain = Self::of::<ALL, _, _>(limit, context, hash);
        (plain.options.cost > 0).then_some(Some(plain))
    }

    /// Returns a limit that applies to the key.
    #[inline(always)]
    pub(super) fn of<const ALL: bool, Key, P>(
        limit: &'a KeyedTable<C, P>,
        context: &AcquireContext<'_, Key>,
        hash: u64,
    ) -> Self
    where
        Key: ?Sized,
        C: SelectAlgorithm<Key, Selected<'a> = Chosen>,
        P: SubKeyOf<Key>,
    {
        let table = &limit.table;
        let options = ChargeOptions::within(table.limit.cost().charged(&context.options), context.options.max_delay);
        let kept_free = if ALL { limit.kept_free(context.key) } else { None };
        let chosen = table.limit.algorithm().select(context.key);
        Self { table, hash, options, chosen, kept_free, borrows: false }
    }

    /// Decides on a present key, in line: see [`try_acquire`].
    #[inline(always)]
    fn decide_present(&self, read: Timestamp, clock: &dyn Clock) -> Result<Decision, NotDecided> {
        let (hash, algorithm): (_, &C::Algorithm) = (self.hash, self.chosen.borrow());
        let mut keys = self.lock();
        let now = keys.decide_at(read, clock);
        if !keys.is_plain(hash) {
            return Err(NotDecided::NotApplicable);
        }
        let slot = keys.find(hash).ok_or(NotDecided::Uncommon)?;
        let state = keys.state_mut(slot);
        let step = algorithm.decide_in_line(state, now, self.options, InLine).ok_or(NotDecided::Uncommon)?;
        let (wait, snapshot) = match step {
            Step::Allow { next, delay: 0 } if self.options.cost > 0 => (0, store(state, next, algorithm, now)),
            // `from_wait` reads zero as allowed, and an algorithm of a user's own may deny for no time.
            Step::Deny { wait } => (wait.max(1), algorithm.snapshot(state, now)),
            _ => return Err(NotDecided::Uncommon),
        };
        drop(keys);
        // Built in one place: two would keep the drop of a decision that is not used. Row "hot key" of benches/figures.md.
        let status = LimitStatus::from_wait(self.table.limit.name_handle().clone(), wait, snapshot);
        Ok(Decision::from_store(now, algorithm.supports_scheduling(), status))
    }

    /// Decides any request: see [`try_complete`].
    // Apart from `decide_present`: the call of the complete case, though not made, costs the common case its registers.
    #[inline(never)]
    fn decide_any(&self, read: Timestamp, clock: &dyn Clock) -> Option<Decision> {
        let (hash, algorithm, info): (_, &C::Algorithm, _) = (self.hash, self.chosen.borrow(), self.table.table.info());
        let mut keys = self.lock();
        let now = keys.decide_at(read, clock);
        let slot = keys.find(hash);
        if !keys.is_plain(hash) || slot.is_none() && !keys.starts_idle(now) {
            return None;
        }
        let state = slot.map_or(&info.zero, |slot| keys.state(slot));
        let step = algorithm.decide(state, now, self.options);
        let verdict = step.verdict();
        let snapshot = match step {
            Step::Allow { next, .. } if self.options.cost > 0 => {
                let policy = self.table.eviction(Some(algorithm), now);
                let slot = match slot {
                    Some(slot) => slot,
                    // If the table is full, the transaction denies.
                    None => keys.insert(hash, &policy).ok()?,
                };
                store(keys.state_mut(slot), next, algorithm, now)
            }
            _ => algorithm.snapshot(state, now),
        };
        drop(keys);
        let status = LimitStatus::from_verdict(self.table.limit.name_handle().clone(), verdict, snapshot, false);
        Some(Decision::from_store(now, algorithm.supports_scheduling(), status))
    }

    /// Holds on one limit.
    // In line, as `charge_alone`: row "memory warn_at" of benches/figures.md, 1.18 times as long by calls.
    #[inline(always)]
    fn hold_alone(
        &self,
        read: Timestamp,
        clock: &dyn Clock,
        options: &AcquireOptions,
        own: Option<C::Algorithm>,
        held: &mut Held,
    ) -> Option<Decision> {
        let mut keys = self.lock();
        let now = keys.decide_at(read, clock);
        let charged = self.decide_hold(&mut keys, now, options)?;
        held.add(self.hold(&mut keys, now, own));
        drop(keys);
        alone(charged, now)
    }

    /// Charges one limit. Beside a hold, a fixed cost schedules nothing.
    #[inline(always)]
    fn charge_alone(&self, read: Timestamp, clock: &dyn Clock, is_hold: bool) -> Option<Decision> {
        let mut keys = self.lock();
        let now = keys.decide_at(read, clock);
        let allowed = self.decide::<true>(&mut keys, now)?;
        let mut charged = self.charge::<true>(allowed, now);
        drop(keys);
        charged.supports_scheduling &= charged.is_shadow || !is_hold;
        alone(charged, now)
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> ShardGuard<'a, C::Algorithm> {
        self.table.table.lock(self.hash)
    }

    /// Returns the units that must be free beside the cost. Within its share, a request needs none.
    #[inline(always)]
    fn needed_free(&self) -> u64 {
        match self.table.limit.share() {
            ShareRole::Common if !self.borrows => 0,
            ShareRole::Share => 0,
            _ => self.kept_free.unwrap_or(0),
        }
    }

    /// Returns whether the request borrows, if the limit is a share. `None` if the transaction must find out.
    // Row "memory share, borrowing" of benches/figures.md: the transaction takes three times as long.
    #[inline(always)]
    pub(super) fn borrows(
        limit: Option<&Self>,
        table: &LimitTable<C>,
        keys: Option<&mut ShardGuard<'a, C::Algorithm>>,
        now: Timestamp,
    ) -> Option<bool> {
        if table.limit.share() != ShareRole::Share {
            return Some(false);
        }
        let (Some(limit), Some(keys)) = (limit, keys) else { return Some(true) };
        if table.has_mark || !keys.is_plain(limit.hash) {
            return None;
        }
        let slot = limit.slot(keys, now)?;
        let step = limit.chosen.borrow().decide(keys.state(slot), now, limit.options);
        Some(!matches!(step, Step::Allow { delay: 0, .. }))
    }

    /// Returns whether the limit has no part in the decision: the request borrows from the others.
    #[inline(always)]
    pub(super) fn is_borrowed(&self) -> bool {
        self.borrows && self.table.limit.share() == ShareRole::Share
    }

    /// Returns whether a request that borrows needs free units of this limit.
    #[inline(always)]
    pub(super) fn lends(&self) -> bool {
        self.table.limit.share() == ShareRole::Common
    }

    /// Finds the slot of the key. An absent key gets a free one: if another limit denies, it stays idle, and so free.
    #[inline(always)]
    pub(super) fn slot(&self, keys: &mut Keys<C::Algorithm>, now: Timestamp) -> Option<SlotIndex> {
        match keys.find(self.hash) {
            None if keys.starts_idle(now) => keys.insert_free(self.hash, now, self.table.table.info()),
            slot => slot,
        }
    }

    /// Decides. `None` unless the limit allows the request immediately, leaves the units that are kept free, and is below
    /// its mark after the charge.
    #[inline(always)]
    pub(super) fn decide<'k, const ALL: bool>(
        &self,
        keys: &'k mut Keys<C::Algorithm>,
        now: Timestamp,
    ) -> Option<Allowed<'k, C::Algorithm>> {
        if !keys.is_plain(self.hash) {
            return None;
        }
        let slot = if ALL { self.slot(keys, now) } else { keys.find(self.hash) }?;
        let (state, algorithm): (_, &C::Algorithm) = (keys.state_mut(slot), self.chosen.borrow());
        if ALL && self.needed_free() > 0 && !self.leaves_free(state, now) {
            return None;
        }
        let next = match algorithm.decide_in_line(state, now, self.options, InLine) {
            Some(Step::Allow { next, delay: 0 }) => next,
            None if ALL => self.next_uncommon(state, now)?,
            _ => return None,
        };
        // As in `store`: row "three limits" of benches/figures.md.
        let preview = algorithm.snapshot_of_next(&next, now, InLine);
        if ALL && let Some(mark) = self.table.limit.warn_keys() {
            let after = preview?.keeping_free(Some(self.needed_free()), None, algorithm.supports_scheduling());
            if mark.warn_at.level(&after).has(NearLimit::NEAR) {
                return None;
            }
        }
        Some(Allowed { state, next, preview })
    }

    #[inline(never)]
    fn next_uncommon(&self, state: &StateOf<C>, now: Timestamp) -> Option<<StateOf<C> as State>::Next> {
        let algorithm: &C::Algorithm = self.chosen.borrow();
        match algorithm.decide(state, now, self.options) {
            Step::Allow { next, delay: 0 } => Some(next),
            _ => None,
        }
    }

    #[inline(never)]
    fn leaves_free(&self, state: &StateOf<C>, now: Timestamp) -> bool {
        let Some(cost) = self.options.cost.checked_add(self.needed_free()) else { return false };
        let step = self.chosen.borrow().decide(state, now, ChargeOptions::within(cost, Some(Duration::ZERO)));
        matches!(step, Step::Allow { delay: 0, .. })
    }

    /// Decides whether to hold the cost. A hold starts now, also for a shadow. `None` if the limit does not allow it, or has
    /// shares, a mark or units that are kept free: then the transaction decides.
    // Rows "hold and settle" and "in flight" of benches/figures.md: the transaction takes three times as long.
    #[inline]
    pub(super) fn decide_hold(
        &self,
        keys: &mut Keys<C::Algorithm>,
        now: Timestamp,
        options: &AcquireOptions,
    ) -> Option<Charged<'a>> {
        let (table, cost, algorithm): (_, _, &C::Algorithm) = (self.table, self.options.cost, self.chosen.borrow());
        let is_counted = !C::Algorithm::HELD_UNTIL_END || options.keeps_guard && !keys.has_due(now);
        let decides_alone = self.kept_free.is_none() && table.limit.share() == ShareRole::None && !table.has_mark;
        if !is_counted || !decides_alone || keys.block(self.hash, now).is_some() {
            return None;
        }
        let slot = self.slot(keys, now)?;
        let (state, held) = (keys.state(slot), keys.held(self.hash));
        let now_only = ChargeOptions::within(cost, Some(Duration::ZERO));
        let snapshot = if held == 0 && !C::Algorithm::HELD_UNTIL_END {
            // The numbers of a held cost are those after its charge: no copy of the state.
            let Step::Allow { ref next, delay: 0 } = algorithm.decide(state, now, now_only) else { return None };
            algorithm.snapshot_of_next(next, now, InLine)
        } else if algorithm.peek_with_held(state, now, now_only, held).0 == Verdict::Allowed {
            None
        } else {
            return None;
        };
        let snapshot =
            snapshot.unwrap_or_else(|| algorithm.peek_with_held(state, now, now_only, held.saturating_add(cost)).1);
        let (name, is_shadow) = (table.limit.name_handle(), table.limit.is_shadow());
        let (kept_free, is_bucket, near) = (0, false, NearLimit::NONE);
        Some(Charged { name, snapshot, kept_free, is_bucket, is_shadow, supports_scheduling: is_shadow, near })
    }

    /// Holds the cost on a key that has a slot.
    pub(super) fn hold(&self, keys: &mut Keys<C::Algorithm>, now: Timestamp, own: Option<C::Algorithm>) -> HeldEntry {
        let hold = self.place(keys, now, self.options.cost, own);
        self.table.entry(self.hash, self.options.cost, hold, 0)
    }

    /// Places a hold in the table. Returns its number and its deadline.
    #[inline]
    pub(super) fn place(
        &self,
        keys: &mut Keys<C::Algorithm>,
        now: Timestamp,
        cost: u64,
        own: Option<C::Algorithm>,
    ) -> (u64, u64) {
        let max_duration = if C::Algorithm::HELD_UNTIL_END { self.chosen.borrow().max_hold_duration() } else { None };
        keys.hold(self.hash, cost, max_duration.map(|max| (now, micros_floor(max))), own)
    }

    /// Charges the limit.
    // Row "three limits" of benches/figures.md: 1181 instructions without, as all numbers are then computed.
    #[inline(always)]
    pub(super) fn charge<const ALL: bool>(&self, allowed: Allowed<'_, C::Algorithm>, now: Timestamp) -> Charged<'a> {
        let (Allowed { state, next, preview }, algorithm): (_, &C::Algorithm) = (allowed, self.chosen.borrow());
        state.apply(next);
        let snapshot = match preview {
            Some(snapshot) => snapshot,
            None => algorithm.snapshot(state, now),
        };
        let limit = &self.table.limit;
        let is_shadow = ALL && limit.is_shadow();
        // A share, the limits beside a share, and units that are kept free: nothing is scheduled. A shadow does not prevent
        // the others from it.
        let schedules = limit.share() == ShareRole::None && self.kept_free.is_none() && algorithm.supports_scheduling();
        let near = if ALL && self.table.has_mark { NearLimit::HAS_MARK } else { NearLimit::NONE };
        let kept_free = if ALL { self.needed_free() } else { 0 };
        let (is_bucket, supports_scheduling) = (algorithm.supports_scheduling(), is_shadow || schedules);
        Charged { name: limit.name_handle(), snapshot, kept_free, is_bucket, is_shadow, supports_scheduling, near }
    }
}

/// One limit that allows the request immediately. No limit is charged before all allow it.
pub(super) struct Allowed<'k, A: Algorithm> {
    state: &'k mut A::State,
    next: <A::State as State>::Next,
    preview: Option<LazySnapshot>,
}
