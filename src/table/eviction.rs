//! A slot for a key that finds both of its sets full: relocation, and at capacity the policy of [`WhenFull`].
//!
//! A victim is chosen and removed under the locks of both sets. Without them, another thread could charge the victim
//! between the choice and the removal, and that charge would be lost although another key has less usage.

use std::sync::atomic::{AtomicU64 as RelaxedU64, Ordering::Relaxed};

use super::entry::Location;
use super::set::{LockToken, Set, all_slots};
use super::table::Table;
use super::when_full::WhenFull;
use crate::algorithm::AtomicState;

/// How a table evicts: what it must know of states, and what it does when it is full.
pub(crate) trait EvictionPolicy<S> {
    /// Returns the usage of a state, to choose the key to evict: the used amount, then the time until it is idle.
    fn usage_rank(&self, state: &S) -> (u64, u64);

    /// Makes `state` one with at least the usage of `from` as well.
    fn carry_over(&self, state: &mut S, from: &S);

    /// Returns what happens to a new key if the table is full.
    fn when_full(&self) -> WhenFull;
}

/// The table is full, and no key can be evicted. At `until` one of the keys in the sets is idle.
///
/// With `all_held` the policy evicts, and the reason is that every key in the sets has a held amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub struct TableFull {
    pub(crate) until: u64,
    pub(crate) all_held: bool,
}

/// What the table stores for eviction.
pub(super) struct EvictionState<C> {
    /// For each set, at least the usage of every key that was evicted there. Empty unless the policy is
    /// [`WhenFull::CarryOver`]. Guarded by the set's lock.
    pub(super) inherited_debts: Box<[C]>,
    /// Until then no search is made, because one has failed. Zero if a key was removed since.
    // Relaxed: a thread that misses a change searches in vain, or gives up a search for at most `MAX_HINT`.
    full_until: RelaxedU64,
    /// The number of evicted live keys. No decision reads it.
    evicted: RelaxedU64,
}

impl<C: AtomicState> EvictionState<C> {
    pub(super) fn new(carries_debt: bool, sets: usize, words: usize) -> Self {
        let inherited_debts = if carries_debt { sets } else { 0 };
        Self {
            inherited_debts: (0..inherited_debts).map(|_| C::new(words)).collect(),
            full_until: RelaxedU64::new(0),
            evicted: RelaxedU64::new(0),
        }
    }

    pub(super) fn inherited_debts(&self) -> usize {
        self.inherited_debts.len()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.inherited_debts) + self.inherited_debts.iter().map(AtomicState::heap_bytes).sum::<usize>()
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// Records that a search has failed. At `until` the first of the keys that it has read is idle.
    pub(super) fn note_full(&self, now: u64, until: u64) {
        self.full_until.store(until.min(now.saturating_add(Self::MAX_HINT)), Relaxed);
    }

    /// Records that a key was removed.
    pub(super) fn clear_full_hint(&self) {
        // Nearly always zero. A store in each removal would take the line from the processors that read it.
        if self.full_until.load(Relaxed) != 0 {
            self.full_until.store(0, Relaxed);
        }
    }

    /// Returns whether a search would fail as the last one did. Under a flood of new keys every search would fail, and
    /// take up to 40 us: see "Floods" in `benches/NOTES.md`.
    pub(super) fn is_full(&self, now: u64) -> bool {
        // Whatever the clock does, a hint lasts no longer than `MAX_HINT`.
        let left = self.full_until.load(Relaxed).saturating_sub(now);
        left > 0 && left <= Self::MAX_HINT
    }

    /// The maximum duration of the hint. A search reads 768 sets of a large table. If none of their keys is idle, hardly
    /// any other key is. But usage can be set to less, and keys that are inserted meanwhile can be idle earlier.
    const MAX_HINT: u64 = 10_000;
}

/// The policy of an operation that inserts nothing.
pub(super) enum NoInsert {}

impl<S> EvictionPolicy<S> for NoInsert {
    fn usage_rank(&self, _state: &S) -> (u64, u64) {
        match *self {}
    }

    fn carry_over(&self, _state: &mut S, _from: &S) {
        match *self {}
    }

    fn when_full(&self) -> WhenFull {
        match *self {}
    }
}

impl<C: AtomicState> Table<C> {
    /// Returns the state that an absent key starts with, if it inherits any debt: at least the usage of every key that
    /// was evicted in either of its sets. It is consistent if the location is still valid.
    #[inline]
    pub(crate) fn inherited_debt(
        &self,
        location: &Location,
        policy: &impl EvictionPolicy<C::State>,
    ) -> Option<C::State> {
        if self.carries_debt() { self.merge_debts(location, policy) } else { None }
    }

    #[inline]
    pub(crate) fn carries_debt(&self) -> bool {
        !self.eviction.inherited_debts.is_empty()
    }

    #[cold]
    fn merge_debts(&self, location: &Location, policy: &impl EvictionPolicy<C::State>) -> Option<C::State> {
        // An evicted key left its debt in one set only: that of its slot. It may come back to either set.
        let [first, second] = location.candidate_sets.map(|set| &self.eviction.inherited_debts[set]);
        // Not compared with the time: a debt that has drained is an idle state, and a key with it decides as a new one.
        if first.idle_at() == 0 && second.idle_at() == 0 {
            return None;
        }
        let mut state = first.snapshot().clone();
        policy.carry_over(&mut state, &second.snapshot());
        Some(state)
    }

    /// Frees a slot for an absent key: relocates a key to its other set, or applies the policy.
    ///
    /// The caller holds no lock, and reads again afterwards: another thread may have taken the slot.
    ///
    /// # Errors
    ///
    /// Returns an error if the table is full and no key can be evicted.
    #[cold]
    pub(crate) fn make_space(
        &self,
        location: &Location,
        now: u64,
        policy: &impl EvictionPolicy<C::State>,
    ) -> Result<(), TableFull> {
        if self.relocate(location.candidate_sets, now) {
            return Ok(());
        }
        match policy.when_full() {
            WhenFull::Evict | WhenFull::CarryOver if self.evict_least_used(location.candidate_sets, now, policy) => {
                Ok(())
            }
            when_full => Err(self.full_error(location.candidate_sets, when_full)),
        }
    }

    /// Returns an error if an absent key would be denied because the table is full.
    #[inline]
    pub(crate) fn is_full_for(&self, location: &Location, now: u64, when_full: WhenFull) -> Result<(), TableFull> {
        // Under the other policies an eviction frees a slot, unless every key has a held amount.
        if location.is_absent()
            && (when_full == WhenFull::Deny || self.all_are_held(location.candidate_sets.into_iter()))
        {
            return self.has_space(location.candidate_sets, now, when_full);
        }
        Ok(())
    }

    /// Returns the keys that have the slots of a key. Another thread may change them meanwhile.
    pub(crate) fn fingerprints_at(&self, location: &Location) -> impl Iterator<Item = u64> + use<'_, C> {
        let slots = location.candidate_sets.into_iter().flat_map(|set| all_slots().map(move |slot| (set, slot)));
        slots.map(|(set, slot)| self.sets[set].fingerprint(slot)).filter(|fingerprint| *fingerprint != 0)
    }

    /// Returns whether every key of these sets has a held amount, so that none can be evicted.
    fn all_are_held(&self, mut sets: impl Iterator<Item = usize>) -> bool {
        sets.all(|set| all_slots().all(|slot| self.sets[set].is_held(slot, &self.holds)))
    }

    #[cold]
    fn has_space(&self, candidate_sets: [usize; 2], now: u64, when_full: WhenFull) -> Result<(), TableFull> {
        let is_free = |set: usize| self.sets[set].find_free(now, &self.holds).is_some();
        let has_space = candidate_sets.into_iter().any(is_free) || self.find_moves(candidate_sets, now).is_some();
        if has_space { Ok(()) } else { Err(self.full_error(candidate_sets, when_full)) }
    }

    fn full_error(&self, sets: [usize; 2], when_full: WhenFull) -> TableFull {
        let moments = sets.into_iter().flat_map(|set| all_slots().map(move |slot| self.sets[set].cell(slot).idle_at()));
        TableFull { until: moments.min().unwrap_or(u64::MAX), all_held: when_full != WhenFull::Deny }
    }

    /// Evicts the key with the least usage in the two sets, unless another thread has freed a slot meanwhile. Returns
    /// `false` if every key has a held amount.
    fn evict_least_used(&self, sets: [usize; 2], now: u64, policy: &impl EvictionPolicy<C::State>) -> bool {
        let both = LockedSets::lock(self, sets);
        // Again, under the locks: between the caller's search and here another thread may have removed a key.
        let is_full = sets.iter().all(|&set| self.sets[set].find_free(now, &self.holds).is_none());
        let mut has_space = !is_full;
        if is_full {
            let slots = sets.into_iter().flat_map(|set| all_slots().map(move |slot| (set, slot)));
            let slots = slots.filter(|&(set, slot)| !self.sets[set].is_held(slot, &self.holds));
            // The least usage: the limit that is lost with the key is the smallest that can be.
            let rank = |&(set, slot): &(usize, u8)| policy.usage_rank(&self.sets[set].cell(slot).snapshot());
            if let Some((set, slot)) = slots.min_by_key(rank) {
                let (set, inherited_debt) = (&self.sets[set], self.eviction.inherited_debts.get(set));
                if let Some(inherited_debt) = inherited_debt {
                    policy.carry_over(&mut inherited_debt.edit(), &set.cell(slot).snapshot());
                }
                // Either token proves that a lock is held, and both sets are locked.
                set.clear_slot(slot, &both.tokens[0]);
                self.eviction.evicted.fetch_add(1, Relaxed);
                has_space = true;
            }
        }
        drop(both);
        has_space
    }
}

/// Two sets that are locked until this is dropped, also if an algorithm panics.
pub(super) struct LockedSets<'a, C: AtomicState> {
    sets: [&'a Set<C>; 2],
    versions: [u64; 2],
    pub(super) tokens: [LockToken; 2],
}

impl<'a, C: AtomicState> LockedSets<'a, C> {
    /// Locks both sets in the order in which every thread locks sets.
    pub(super) fn lock(table: &'a Table<C>, sets: [usize; 2]) -> Self {
        // By the index, so that two threads with the same sets in another order do not wait for each other.
        let sets = [sets[0].min(sets[1]), sets[0].max(sets[1])].map(|set| &table.sets[set]);
        let [(first, one), (second, other)] = sets.map(Set::lock);
        Self { sets, versions: [first, second], tokens: [one, other] }
    }
}

impl<C: AtomicState> Drop for LockedSets<'_, C> {
    fn drop(&mut self) {
        for ((set, version), token) in self.sets.iter().zip(self.versions).zip(&self.tokens) {
            // Flags may have been set or cleared since `lock` read the version.
            set.unlock_with_flags(version, token);
        }
    }
}
