//! The bounded concurrent table of words.
//!
//! A key is a 64-bit hash, which is stored whole: the *fingerprint*. It names two sets; the key's state lies in a slot of
//! one of them, or nowhere. A set is a pair of cache lines or a few: a version, three fingerprints, three cells.
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
//! they take their turn, so a thread may find a key gone that was still in debt by that thread's time. The table therefore
//! remembers for each few sets the latest moment at which a state in them that was dropped became as good as new (the
//! *horizon*), and a key that is not found is decided no earlier than that.

mod eviction;
mod holds;
mod horizons;
mod location;
mod near;
mod nowhere;
mod set;
mod when_full;

use std::sync::Arc;

use self::eviction::Crowding;
pub(crate) use self::eviction::{Full, Tenancy};
use self::holds::Holds;
use self::horizons::Horizons;
use self::location::At;
pub(crate) use self::location::{Place, Spot};
pub(crate) use self::near::{LockedNear, Missed, Near};
pub(crate) use self::nowhere::NotInserted;
use self::set::{SLOTS, Set, all_slots};
pub use self::when_full::WhenFull;
use crate::algorithm::AtomicState;
use crate::sync::Backoff;

/// The table.
///
/// Clones are the same table.
pub(crate) struct Table<C> {
    id: u64,
    sets: Arc<[Set<C>]>,
    horizons: Arc<Horizons>,
    crowding: Arc<Crowding<C>>,
    holds: Arc<Holds>,
}

impl<C: AtomicState> Table<C> {
    /// A table in which `keys` live keys have room, whatever they are.
    ///
    /// A state whose type does not say it has `words` words.
    ///
    /// With two candidate sets of three and room made by moving, a table fills to over 93 % before an insertion fails. The
    /// slack leaves a large one at 88.7 %; a small one, where chance weighs more, has a few kilobytes on top.
    pub(crate) fn with_room_for(keys: usize, words: usize, when_full: WhenFull) -> Self {
        Self::of_sets(Self::sets_for(keys), words, when_full)
    }

    fn sets_for(keys: usize) -> usize {
        // 0.376 sets a key.
        (keys / 125).saturating_mul(47).saturating_add(keys % 125 * 47 / 125).saturating_add(Self::EXTRA_SETS)
    }

    fn of_sets(sets: usize, words: usize, when_full: WhenFull) -> Self {
        let crowding = Crowding::new(when_full == WhenFull::CarryOver, sets, words);
        let sets: Arc<[_]> = (0..sets).map(|_| Set::new(words)).collect();
        let horizons = Arc::new(Horizons::new(sets.len()));
        Self { id: next_id(), horizons, sets, crowding: Arc::new(crowding), holds: Arc::new(Holds::new()) }
    }

    #[cfg(not(loom))]
    const EXTRA_SETS: usize = 38;
    #[cfg(loom)]
    const EXTRA_SETS: usize = 2;

    /// Its own, and that of its clones.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// How many keys have room: the hard cap on what is remembered.
    pub(crate) fn slots(&self) -> usize {
        self.sets.len() * SLOTS
    }

    /// How many keys were forgotten that were not idle, as there was no room.
    pub(crate) fn forgotten(&self) -> u64 {
        self.crowding.forgotten()
    }

    /// How many states it can hold: one a slot, and the estates.
    pub(crate) fn states(&self) -> usize {
        self.slots() + self.crowding.estates()
    }

    /// All bytes that it has allocated. Reads the whole table.
    pub(crate) fn bytes(&self) -> usize {
        let heap: usize = self.sets.iter().map(Set::heap_bytes).sum();
        size_of_val(&*self.sets) + heap + self.horizons.bytes() + self.crowding.bytes() + self.holds.bytes()
    }

    /// A consistent reading of the key's state, or of the zero state if the key is nowhere. `spot` notes what it was read from.
    #[inline(always)]
    pub(crate) fn read(&self, hash: u64, spot: &mut Spot) -> Seen<'_, C> {
        spot.fingerprint = fingerprint(hash);
        spot.candidates = self.candidates(spot.fingerprint);
        let mut backoff = Backoff::new();
        loop {
            let home = self.set(spot, 0);
            spot.versions[0] = home.version();
            if let Some(slot) = home.find(spot.fingerprint) {
                spot.at = At::Home(slot);
                let (state, held) = (home.cell(slot).snapshot(), self.holds.of(spot.fingerprint));
                if home.is_at(spot.versions[0]) {
                    return Seen { state, horizon: 0, held };
                }
            } else if let Some(seen) = self.read_other(spot) {
                return seen;
            }
            backoff.wait();
        }
    }

    /// A key is seldom in its second set, and most keys that are not in their first are in neither.
    fn read_other(&self, spot: &mut Spot) -> Option<Seen<'_, C>> {
        let (home, other) = (self.set(spot, 0), self.set(spot, 1));
        spot.versions[1] = other.version();
        if let Some(slot) = other.find(spot.fingerprint) {
            spot.at = At::Other(slot);
            let (state, held) = (other.cell(slot).snapshot(), self.holds.of(spot.fingerprint));
            return other.is_at(spot.versions[1]).then_some(Seen { state, horizon: 0, held });
        }
        spot.at = At::Nowhere;
        let [horizon, of_other] = spot.candidates.map(|set| self.horizons.of(set));
        let is_nowhere = home.is_at(spot.versions[0]) && other.is_at(spot.versions[1]);
        is_nowhere.then(|| Seen { state: home.cell(0).zero(), horizon: horizon.max(of_other), held: 0 })
    }

    /// Whether all that the spot was read from is still as it was.
    pub(crate) fn is_current(&self, spot: &Spot) -> bool {
        spot.vouching().all(|which| self.sets[spot.candidates[which]].is_at(spot.versions[which]))
    }

    /// Takes the lock on all that the spot was read from, unless anything there has changed.
    #[inline(always)]
    pub(crate) fn lock(&self, spot: &Spot) -> bool {
        match spot.at {
            At::Home(_) => self.set(spot, 0).lock(spot.versions[0]),
            At::Other(_) => self.set(spot, 1).lock(spot.versions[1]),
            At::Nowhere => self.lock_both(spot),
        }
    }

    fn lock_both(&self, spot: &Spot) -> bool {
        let [first, second] = spot.in_order();
        if !self.set(spot, first).lock(spot.versions[first]) {
            return false;
        }
        let both = self.set(spot, second).lock(spot.versions[second]);
        if !both {
            self.set(spot, first).unlock_unchanged(spot.versions[first]);
        }
        both
    }

    #[inline(always)]
    fn set(&self, spot: &Spot, which: usize) -> &Set<C> {
        &self.sets[spot.candidates[which]]
    }

    /// Gives the lock back with nothing changed.
    pub(crate) fn unlock_unchanged(&self, spot: &Spot) {
        for which in spot.vouching() {
            self.set(spot, which).unlock_unchanged(spot.versions[which]);
        }
    }

    /// Gives the lock back, and tells all who read meanwhile.
    #[inline(always)]
    pub(crate) fn unlock(&self, spot: &Spot) {
        for which in spot.vouching() {
            self.set(spot, which).unlock(spot.versions[which]);
        }
    }

    /// Under the lock: gives a key that is nowhere a slot, one that is empty or idle at `now`. `None` if there is none.
    ///
    /// The spot still vouches for both sets.
    #[inline(always)]
    pub(crate) fn place(&self, spot: &Spot, now: u64, tenancy: &impl Tenancy<C::State>) -> Option<Place> {
        spot.place().or_else(|| self.place_new(spot, now, tenancy))
    }

    fn place_new(&self, spot: &Spot, now: u64, tenancy: &impl Tenancy<C::State>) -> Option<Place> {
        let place = self.take_slot(spot, now)?;
        // At once, and not only when it is charged: whoever finds the key here asks for no estate.
        if let Some(state) = self.estate(spot, tenancy) {
            *self.edit(place) = state;
        }
        Some(place)
    }

    /// Under the lock: a slot in the zero state for a key that is nowhere.
    #[inline(always)]
    fn take_slot(&self, spot: &Spot, now: u64) -> Option<Place> {
        spot.candidates.into_iter().find_map(|set| {
            let slot = self.sets[set].free_slot(now, &self.holds)?;
            if self.sets[set].cell(slot).idle_at() > 0 {
                self.crowding.relieve();
            }
            self.occupy(set, slot, spot.fingerprint);
            Some(Place { set, slot })
        })
    }

    /// Under the lock: gives an idle slot to a new key, in the zero state.
    #[inline(always)]
    fn occupy(&self, set: usize, slot: u8, fingerprint: u64) {
        self.horizons.raise(set, self.sets[set].cell(slot).idle_at());
        self.sets[set].occupy(slot, fingerprint);
    }

    /// Under the lock: holds so much more on the key of a reading.
    pub(crate) fn hold(&self, spot: &Spot, amount: u64) {
        self.holds.add(spot.fingerprint, amount);
    }

    /// Under the lock: ends a hold of so much on the key of a hash.
    pub(crate) fn end_hold(&self, hash: u64, amount: u64) {
        self.holds.subtract(fingerprint(hash), amount);
    }

    /// What is held on the key of a hash: see [`Seen::held`]. Under the lock, or the caller validates what it read.
    pub(crate) fn held(&self, hash: u64) -> u64 {
        self.holds.of(fingerprint(hash))
    }

    /// On how many keys something is held, and how much in all.
    pub(crate) fn holds(&self) -> (usize, u64) {
        self.holds.totals()
    }

    /// Under the lock: the state in a place, to change it.
    #[inline(always)]
    pub(crate) fn edit(&self, place: Place) -> C::Edit<'_> {
        self.sets[place.set].cell(place.slot).edit()
    }

    /// Under the lock: the moment from which on the state in a place is as good as new.
    #[inline(always)]
    pub(crate) fn idle_at(&self, place: Place) -> u64 {
        self.sets[place.set].cell(place.slot).idle_at()
    }

    /// Under the lock: back to the zero state.
    pub(crate) fn clear(&self, place: Place) {
        self.sets[place.set].cell(place.slot).clear();
    }

    /// Changes the key's state, or that of a new slot if it is nowhere and `insert` holds. Tells the [horizon](Seen::horizon).
    ///
    /// # Errors
    ///
    /// If it found no room.
    pub(crate) fn alter(
        &self,
        hash: u64,
        now: u64,
        insert: Option<&impl Tenancy<C::State>>,
        change: impl Fn(&Self, Place, u64),
    ) -> Result<(), Full> {
        let mut backoff = Backoff::new();
        loop {
            let mut spot = Spot::BLANK;
            let horizon = self.read(hash, &mut spot).horizon;
            if spot.is_nowhere() && insert.is_none() {
                return Ok(());
            }
            if !self.lock(&spot) {
                backoff.wait();
                continue;
            }
            let unlock = Unlock { table: self, spot: &spot };
            let place = match insert {
                Some(tenancy) => self.place(&spot, now, tenancy),
                None => spot.place(),
            };
            if let Some(place) = place {
                change(self, place, horizon);
                return Ok(());
            }
            drop(unlock);
            if let Some(tenancy) = insert {
                self.make_room(&spot, now, tenancy)?;
            }
        }
    }

    /// Forgets the key.
    pub(crate) fn remove(&self, hash: u64) {
        let vacate = |table: &Self, place: Place, _| {
            // A hold keeps its slot.
            if table.held(hash) == 0 { table.sets[place.set].vacate(place.slot) } else { table.clear(place) }
        };
        let removed = self.alter(hash, 0, None::<&eviction::Nobody>, vacate);
        debug_assert!(removed.is_ok(), "it takes no room");
        self.crowding.relieve();
    }

    /// How many keys are remembered that are not idle at `now`: a snapshot that may be torn. Reads the whole table.
    pub(crate) fn live(&self, now: u64) -> usize {
        self.sets.iter().map(|set| set.live(now)).sum()
    }

    /// Runs `f` on every key that is remembered and not idle at `now`, with its fingerprint and the moment at which it will
    /// be: on each consistently, on all of them not at one moment. Reads the whole table.
    pub(crate) fn for_each_live(&self, now: u64, mut f: impl FnMut(u64, u64, &C::State)) {
        for set in &*self.sets {
            for slot in all_slots() {
                let (version, fingerprint, idle_at) = (set.version(), set.fingerprint(slot), set.cell(slot).idle_at());
                if fingerprint != 0 && idle_at > now {
                    let state = set.cell(slot).snapshot();
                    // A slot that is being changed right now is left out.
                    if set.is_at(version) {
                        f(fingerprint, idle_at, &state);
                    }
                }
            }
        }
    }

    /// The two sets of a key, never the same one: the fingerprint's upper half chooses the first, its lower half the second.
    #[inline(always)]
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
        Self {
            id: self.id,
            sets: Arc::clone(&self.sets),
            horizons: Arc::clone(&self.horizons),
            crowding: Arc::clone(&self.crowding),
            holds: Arc::clone(&self.holds),
        }
    }
}

impl<C> std::fmt::Debug for Table<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("slots", &(self.sets.len() * SLOTS)).finish_non_exhaustive()
    }
}

/// What was read of a key.
pub(crate) struct Seen<'a, C: AtomicState + 'a> {
    pub(crate) state: C::Snapshot<'a>,
    /// For a key that is nowhere, the latest moment at which a state that was dropped where it might have been became as good
    /// as new. Zero for a key that is there.
    pub(crate) horizon: u64,
    /// What is held on the key. A key that is nowhere has nothing held, as a hold keeps its slot.
    pub(crate) held: u64,
}

/// Unlocks also when a user's algorithm panics.
struct Unlock<'a, C: AtomicState> {
    table: &'a Table<C>,
    spot: &'a Spot,
}

impl<C: AtomicState> Drop for Unlock<'_, C> {
    #[inline(always)]
    fn drop(&mut self) {
        self.table.unlock(self.spot);
    }
}

fn next_id() -> u64 {
    // Not one of the model checker's: it orders nothing.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Zero marks an empty slot, so the hash 0 counts as 1.
#[inline(always)]
pub(crate) fn fingerprint(hash: u64) -> u64 {
    hash.max(1)
}

/// A number below `bound`, by the upper bits of `hash`.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the upper half of a product with `bound` is below it")]
fn scale(hash: u64, bound: usize) -> usize {
    ((u128::from(hash) * bound as u128) >> 64) as usize
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
