//! A shard: the keys under one lock.

use std::ops::{Deref, DerefMut, Range};
use std::time::Duration;

use super::TableInfo;
use super::deadlines::Deadline;
use super::eviction::{Eviction, TableFull};
use super::extras::{Block, Extra, Extras};
use super::set::{SLOTS, Set, SlotIndex, candidate_sets};
use crate::algorithm::{Algorithm, State};
use crate::clock::{Clock, Timestamp};
use crate::decision::BlockReason;
use crate::store::inner::sync::{SpinGuard, SpinLock};
use crate::store::memory::transaction_limit::read_clock;

/// The lock is in the cache line of all that a decision reads of the shard itself.
#[repr(align(128))]
pub(super) struct Shard<A: Algorithm>(SpinLock<Keys<A>>);

/// The lock on a shard. A panic unlocks it.
pub(in crate::store::memory) struct ShardGuard<'a, A: Algorithm>(SpinGuard<'a, Keys<A>>);

impl<A: Algorithm> Deref for ShardGuard<'_, A> {
    type Target = Keys<A>;

    #[inline]
    fn deref(&self) -> &Keys<A> {
        &self.0
    }
}

impl<A: Algorithm> DerefMut for ShardGuard<'_, A> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Keys<A> {
        &mut self.0
    }
}

/// The keys of a shard.
pub(in crate::store::memory) struct Keys<A: Algorithm> {
    pub(super) sets: Vec<Set<A::State>>,
    /// The time of the last decision.
    last_decided_at: u64,
    /// The latest time at which a dropped state became idle.
    pub(super) horizon: u64,
    /// The number of changes by which keys move to other slots.
    pub(super) moves: u64,
    /// The number of evicted live keys.
    pub(super) evicted: u64,
    /// Some keys have extras.
    has_extras: bool,
    /// What few keys have besides a state. Created with the first extra, and kept.
    pub(super) extras: Option<Box<Extras<A>>>,
    /// For each set at the bound, at least the usage of every key that was evicted there. Empty before the first eviction.
    pub(super) debts: Vec<A::State>,
}

impl<A: Algorithm> Shard<A> {
    pub(super) fn new() -> Self {
        Self(SpinLock::new(Keys::new()))
    }

    #[inline]
    pub(super) fn lock(&self) -> ShardGuard<'_, A> {
        ShardGuard(self.0.lock())
    }
}

impl<A: Algorithm> Keys<A> {
    fn new() -> Self {
        let (sets, debts) = (Vec::new(), Vec::new());
        Self { sets, last_decided_at: 0, horizon: 0, moves: 0, evicted: 0, has_extras: false, extras: None, debts }
    }

    /// Returns the time of the decision, of which the caller has read the clock before it has locked. See "Time" in the
    /// parent module.
    #[inline]
    pub(in crate::store::memory) fn decide_at(&mut self, read: Timestamp, clock: &(impl Clock + ?Sized)) -> Timestamp {
        let now = if read.as_micros() < self.last_decided_at { read_clock_again(clock) } else { read };
        self.last_decided_at = now.as_micros();
        now
    }

    pub(in crate::store::memory) fn last_decided_at(&self) -> u64 {
        self.last_decided_at
    }

    pub(in crate::store::memory) fn set_last_decided_at(&mut self, now: Timestamp) {
        self.last_decided_at = now.as_micros();
    }

    /// Finds the slot of a key.
    #[inline]
    pub(in crate::store::memory) fn find(&self, fingerprint: u64) -> Option<SlotIndex> {
        let [first, second] = candidate_sets(fingerprint, self.sets.len());
        if let Some(slot) = self.sets.get(first)?.find(fingerprint) {
            return Some(SlotIndex { set: first, slot });
        }
        let slot = self.sets.get(second)?.find(fingerprint)?;
        Some(SlotIndex { set: second, slot })
    }

    #[inline]
    pub(in crate::store::memory) fn state(&self, slot: SlotIndex) -> &A::State {
        &self.sets[slot.set].states[slot.slot]
    }

    #[inline]
    pub(in crate::store::memory) fn state_mut(&mut self, slot: SlotIndex) -> &mut A::State {
        &mut self.sets[slot.set].states[slot.slot]
    }

    /// Returns whether nothing but its state determines the decision on a present key.
    #[inline]
    pub(in crate::store::memory) fn is_plain(&self, fingerprint: u64) -> bool {
        !self.has_extras || self.extra(fingerprint).is_none()
    }

    /// Returns whether an absent key starts with the zero state, and is decided at `now`.
    pub(in crate::store::memory) fn starts_idle(&self, now: Timestamp) -> bool {
        self.horizon <= now.as_micros() && self.debts.is_empty()
    }

    /// Returns the time at which to decide an absent key: the horizon if that is later than `now`, unless it is so far ahead
    /// that the clock must have stepped back.
    pub(in crate::store::memory) fn time_of_absent(&self, now: Timestamp, algorithm: &A) -> Timestamp {
        let horizon = Timestamp::from_micros(self.horizon);
        if horizon > now && horizon.saturating_since(now) <= algorithm.max_reset() { horizon } else { now }
    }

    /// Returns the state that an absent key starts with, if it inherits any usage.
    pub(in crate::store::memory) fn inherited_debt(
        &self,
        fingerprint: u64,
        policy: &Eviction<'_, A>,
    ) -> Option<A::State> {
        let debts = candidate_sets(fingerprint, policy.info.max_sets).map(|set| self.debts.get(set));
        let [Some(first), Some(second)] = debts else { return None };
        let mut state = first.clone();
        policy.carry_over(&mut state, second);
        Some(state)
    }

    pub(super) fn inherit_debt(&mut self, set: Option<usize>, debt: &A::State, policy: &Eviction<'_, A>) {
        if self.debts.is_empty() {
            self.debts.resize(policy.info.max_sets, policy.info.zero.clone());
        }
        let sets = set.map_or(0..self.debts.len(), |set| set..set + 1);
        for own in self.debts.get_mut(sets).unwrap_or_default() {
            policy.carry_over(own, debt);
        }
    }

    /// Finds the slot of a key. An absent key gets a free slot; if there is none, the shard grows, keys are moved, or the
    /// policy decides.
    ///
    /// # Errors
    ///
    /// Returns an error if the shard is full, and no key can be evicted.
    pub(in crate::store::memory) fn insert(
        &mut self,
        fingerprint: u64,
        policy: &Eviction<'_, A>,
    ) -> Result<SlotIndex, TableFull> {
        if let Some(slot) = self.find(fingerprint) {
            return Ok(slot);
        }
        let slot = loop {
            if let Some(slot) = self.insert_free(fingerprint, policy.now, policy.info) {
                break slot;
            }
            self.make_space(fingerprint, policy)?;
        };
        if let Some(debt) = self.inherited_debt(fingerprint, policy) {
            *self.state_mut(slot) = debt;
        }
        Ok(slot)
    }

    /// Gives an absent key a free slot. `None` if the shard cannot grow, and none is free.
    pub(in crate::store::memory) fn insert_free(
        &mut self,
        fingerprint: u64,
        now: Timestamp,
        info: &TableInfo<A::State>,
    ) -> Option<SlotIndex> {
        loop {
            if let Some(slot) = self.free_slot(fingerprint, now.as_micros(), info) {
                self.claim(slot, fingerprint, info);
                return Some(slot);
            }
            if self.sets.len() >= info.max_sets {
                return None;
            }
            self.grow(info);
        }
    }

    /// Finds a free slot for an absent key.
    ///
    /// A shard that can grow does so before keys are in their second sets: a decision then reads one set. Up to an eighth of
    /// its bound, it also grows before keys are in other slots than the first of their sets: the processor then predicts the
    /// slot (1.4 times as long without). And it grows before a key loses its slot that was live in the last second, because
    /// most keys come again: an insertion takes four times as long as a decision (all: row "1000 keys" of benches/figures.md).
    fn free_slot(&self, fingerprint: u64, now: u64, info: &TableInfo<A::State>) -> Option<SlotIndex> {
        const KEPT_MICROS: u64 = 1_000_000;
        let [first, second] = candidate_sets(fingerprint, self.sets.len());
        if self.sets.len() < info.max_sets {
            let is_small = self.sets.len() < info.max_sets / 8;
            let found = self.free_slot_in(first, now.saturating_sub(KEPT_MICROS));
            return found.filter(|found| !is_small || found.slot == 0);
        }
        self.free_slot_in(first, now).or_else(|| self.free_slot_in(second, now))
    }

    /// Finds a slot that is empty or idle at `now`, and whose key has no held amount. An empty slot is idle at any time, as
    /// the first word of its state is zero.
    pub(super) fn free_slot_in(&self, set: usize, now: u64) -> Option<SlotIndex> {
        let states = &self.sets.get(set)?.states;
        let slot = (0..SLOTS).find(|&slot| states[slot].idle_at() <= now && !self.is_held(SlotIndex { set, slot }))?;
        Some(SlotIndex { set, slot })
    }

    pub(super) fn fingerprint(&self, slot: SlotIndex) -> u64 {
        self.sets[slot.set].fingerprints[slot.slot]
    }

    /// Gives a free slot to a key, in the zero state.
    pub(super) fn claim(&mut self, slot: SlotIndex, fingerprint: u64, info: &TableInfo<A::State>) {
        let set = &mut self.sets[slot.set];
        self.horizon = self.horizon.max(set.states[slot.slot].idle_at());
        set.fingerprints[slot.slot] = fingerprint;
        set.states[slot.slot].clear(info.words);
    }

    /// Doubles the number of sets. A key stays in its set, or goes to the same slot of one other set.
    #[cold]
    fn grow(&mut self, info: &TableInfo<A::State>) {
        const MIN_SETS: usize = 4;
        let before = self.sets.len();
        let after = (before * 2).max(MIN_SETS).min(info.max_sets);
        self.sets.reserve_exact(after - before);
        self.sets.resize_with(after, Set::empty);
        self.moves += 1;
        for set in 0..before {
            for slot in 0..SLOTS {
                let from = SlotIndex { set, slot };
                let fingerprint = self.fingerprint(from);
                let which = usize::from(candidate_sets(fingerprint, before)[0] != set);
                let to = SlotIndex { set: candidate_sets(fingerprint, after)[which], slot };
                if fingerprint != 0 && to.set != set {
                    self.move_state(from, to);
                }
            }
        }
    }

    /// Moves a key to an empty slot.
    pub(super) fn move_state(&mut self, from: SlotIndex, to: SlotIndex) {
        let fingerprint = std::mem::take(&mut self.sets[from.set].fingerprints[from.slot]);
        let state = std::mem::replace(self.state_mut(from), A::State::empty());
        self.sets[to.set].fingerprints[to.slot] = fingerprint;
        *self.state_mut(to) = state;
    }

    /// Empties a slot, without raising the horizon: the usage is dropped on purpose, or kept as an inherited debt.
    pub(super) fn clear_slot(&mut self, slot: SlotIndex, info: &TableInfo<A::State>) {
        self.sets[slot.set].fingerprints[slot.slot] = 0;
        self.state_mut(slot).clear(info.words);
    }

    /// Removes a key. A hold keeps its slot.
    pub(in crate::store::memory) fn remove(&mut self, fingerprint: u64, info: &TableInfo<A::State>) {
        if let Some(slot) = self.find(fingerprint) {
            if self.held(fingerprint) == 0 {
                self.clear_slot(slot, info);
            } else {
                self.state_mut(slot).clear(info.words);
            }
        }
        info.clear_full_hint();
    }

    /// Makes keys that are absent from a restored table be decided no earlier than at `time`: a key that was idle then was
    /// not saved.
    pub(in crate::store::memory) fn raise_horizon(&mut self, time: u64) {
        self.horizon = self.horizon.max(time);
    }

    /// Removes everything.
    pub(in crate::store::memory) fn clear(&mut self) {
        *self = Self::new();
    }

    /// Runs `f` on every key of these sets that is not idle at `now` or has a held amount: with its fingerprint, the held
    /// amount and its state.
    pub(in crate::store::memory) fn for_each_used(
        &self,
        sets: Range<usize>,
        now: u64,
        mut f: impl FnMut(u64, u64, &A::State),
    ) {
        for set in self.sets.iter().take(sets.end).skip(sets.start) {
            for (&fingerprint, state) in set.fingerprints.iter().zip(&set.states) {
                let held = if fingerprint == 0 { 0 } else { self.held(fingerprint) };
                if fingerprint != 0 && (held > 0 || state.idle_at() > now) {
                    f(fingerprint, held, state);
                }
            }
        }
    }

    pub(in crate::store::memory) fn count_live(&self, now: u64) -> usize {
        let states = self.sets.iter().flat_map(|set| &set.states);
        states.filter(|state| state.idle_at() > now).count()
    }

    pub(in crate::store::memory) fn evicted(&self) -> u64 {
        self.evicted
    }

    pub(super) fn bytes(&self) -> usize {
        let states = self.sets.iter().flat_map(|set| &set.states).chain(&self.debts);
        let heap: usize = states.map(State::heap_bytes).sum();
        self.sets.capacity() * size_of::<Set<A::State>>()
            + self.debts.capacity() * size_of::<A::State>()
            + heap
            + self.extras.as_ref().map_or(0, |extras| extras.bytes())
    }

    /// Returns what a key has besides its state.
    #[cold]
    fn extra(&self, fingerprint: u64) -> Option<&Extra> {
        self.extras.as_ref()?.get(fingerprint)
    }

    fn extras(&mut self) -> &mut Extras<A> {
        self.extras.get_or_insert_default()
    }

    fn update_has_extras(&mut self) {
        self.has_extras = self.extras.as_ref().is_some_and(|extras| !extras.is_empty());
    }

    /// Returns the amount held on a key.
    #[inline]
    pub(in crate::store::memory) fn held(&self, fingerprint: u64) -> u64 {
        if self.has_extras { self.extra(fingerprint).map_or(0, |extra| extra.held) } else { 0 }
    }

    #[inline]
    pub(super) fn is_held(&self, slot: SlotIndex) -> bool {
        self.has_extras && self.held(self.fingerprint(slot)) > 0
    }

    /// Holds `amount` more on a key in a slot, for `max_duration` at most. `algorithm` charges the amount, if the key chooses
    /// it. Returns the number of the hold and its deadline, or zeros.
    pub(in crate::store::memory) fn hold(
        &mut self,
        fingerprint: u64,
        amount: u64,
        max_duration: Option<(Timestamp, u64)>,
        algorithm: Option<A>,
    ) -> (u64, u64) {
        let added = self.extras().hold(fingerprint, amount, max_duration, algorithm);
        self.update_has_extras();
        added
    }

    /// Ends a hold of `amount` on a key. Returns the algorithm that charges it, if it has one of its own.
    pub(in crate::store::memory) fn end_hold(&mut self, fingerprint: u64, amount: u64, id: u64) -> Option<A> {
        let algorithm = self.extras.as_mut().and_then(|extras| extras.end_hold(fingerprint, amount, id));
        self.update_has_extras();
        algorithm
    }

    /// Ends a hold until the end of a request, unless it was due and has ended.
    pub(in crate::store::memory) fn end_request(&mut self, fingerprint: u64, amount: u64, (id, at): (u64, u64)) {
        let is_open = |extras: &mut Box<Extras<A>>| at == 0 || extras.deadlines.remove(Deadline { at, id });
        if self.extras.as_mut().is_some_and(is_open) {
            self.end_hold(fingerprint, amount, 0);
        }
        self.update_has_extras();
    }

    /// Returns whether a request on a key of the shard lasts longer than the maximum.
    #[inline]
    pub(in crate::store::memory) fn has_due(&self, now: Timestamp) -> bool {
        self.has_extras && self.extras.as_ref().is_some_and(|extras| extras.deadlines.has_due(now))
    }

    /// Ends the holds of the shard's keys whose requests last longer than the maximum. Returns the keys, whose capacity the
    /// caller announces after it has unlocked.
    #[inline]
    #[must_use]
    pub(in crate::store::memory) fn end_due(&mut self, now: Timestamp) -> Vec<u64> {
        let mut ended = Vec::new();
        if self.has_extras {
            while let Some((fingerprint, amount)) =
                self.extras.as_mut().and_then(|extras| extras.deadlines.take_due(now))
            {
                self.end_hold(fingerprint, amount, 0);
                ended.push(fingerprint);
            }
        }
        ended
    }

    /// Returns the algorithm of a key's hold, if it has one of its own.
    pub(in crate::store::memory) fn held_algorithm(&self, fingerprint: u64) -> Option<&A> {
        self.extras.as_ref()?.algorithm_of(fingerprint)
    }

    /// Returns the number of keys with a held amount, and the sum of these amounts.
    pub(in crate::store::memory) fn held_totals(&self) -> (usize, u64) {
        self.extras.as_ref().map_or((0, 0), |extras| extras.held_totals())
    }

    /// Returns the time until the block of a key ends, and its reason, if the key is blocked.
    #[inline]
    pub(in crate::store::memory) fn block(&self, fingerprint: u64, now: Timestamp) -> Option<(Duration, BlockReason)> {
        if self.has_extras { self.extra(fingerprint)?.block?.remaining(now) } else { None }
    }

    /// Blocks a key, or removes its block.
    pub(in crate::store::memory) fn set_block(
        &mut self,
        fingerprint: u64,
        block: Option<Block>,
        now: Timestamp,
        info: &TableInfo<A::State>,
    ) {
        if block.is_some() || self.has_extras {
            self.extras().set_block(fingerprint, block, now, info.max_sets * SLOTS);
            self.update_has_extras();
        }
    }
}

/// Reads the clock under the lock: so another thread with the lock before has read it before.
#[cold]
#[inline(never)]
fn read_clock_again(clock: &(impl Clock + ?Sized)) -> Timestamp {
    read_clock(clock)
}
