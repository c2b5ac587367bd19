//! The bounded concurrent table of words.
//!
//! A key is a 64-bit hash, which is stored whole: the *fingerprint*. It names two sets; the key's state lies in a slot of
//! one of them, or nowhere. A set is one to a few cache lines: a version, six fingerprints, six cells.
//!
//! # Consistency
//!
//! Each set has a sequence lock: its version is odd while a writer is inside, and grows by two with every change. A reader
//! copies what it needs and looks at the version again; a writer swaps the version that its reading was based on for the
//! odd one, which fails if anything in the set has changed since. So a decision is an optimistic transaction: read, decide,
//! and if there is something to write, lock exactly what was read, write, unlock. A refusal writes nothing.
//!
//! A key that is in neither set is one that *both* versions vouch for: to insert it locks both, so that two threads can't
//! insert it twice, and no thread can read one set before and the other after somebody moves the key between them.
//!
//! # Idle states
//!
//! A slot whose state is as good as new by the decision's time is free: there is no sweep. Threads read their clocks before
//! they take their turn, so a thread may find a key gone that was still in debt by that thread's time. The set therefore
//! remembers the latest moment at which a state in it that was dropped became as good as new (the *horizon*), and a key
//! that is not found is decided no earlier than that.

mod set;

use std::sync::Arc;

use self::set::{SLOTS, Set};
use crate::algorithm::Cell;
use crate::sync::Backoff;

///
/// Clones are the same table.
pub(crate) struct Table<C> {
    sets: Arc<[Set<C>]>,
}

/// Where a key was found, or that it was not, and the versions that vouch for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    fingerprint: u64,
    candidates: [usize; 2],
    versions: [u64; 2],
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In this slot of the candidate with this index.
    Slot(usize, usize),
    Nowhere,
}

impl<C: Cell> Table<C> {
    /// A table in which `keys` live keys have room, whatever they are.
    ///
    /// A state whose type does not say it has `words` words.
    ///
    /// With two candidate sets of six and room made by moving, a table fills to over 98 % before an insertion fails. The
    /// slack leaves it at 88 %; a small table, where chance weighs more, gets some sets on top.
    pub(crate) fn with_room_for(keys: usize, words: usize) -> Self {
        let sets = (keys / 21).saturating_mul(4).saturating_add(keys % 21 / 5).saturating_add(Self::EXTRA_SETS);
        Self { sets: (0..sets).map(|_| Set::new(words)).collect() }
    }

    #[cfg(not(loom))]
    const EXTRA_SETS: usize = 5;
    #[cfg(loom)]
    const EXTRA_SETS: usize = 2;

    /// How many keys have room: the hard cap on what is remembered.
    pub(crate) fn slots(&self) -> usize {
        self.sets.len() * SLOTS
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    /// Runs `f` on the key's state, or on the zero state with the horizon of the sets where it might have been.
    ///
    /// `f` runs on a consistent copy. It may run more than once, if others are writing.
    #[inline]
    pub(crate) fn read<R>(&self, hash: u64, f: impl Fn(&C::State, Option<u64>) -> R) -> (Spot, R) {
        let fingerprint = fingerprint(hash);
        let candidates = self.candidates(fingerprint);
        let [home, other] = candidates.map(|set| &self.sets[set]);
        let mut backoff = Backoff::new();
        loop {
            let versions = [home.version(), 0];
            if let Some(slot) = home.find(fingerprint) {
                let valid = || home.is_at(versions[0]);
                if let Some(result) = home.cell(slot).read(valid, |state| f(state, None)) {
                    return (Spot { fingerprint, candidates, versions, at: At::Slot(0, slot) }, result);
                }
                backoff.wait();
                continue;
            }
            let versions = [versions[0], other.version()];
            if let Some(slot) = other.find(fingerprint) {
                let valid = || other.is_at(versions[1]);
                if let Some(result) = other.cell(slot).read(valid, |state| f(state, None)) {
                    return (Spot { fingerprint, candidates, versions, at: At::Slot(1, slot) }, result);
                }
                backoff.wait();
                continue;
            }
            let horizon = home.horizon().max(other.horizon());
            if home.is_at(versions[0]) && other.is_at(versions[1]) {
                let result = home.cell(0).read_zero(|state| f(state, Some(horizon)));
                return (Spot { fingerprint, candidates, versions, at: At::Nowhere }, result);
            }
            backoff.wait();
        }
    }

    /// Whether all that the spot was read from is still as it was.
    pub(crate) fn is_current(&self, spot: &Spot) -> bool {
        spot.vouching().all(|which| self.sets[spot.candidates[which]].is_at(spot.versions[which]))
    }

    /// Takes the lock on all that the spot was read from, unless anything there has changed.
    #[inline]
    pub(crate) fn lock(&self, spot: &Spot) -> bool {
        match spot.at {
            At::Slot(which, _) => self.sets[spot.candidates[which]].lock(spot.versions[which]),
            At::Nowhere => {
                let [first, second] = spot.in_order();
                let set = |which: usize| &self.sets[spot.candidates[which]];
                if !set(first).lock(spot.versions[first]) {
                    return false;
                }
                if !set(second).lock(spot.versions[second]) {
                    set(first).unlock_unchanged(spot.versions[first]);
                    return false;
                }
                true
            }
        }
    }

    /// Gives the lock back with nothing changed.
    pub(crate) fn unlock_unchanged(&self, spot: &Spot) {
        for which in spot.vouching() {
            self.sets[spot.candidates[which]].unlock_unchanged(spot.versions[which]);
        }
    }

    /// Gives the lock back, and tells all who read meanwhile.
    #[inline]
    pub(crate) fn unlock(&self, spot: &Spot) {
        for which in spot.vouching() {
            self.sets[spot.candidates[which]].unlock(spot.versions[which]);
        }
    }

    /// Under the lock: gives a key that is nowhere a slot, one that is empty or idle at `now`. False if there is none.
    ///
    /// The spot still vouches for both sets.
    #[inline]
    pub(crate) fn place(&self, spot: &Spot, now: u64) -> Option<Place> {
        match spot.at {
            At::Slot(which, slot) => Some(Place { set: spot.candidates[which], slot }),
            At::Nowhere => spot.candidates.into_iter().find_map(|set| {
                let slot = self.sets[set].free_slot(now)?;
                self.sets[set].occupy(slot, spot.fingerprint);
                Some(Place { set, slot })
            }),
        }
    }

    /// Under the lock: changes the state in a place.
    #[inline]
    pub(crate) fn write<R>(&self, place: Place, f: impl FnOnce(&mut C::State) -> R) -> R {
        self.sets[place.set].cell(place.slot).write(f)
    }

    /// Under the lock: the moment from which on the state in a place is as good as new.
    #[inline]
    pub(crate) fn fresh_at(&self, place: Place) -> u64 {
        self.sets[place.set].cell(place.slot).fresh_at()
    }

    /// Under the lock: back to the zero state.
    pub(crate) fn clear(&self, place: Place) {
        self.sets[place.set].cell(place.slot).clear();
    }

    /// Forgets the key.
    pub(crate) fn remove(&self, hash: u64) {
        let mut backoff = Backoff::new();
        loop {
            let (spot, ()) = self.read(hash, |_, _| ());
            let At::Slot(which, slot) = spot.at else { return };
            if self.lock(&spot) {
                self.sets[spot.candidates[which]].vacate(slot);
                self.unlock(&spot);
                return;
            }
            backoff.wait();
        }
    }

    /// Makes room for a key that found none: moves some key to its other set, or in the worst case forgets the one among
    /// those in its sets that is as good as new first.
    ///
    /// Call it without holding a lock, and then read anew. By the time of that somebody else may have taken the room.
    #[cold]
    pub(crate) fn make_room(&self, spot: &Spot, now: u64) {
        if !self.make_room_by_moving(spot.candidates, now) {
            self.forget_soonest_idle(spot.candidates);
        }
    }

    /// Looks breadth-first for a chain of moves that ends in a set with a free slot, and makes its last move. Earlier moves
    /// of a longer chain are made when the caller comes back.
    fn make_room_by_moving(&self, roots: [usize; 2], now: u64) -> bool {
        let mut queue = roots.to_vec();
        let mut looked_at = 0;
        while let Some(&from) = queue.get(looked_at) {
            looked_at += 1;
            for slot in 0..SLOTS {
                let fingerprint = self.sets[from].fingerprint(slot);
                if fingerprint == 0 {
                    return true;
                }
                let to = self.other_candidate(fingerprint, from);
                if self.sets[to].free_slot(now).is_some() {
                    if self.move_key(fingerprint, from, to, now) {
                        return true;
                    }
                } else if queue.len() < Self::FRONTIER && !queue.contains(&to) {
                    queue.push(to);
                }
            }
        }
        false
    }

    /// How many sets a search for room looks at: the two, their 12 neighbours, and most of those' neighbours. In a table
    /// filled to its 88 % fewer than half of the sets are full, so that all of these are has no chance to happen.
    const FRONTIER: usize = 96;

    /// Moves the key from one of its sets to the other, unless it is gone or the room is.
    fn move_key(&self, fingerprint: u64, from: usize, to: usize, now: u64) -> bool {
        let (low, high) = (&self.sets[from.min(to)], &self.sets[from.max(to)]);
        let versions = (low.lock_whenever(), high.lock_whenever());
        let (source, target) = (&self.sets[from], &self.sets[to]);
        let moved = match (source.find(fingerprint), target.free_slot(now)) {
            (Some(old), Some(new)) => {
                target.occupy(new, fingerprint);
                target.cell(new).copy_from(source.cell(old));
                source.vacate(old);
                true
            }
            _ => false,
        };
        high.unlock(versions.1);
        low.unlock(versions.0);
        moved
    }

    /// The table is full of live keys: forgets, of those in the two sets, the one that would be idle first.
    fn forget_soonest_idle(&self, sets: [usize; 2]) {
        let slots = sets.into_iter().flat_map(|set| (0..SLOTS).map(move |slot| (set, slot)));
        let victim = slots.min_by_key(|&(set, slot)| self.sets[set].cell(slot).fresh_at());
        if let Some((set, slot)) = victim {
            let version = self.sets[set].lock_whenever();
            self.sets[set].vacate(slot);
            self.sets[set].unlock(version);
        }
    }

    /// How many keys are remembered that are not idle at `now`: a snapshot that may be torn. Reads the whole table.
    pub(crate) fn live(&self, now: u64) -> usize {
        self.sets.iter().map(|set| set.live(now)).sum()
    }

    /// Runs `f` on every key that is remembered and not idle at `now`, with its fingerprint and the moment at which it will
    /// be: on each consistently, on all of them not at one moment. Reads the whole table.
    pub(crate) fn for_each_live(&self, now: u64, mut f: impl FnMut(u64, u64, &C::State)) {
        for set in &*self.sets {
            for slot in 0..SLOTS {
                let (version, fingerprint, fresh_at) =
                    (set.version(), set.fingerprint(slot), set.cell(slot).fresh_at());
                if fingerprint != 0 && fresh_at > now {
                    // A slot that is being changed right now is left out.
                    let valid = || set.is_at(version);
                    let _ = set.cell(slot).read(valid, |state| f(fingerprint, fresh_at, state));
                }
            }
        }
    }

    /// The two sets of a key, never the same one: the fingerprint's upper half chooses the first, its lower half the second.
    #[inline]
    fn candidates(&self, fingerprint: u64) -> [usize; 2] {
        let sets = self.sets.len();
        let home = scale(fingerprint, sets);
        let step = 1 + scale(fingerprint.rotate_left(32), sets - 1);
        let other = home + step;
        [home, if other < sets { other } else { other - sets }]
    }

    fn other_candidate(&self, fingerprint: u64, set: usize) -> usize {
        let [home, other] = self.candidates(fingerprint);
        if set == home { other } else { home }
    }
}

impl<C> Clone for Table<C> {
    fn clone(&self) -> Self {
        Self { sets: Arc::clone(&self.sets) }
    }
}

impl<C> std::fmt::Debug for Table<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("slots", &(self.sets.len() * SLOTS)).finish()
    }
}

/// A slot, under the lock.
#[derive(Clone, Copy, Debug)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub struct Place {
    set: usize,
    slot: usize,
}

impl Spot {
    /// No reading at all.
    pub(crate) const BLANK: Self = Self { fingerprint: 0, candidates: [0; 2], versions: [0; 2], at: At::Nowhere };

    /// Whether the key was nowhere.
    pub(crate) fn is_nowhere(&self) -> bool {
        self.at == At::Nowhere
    }

    /// Which of the candidates' versions vouch for the reading.
    #[inline]
    fn vouching(&self) -> std::ops::Range<usize> {
        match self.at {
            At::Slot(which, _) => which..which + 1,
            At::Nowhere => 0..2,
        }
    }

    /// The candidates in the order in which every thread locks sets.
    fn in_order(&self) -> [usize; 2] {
        if self.candidates[0] < self.candidates[1] { [0, 1] } else { [1, 0] }
    }
}

/// Zero marks an empty slot, so the hash 0 counts as 1.
#[inline]
pub(crate) fn fingerprint(hash: u64) -> u64 {
    hash.max(1)
}

/// A number below `bound`, by the upper bits of `hash`.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the upper half of a product with `bound` is below it")]
fn scale(hash: u64, bound: usize) -> usize {
    ((u128::from(hash) * bound as u128) >> 64) as usize
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
