//! Lookups: the location of a key, and its entry, present or vacant.

use super::set::{BLOCKED, FLAGS, HELD, LockToken, Set};
use super::table::{Table, UnlockGuard, bounded_index, fingerprint};
use crate::algorithm::{AtomicState, State};
use crate::sync::Backoff;

/// The location of a key, and the versions that a reading of it depends on.
///
/// It has no type parameter, so that a transaction can store the locations of several limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(super) fingerprint: u64,
    pub(super) candidate_sets: [usize; 2],
    pub(super) versions: [u64; 2],
    pub(super) position: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// In a slot of the first candidate set.
    First(u8),
    /// In a slot of the second candidate set.
    Second(u8),
    Absent,
}

/// A slot of a set. Valid under the lock of the set.
#[derive(Clone, Copy, Debug)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub struct SlotIndex {
    pub(super) set: usize,
    pub(super) slot: u8,
}

impl Location {
    /// The location before any reading.
    pub(crate) const EMPTY: Self =
        Self { fingerprint: 0, candidate_sets: [0; 2], versions: [0; 2], position: Position::Absent };

    /// Returns a hash of the key.
    pub(crate) fn hash(&self) -> u64 {
        self.fingerprint
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.position == Position::Absent
    }

    /// Returns whether a key with these candidate sets was blocked, and the flag is still set.
    ///
    /// Both sets of a blocked key have the flag. A reading always has the version of the first one.
    #[inline]
    pub(crate) fn may_be_blocked(&self) -> bool {
        self.versions[0] & BLOCKED != 0
    }

    pub(crate) fn candidate_sets(&self) -> [usize; 2] {
        self.candidate_sets
    }

    /// Returns the slot of a present key.
    #[inline]
    pub(crate) fn slot(&self) -> Option<SlotIndex> {
        match self.position {
            Position::First(slot) => Some(SlotIndex { set: self.candidate_sets[0], slot }),
            Position::Second(slot) => Some(SlotIndex { set: self.candidate_sets[1], slot }),
            Position::Absent => None,
        }
    }

    /// Returns the candidate sets that the reading depends on: one if the key is present, both if it is absent.
    #[inline]
    pub(super) fn validated_sets(&self) -> std::ops::Range<usize> {
        match self.position {
            Position::First(_) => 0..1,
            Position::Second(_) => 1..2,
            Position::Absent => 0..2,
        }
    }

    /// Returns the candidate sets in the order in which every thread locks them: of two threads with the same
    /// sets, one succeeds. In different orders both could fail, again and again.
    pub(super) fn lock_order(&self) -> [usize; 2] {
        if self.candidate_sets[0] < self.candidate_sets[1] { [0, 1] } else { [1, 0] }
    }
}

/// What a consistent reading of a key returns besides the state.
pub(crate) struct Reading {
    /// The horizon of an absent key's sets, zero for a present key: see "Horizons" in the parent module.
    pub(crate) horizon: u64,
    /// The amount held on the key. Zero if the key is absent, as a hold keeps its slot.
    pub(crate) held: u64,
}

/// The entry of a key, found by one lookup: the way to store the next state.
pub(crate) trait TableEntry<'a, C: AtomicState> {
    /// Locks what was read, stores the next state and unlocks. Returns what `read` reads from that state.
    ///
    /// `present` is the state that the lookup read.
    ///
    /// # Errors
    ///
    /// Returns an error, with nothing written, if anything has changed since the reading, or if there is no slot for an
    /// absent key.
    fn store<R>(
        self,
        present: &mut C::Snapshot<'a>,
        next: <C::State as State>::Next,
        read: impl FnOnce(&C::State) -> R,
    ) -> Result<R, StoreError>;
}

/// Why a lookup on the fast path returned no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// As wide as a word of a decision: in a `Result`, a smaller error would split the word into pieces (row "hot key").
#[repr(u64)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub enum LookupError {
    /// Another thread is writing to the set, or has written to it since the reading: the lookup can be retried.
    Contended,
    /// The key is in neither set, as far as one reading of each can say.
    NotFound,
    /// The in-line case does not apply: the complete case must decide, on the same entry.
    Uncommon,
    /// The fast path does not apply: costs are held on a key of the set, for example.
    NotApplicable,
}

/// Why an entry was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreError {
    /// Another thread has written to the set since the reading.
    Changed,
    /// No slot of the key's sets is free.
    Full,
}

/// A present key.
pub(crate) struct Entry<'a, C> {
    set: &'a Set<C>,
    version: u64,
    slot: u8,
}

// Part of each decision, as all that is in line here: rows "hot key" and "1000 keys" of docs/performance.md.
impl<'a, C: AtomicState> Entry<'a, C> {
    #[inline(always)]
    fn read(set: &'a Set<C>, version: u64, slot: u8, state: &mut C::Snapshot<'a>) -> Result<Self, LookupError> {
        set.cell(slot).read(state);
        if set.validate(version) { Ok(Self { set, version, slot }) } else { Err(LookupError::Contended) }
    }

    /// Locks the set, unless anything in it has changed since the reading.
    #[inline(always)]
    pub(crate) fn lock(self) -> Result<LockedEntry<'a, C>, StoreError> {
        let Self { set, version, slot } = self;
        let token = set.try_lock(version).ok_or(StoreError::Changed)?;
        Ok(LockedEntry { set, version, slot, token })
    }
}

impl<'a, C: AtomicState> TableEntry<'a, C> for Entry<'a, C> {
    #[inline(always)]
    fn store<R>(
        self,
        present: &mut C::Snapshot<'a>,
        next: <C::State as State>::Next,
        read: impl FnOnce(&C::State) -> R,
    ) -> Result<R, StoreError> {
        Ok(self.lock()?.store(present, next, read))
    }
}

/// A present key whose set is locked until this is dropped, also if an algorithm panics.
pub(crate) struct LockedEntry<'a, C: AtomicState> {
    set: &'a Set<C>,
    version: u64,
    slot: u8,
    token: LockToken,
}

impl<'a, C: AtomicState> LockedEntry<'a, C> {
    /// Unlocks the set, with nothing changed: concurrent readings stay valid.
    pub(crate) fn unlock_unchanged(self) {
        self.set.unlock_unchanged(self.version, &self.token);
        // `drop` would unlock again, with a new version.
        std::mem::forget(self);
    }

    /// Stores the next state. The set stays locked. `present` is the state that the lookup read.
    #[inline(always)]
    pub(crate) fn store<R>(
        &self,
        present: &mut C::Snapshot<'a>,
        next: <C::State as State>::Next,
        read: impl FnOnce(&C::State) -> R,
    ) -> R {
        self.set.cell(self.slot).apply(present, next, read)
    }
}

impl<C: AtomicState> Drop for LockedEntry<'_, C> {
    #[inline]
    fn drop(&mut self) {
        // A set that the fast path locks has no flags, and the fast path sets none.
        self.set.unlock(self.version, &self.token);
    }
}

/// An absent key, in a table without inherited debts.
pub(crate) struct VacantEntry<'a, C> {
    table: &'a Table<C>,
    now: u64,
    location: Location,
}

impl<C> VacantEntry<'_, C> {
    pub(crate) fn location(&self) -> Location {
        self.location
    }
}

// In line: row "insertion" of docs/performance.md.
impl<'a, C: AtomicState> TableEntry<'a, C> for VacantEntry<'a, C> {
    #[inline(always)]
    fn store<R>(
        self,
        present: &mut C::Snapshot<'a>,
        next: <C::State as State>::Next,
        read: impl FnOnce(&C::State) -> R,
    ) -> Result<R, StoreError> {
        let Self { table, now, location } = self;
        let token = table.lock(&location).ok_or(StoreError::Changed)?;
        let locked = UnlockGuard { table, location: &location, token };
        let slot = table.claim_slot(&location, now, &locked.token).ok_or(StoreError::Full)?;
        Ok(table.cell(slot).apply(present, next, read))
    }
}

impl<C: AtomicState> Table<C> {
    /// Finds a present key without a loop, and reads its state: the lookup of the fast path.
    // Part of each decision: rows "hot key" and "1000 keys" of docs/performance.md.
    #[inline(always)]
    pub(crate) fn find<'a>(&'a self, hash: u64, state: &mut C::Snapshot<'a>) -> Result<Entry<'a, C>, LookupError> {
        let fingerprint = fingerprint(hash);
        let first = &self.sets[bounded_index(fingerprint, self.sets.len())];
        let version = first.version();
        if version & FLAGS != 0 {
            return Err(LookupError::NotApplicable);
        }
        if let Some(slot) = first.find(fingerprint) {
            return Entry::read(first, version, slot, state);
        }
        let second = &self.sets[self.candidate_sets(fingerprint)[1]];
        let version = second.version();
        if version & FLAGS != 0 {
            return Err(LookupError::NotApplicable);
        }
        match second.find(fingerprint) {
            Some(slot) => Entry::read(second, version, slot, state),
            None => Err(LookupError::NotFound),
        }
    }

    /// Finds an absent key, and makes `state` its state. Returns `None` if the key is present, or must be decided later
    /// than `now`, or may be blocked, or starts with an inherited debt.
    // Row "insertion" of docs/performance.md.
    #[inline(always)]
    pub(crate) fn find_vacant<'a>(
        &'a self,
        hash: u64,
        now: u64,
        state: &mut C::Snapshot<'a>,
    ) -> Option<VacantEntry<'a, C>> {
        let mut location = Location::EMPTY;
        let horizon = self.read(hash, &mut location, state).horizon;
        let is_vacant = location.is_absent() && horizon <= now && !location.may_be_blocked() && !self.carries_debt();
        is_vacant.then_some(VacantEntry { table: self, now, location })
    }

    /// Reads the state of a key, present or absent: the zero state if the key is absent. Stores in `location` the
    /// versions that the reading depends on.
    // Rows "insertion" and "three limits, dynamic" of docs/performance.md.
    #[inline(always)]
    pub(crate) fn read<'a>(&'a self, hash: u64, location: &mut Location, state: &mut C::Snapshot<'a>) -> Reading {
        self.read_with(hash, location, state, |location, which| self.held_at(location, which))
    }

    /// As [`read`](Self::read), without the held amount. Returns the horizon.
    pub(super) fn read_state<'a>(&'a self, hash: u64, location: &mut Location, state: &mut C::Snapshot<'a>) -> u64 {
        self.read_with(hash, location, state, |_, _| 0).horizon
    }

    #[inline(always)]
    fn read_with<'a>(
        &'a self,
        hash: u64,
        location: &mut Location,
        state: &mut C::Snapshot<'a>,
        held_at: impl Fn(&Location, usize) -> u64,
    ) -> Reading {
        location.fingerprint = fingerprint(hash);
        location.candidate_sets = self.candidate_sets(location.fingerprint);
        let mut backoff = Backoff::new();
        loop {
            let first = self.set(location, 0);
            location.versions[0] = first.version();
            if let Some(slot) = first.find(location.fingerprint) {
                location.position = Position::First(slot);
                first.cell(slot).read(state);
                let held = held_at(location, 0);
                if first.validate(location.versions[0]) {
                    return Reading { horizon: 0, held };
                }
            } else if let Some(reading) = self.read_second_set(location, state, &held_at) {
                return reading;
            }
            // A snapshot can be a lock guard, and the writer can wait for the lock.
            *state = C::empty();
            backoff.wait();
        }
    }

    /// Returns the amount held on a key in one of its sets.
    #[inline]
    fn held_at(&self, location: &Location, which: usize) -> u64 {
        if location.versions[which] & HELD == 0 { 0 } else { self.holds.of(location.fingerprint) }
    }

    /// Reads a key that is not in its first set. Returns `None` if the reading is not consistent.
    fn read_second_set<'a>(
        &'a self,
        location: &mut Location,
        state: &mut C::Snapshot<'a>,
        held_at: &impl Fn(&Location, usize) -> u64,
    ) -> Option<Reading> {
        let (first, second) = (self.set(location, 0), self.set(location, 1));
        location.versions[1] = second.version();
        if let Some(slot) = second.find(location.fingerprint) {
            location.position = Position::Second(slot);
            second.cell(slot).read(state);
            let held = held_at(location, 1);
            return second.validate(location.versions[1]).then_some(Reading { horizon: 0, held });
        }
        location.position = Position::Absent;
        // Between the loads of the versions and their validation: a state that is dropped meanwhile makes the reading
        // invalid, so its horizon is not missed.
        let [horizon, of_second] = location.candidate_sets.map(|set| self.horizons.of(set));
        first.cell(0).read_zero(state);
        let is_absent = first.validate(location.versions[0]) && second.validate(location.versions[1]);
        is_absent.then(|| Reading { horizon: horizon.max(of_second), held: 0 })
    }
}
