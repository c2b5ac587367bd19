use std::sync::Arc;

use super::entry::{Location, Position, SlotIndex};
use super::eviction::{EvictionPolicy, EvictionState, NoInsert, TableFull};
use super::holds::Holds;
use super::horizons::Horizons;
use super::saving::Relocations;
use super::set::{BLOCKED, HELD, LockToken, SLOTS, Set, all_slots};
use super::when_full::WhenFull;
use crate::algorithm::{AtomicState, State};
use crate::sync::Backoff;

/// A bounded concurrent hash table. Clones share one table.
pub(crate) struct Table<C> {
    id: u64,
    pub(super) sets: Arc<[Set<C>]>,
    pub(super) horizons: Arc<Horizons>,
    pub(super) eviction: Arc<EvictionState<C>>,
    pub(super) holds: Arc<Holds>,
    pub(super) relocations: Arc<Relocations>,
}

impl<C: AtomicState> Table<C> {
    /// Creates a table with a capacity of at least `keys` live keys, whatever their hashes are.
    ///
    /// A state whose type does not determine its number of words has `words` words.
    ///
    /// With two candidate sets of three slots, and relocation, a table fills to over 93 % before an insertion fails.
    /// The slack keeps a large table at 88.7 %. A small table, where chance weighs more, has a few kilobytes more.
    pub(crate) fn with_capacity(keys: usize, words: usize, when_full: WhenFull) -> Self {
        Self::with_sets(Self::sets_for_keys(keys), words, when_full)
    }

    pub(super) fn sets_for_keys(keys: usize) -> usize {
        // 0.376 sets for each key.
        (keys / 125).saturating_mul(47).saturating_add(keys % 125 * 47 / 125).saturating_add(Self::SLACK_SETS)
    }

    pub(super) fn with_sets(sets: usize, words: usize, when_full: WhenFull) -> Self {
        let eviction = EvictionState::new(when_full == WhenFull::CarryOver, sets, words);
        let sets: Arc<[_]> = (0..sets).map(|_| Set::new(words)).collect();
        let horizons = Arc::new(Horizons::new(sets.len()));
        let (eviction, holds, relocations) = (Arc::new(eviction), Arc::new(Holds::new()), Arc::new(Relocations::new()));
        Self { id: next_id(), sets, horizons, eviction, holds, relocations }
    }

    #[cfg(not(loom))]
    pub(super) const SLACK_SETS: usize = 38;
    #[cfg(loom)]
    pub(super) const SLACK_SETS: usize = 2;

    /// Returns the identity of the table, which its clones share.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the number of slots.
    pub(crate) fn capacity(&self) -> usize {
        self.sets.len() * SLOTS
    }

    /// Returns how many live keys were evicted.
    pub(crate) fn evicted(&self) -> u64 {
        self.eviction.evicted()
    }

    /// Returns the number of states: one for each slot, and the inherited debts.
    pub(crate) fn state_count(&self) -> usize {
        self.capacity() + self.eviction.inherited_debts()
    }

    /// Returns the number of allocated bytes. Reads the whole table.
    pub(crate) fn bytes(&self) -> usize {
        let heap: usize = self.sets.iter().map(Set::heap_bytes).sum();
        size_of_val(&*self.sets) + heap + self.horizons.bytes() + self.eviction.bytes() + self.holds.bytes()
    }

    /// Returns whether nothing has changed since the reading.
    pub(crate) fn is_current(&self, location: &Location) -> bool {
        location
            .validated_sets()
            .all(|which| self.sets[location.candidate_sets[which]].validate(location.versions[which]))
    }

    /// Locks what was read. Returns `None`, with nothing locked, if anything has changed since the reading.
    // Row "insertion" of docs/performance.md.
    #[inline(always)]
    pub(crate) fn lock(&self, location: &Location) -> Option<LockToken> {
        match location.position {
            Position::First(_) => self.set(location, 0).try_lock(location.versions[0]),
            Position::Second(_) => self.set(location, 1).try_lock(location.versions[1]),
            Position::Absent => self.lock_both_sets(location),
        }
    }

    fn lock_both_sets(&self, location: &Location) -> Option<LockToken> {
        let [first, second] = location.lock_order();
        let one = self.set(location, first).try_lock(location.versions[first])?;
        let both = self.set(location, second).try_lock(location.versions[second]);
        if both.is_none() {
            self.set(location, first).unlock_unchanged(location.versions[first], &one);
        }
        both
    }

    #[inline]
    pub(super) fn set(&self, location: &Location, which: usize) -> &Set<C> {
        &self.sets[location.candidate_sets[which]]
    }

    /// Unlocks with nothing changed: concurrent readings stay valid.
    pub(crate) fn unlock_unchanged(&self, location: &Location, token: &LockToken) {
        for which in location.validated_sets() {
            self.set(location, which).unlock_unchanged(location.versions[which], token);
        }
    }

    /// Unlocks after a change: concurrent readings become invalid.
    #[inline]
    pub(crate) fn unlock(&self, location: &Location, token: &LockToken) {
        for which in location.validated_sets() {
            self.set(location, which).unlock_with_flags(location.versions[which], token);
        }
    }

    /// Returns the slot of the key. An absent key gets a slot that is empty or idle at `now`, if there is one.
    ///
    /// The location still depends on both sets, so that unlocking it unlocks both.
    #[inline]
    pub(crate) fn ensure_slot(
        &self,
        location: &Location,
        now: u64,
        policy: &impl EvictionPolicy<C::State>,
        token: &LockToken,
    ) -> Option<SlotIndex> {
        location.slot().or_else(|| self.insert_slot(location, now, policy, token))
    }

    fn insert_slot(
        &self,
        location: &Location,
        now: u64,
        policy: &impl EvictionPolicy<C::State>,
        token: &LockToken,
    ) -> Option<SlotIndex> {
        let slot = self.claim_slot(location, now, token)?;
        // Before the charge: a later reading finds the key present, and adds no inherited debt.
        if let Some(state) = self.inherited_debt(location, policy) {
            *self.edit(slot, token) = state;
        }
        Some(slot)
    }

    /// Gives an absent key a slot in the zero state.
    // Row "insertion" of docs/performance.md.
    #[inline(always)]
    pub(super) fn claim_slot(&self, location: &Location, now: u64, token: &LockToken) -> Option<SlotIndex> {
        location.candidate_sets.into_iter().find_map(|set| {
            let slot = self.sets[set].find_free(now, &self.holds)?;
            self.claim(set, slot, location.fingerprint, token);
            Some(SlotIndex { set, slot })
        })
    }

    /// Gives a free slot to a key, in the zero state, and raises the horizon to the dropped state's time.
    #[inline]
    pub(super) fn claim(&self, set: usize, slot: u8, fingerprint: u64, token: &LockToken) {
        self.horizons.raise(set, self.sets[set].cell(slot).idle_at());
        self.sets[set].claim(slot, fingerprint, token);
    }

    /// Holds `amount` more on the key in a slot.
    pub(crate) fn hold(&self, slot: SlotIndex, amount: u64, token: &LockToken) {
        let set = &self.sets[slot.set];
        if amount > 0 {
            self.holds.add(set.fingerprint(slot.slot), amount, token);
            set.set_flag(HELD, true, token);
        }
    }

    /// Ends a hold of `amount` on the key in a slot.
    pub(crate) fn end_hold(&self, slot: SlotIndex, amount: u64, token: &LockToken) {
        let set = &self.sets[slot.set];
        if !self.holds.subtract(set.fingerprint(slot.slot), amount, token) {
            set.update_held(&self.holds, token);
        }
    }

    /// Flags the candidate sets of a key as those of a blocked key, so that the fast path leaves their keys to the
    /// transaction, which knows the blocks.
    ///
    /// A key can be blocked that has no slot, and can get one in either set.
    pub(crate) fn set_blocked(&self, hash: u64) {
        for set in self.candidate_sets(fingerprint(hash)) {
            self.set_blocked_flag(set, true);
        }
    }

    /// Removes the flag that [`set_blocked`](Self::set_blocked) has set from a set.
    pub(crate) fn clear_blocked(&self, set: usize) {
        if self.sets[set].flags() & BLOCKED != 0 {
            self.set_blocked_flag(set, false);
        }
    }

    fn set_blocked_flag(&self, set: usize, value: bool) {
        let set = &self.sets[set];
        let (version, token) = set.lock();
        set.set_flag(BLOCKED, value, &token);
        set.unlock_with_flags(version, &token);
    }

    /// Returns the amount held on a key.
    pub(crate) fn held(&self, hash: u64, _: &LockToken) -> u64 {
        self.holds.of(fingerprint(hash))
    }

    /// Returns the number of keys with a held amount, and the sum of these amounts.
    pub(crate) fn holds(&self) -> (usize, u64) {
        self.holds.totals()
    }

    #[inline]
    pub(super) fn cell(&self, slot: SlotIndex) -> &C {
        self.sets[slot.set].cell(slot.slot)
    }

    /// Stores the next state in a slot whose state is `present`, and returns what `read` reads from it.
    #[inline]
    pub(crate) fn store<'a, R>(
        &'a self,
        slot: SlotIndex,
        present: &mut C::Snapshot<'a>,
        next: <C::State as State>::Next,
        read: impl FnOnce(&C::State) -> R,
        _: &LockToken,
    ) -> R {
        self.cell(slot).apply(present, next, read)
    }

    /// Returns the state in a slot.
    #[inline]
    pub(crate) fn state(&self, slot: SlotIndex, _: &LockToken) -> C::Snapshot<'_> {
        self.cell(slot).snapshot()
    }

    /// Returns a guard that edits the state in a slot.
    #[inline]
    pub(crate) fn edit(&self, slot: SlotIndex, _: &LockToken) -> C::Edit<'_> {
        self.cell(slot).edit()
    }

    /// Returns the time from which on the state in a slot is idle.
    #[inline]
    pub(crate) fn idle_at(&self, slot: SlotIndex) -> u64 {
        self.cell(slot).idle_at()
    }

    /// Makes the state in a slot the zero state.
    pub(crate) fn clear(&self, slot: SlotIndex, _: &LockToken) {
        self.cell(slot).clear();
    }

    /// Locks the key's sets, and runs `change` with its slot and the [horizon](super::entry::Reading::horizon). With
    /// `insert`, an absent key gets a slot first; without it, nothing is done for an absent key.
    ///
    /// # Errors
    ///
    /// Returns an error if the table is full.
    pub(crate) fn update(
        &self,
        hash: u64,
        now: u64,
        insert: Option<&impl EvictionPolicy<C::State>>,
        change: impl Fn(&Self, SlotIndex, u64, &LockToken),
    ) -> Result<(), TableFull> {
        let mut backoff = Backoff::new();
        loop {
            let mut location = Location::EMPTY;
            // The snapshot is dropped at once. It may be the guard of a mutex, which `change` locks.
            let horizon = self.read_state(hash, &mut location, &mut C::empty());
            if location.is_absent() && insert.is_none() {
                return Ok(());
            }
            let Some(token) = self.lock(&location) else {
                backoff.wait();
                continue;
            };
            let locked = UnlockGuard { table: self, location: &location, token };
            let slot = match insert {
                Some(policy) => self.ensure_slot(&location, now, policy, &locked.token),
                None => location.slot(),
            };
            if let Some(slot) = slot {
                change(self, slot, horizon, &locked.token);
                return Ok(());
            }
            drop(locked);
            if let Some(policy) = insert {
                self.make_space(&location, now, policy)?;
            }
        }
    }

    /// Removes the key.
    pub(crate) fn remove(&self, hash: u64) {
        let clear = |table: &Self, slot: SlotIndex, _, token: &LockToken| {
            // A hold keeps its slot.
            if table.held(hash, token) == 0 {
                table.sets[slot.set].clear_slot(slot.slot, token);
            } else {
                table.clear(slot, token);
            }
        };
        let removed = self.update(hash, 0, None::<&NoInsert>, clear);
        debug_assert!(removed.is_ok(), "a removal inserts nothing");
        self.eviction.clear_full_hint();
    }

    /// Counts the keys that are not idle at `now`. The count is not of one moment. Reads the whole table.
    pub(crate) fn count_live(&self, now: u64) -> usize {
        self.sets.iter().map(|set| set.count_live(now)).sum()
    }

    /// Runs `f` on every key that is not idle at `now`, with its fingerprint, the time at which it is idle, and its
    /// state. Each state is consistent; all of them are not of one moment. Reads the whole table.
    pub(crate) fn for_each_live(&self, now: u64, mut f: impl FnMut(u64, u64, &C::State)) {
        for set in &*self.sets {
            for slot in all_slots() {
                let (version, fingerprint, idle_at) = (set.version(), set.fingerprint(slot), set.cell(slot).idle_at());
                if fingerprint != 0 && idle_at > now {
                    let state = set.cell(slot).snapshot();
                    // A slot that another thread is writing is left out.
                    if set.validate(version) {
                        f(fingerprint, idle_at, &state);
                    }
                }
            }
        }
    }

    /// Returns the two candidate sets of a key, which differ. The fingerprint's upper half determines the first one,
    /// the lower half the second one.
    #[inline]
    pub(crate) fn candidate_sets(&self, fingerprint: u64) -> [usize; 2] {
        let sets = self.sets.len();
        let first = bounded_index(fingerprint, sets);
        let step = 1 + bounded_index(fingerprint.rotate_left(32), sets - 1);
        let second = first + step;
        [first, if second < sets { second } else { second - sets }]
    }

    pub(super) fn other_candidate(&self, fingerprint: u64, set: usize) -> usize {
        let [first, second] = self.candidate_sets(fingerprint);
        if set == first { second } else { first }
    }
}

impl<C> Clone for Table<C> {
    fn clone(&self) -> Self {
        Self {
            id: self.id,
            sets: Arc::clone(&self.sets),
            horizons: Arc::clone(&self.horizons),
            eviction: Arc::clone(&self.eviction),
            holds: Arc::clone(&self.holds),
            relocations: Arc::clone(&self.relocations),
        }
    }
}

impl<C> std::fmt::Debug for Table<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("slots", &(self.sets.len() * SLOTS)).finish_non_exhaustive()
    }
}

/// Unlocks what was read when it is dropped, also if an algorithm panics.
pub(super) struct UnlockGuard<'a, C: AtomicState> {
    pub(super) table: &'a Table<C>,
    pub(super) location: &'a Location,
    pub(super) token: LockToken,
}

impl<C: AtomicState> Drop for UnlockGuard<'_, C> {
    #[inline]
    fn drop(&mut self) {
        self.table.unlock(self.location, &self.token);
    }
}

fn next_id() -> u64 {
    // Not an atomic of the model checker, as it orders no other access.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Returns the fingerprint of a hash. Zero marks an empty slot, so the fingerprint of the hash 0 is 1.
#[inline]
pub(crate) fn fingerprint(hash: u64) -> u64 {
    hash.max(1)
}

/// Returns a number below `bound`, from the upper bits of `hash`.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the upper half of a product with `bound` is below it")]
pub(super) fn bounded_index(hash: u64, bound: usize) -> usize {
    ((u128::from(hash) * bound as u128) >> 64) as usize
}
