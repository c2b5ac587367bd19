//! Room for a key that found none: some key moves to its other set, or the table is full and its policy speaks.

use std::sync::atomic::{AtomicU64 as Hint, Ordering::Relaxed};

use super::set::{Set, all_slots};
use super::when_full::WhenFull;
use super::{Spot, Table};
use crate::algorithm::AtomicState;

/// What a table must know of states to make room.
pub(crate) trait Tenancy<S> {
    /// How much a key owes: the part of its limit, then the time until it is as good as new.
    fn owes(&self, state: &S) -> (u64, u64);

    /// Makes the state one that owes at least what another one does, too.
    fn inherit(&self, state: &mut S, from: &S);

    /// What becomes of a new key when there is no room for it.
    fn when_full(&self) -> WhenFull;
}

/// The table is full, and its policy is to refuse: until this moment, when one of those in the key's sets is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub struct Full {
    pub(crate) until: u64,
}

/// How a table fares that is full.
pub(super) struct Crowding<C> {
    /// For each set, at least what everybody owes who was forgotten there: empty unless the policy is to inherit. Under the
    /// set's lock.
    estates: Box<[C]>,
    /// When a thorough search for room failed last, or zero if room was found since.
    full_at: Hint,
    /// How many live keys had to go. No decision reads it.
    forgotten: Hint,
}

impl<C: AtomicState> Crowding<C> {
    pub(super) fn new(inherits: bool, sets: usize, words: usize) -> Self {
        let estates = if inherits { sets } else { 0 };
        Self { estates: (0..estates).map(|_| C::new(words)).collect(), full_at: Hint::new(0), forgotten: Hint::new(0) }
    }

    pub(super) fn estates(&self) -> usize {
        self.estates.len()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.estates) + self.estates.iter().map(AtomicState::heap_bytes).sum::<usize>()
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Relaxed)
    }

    /// There is some room again.
    pub(super) fn relieve(&self) {
        if self.full_at.load(Relaxed) != 0 {
            self.full_at.store(0, Relaxed);
        }
    }

    /// Whether a thorough search has just failed: under a flood of new keys each would search in vain.
    fn is_full(&self, now: u64) -> bool {
        const FOR: u64 = 1_000;
        let full_at = self.full_at.load(Relaxed);
        full_at != 0 && now.abs_diff(full_at) < FOR
    }
}

/// In the place of a tenancy where nobody is to be placed.
pub(super) enum Nobody {}

impl<S> Tenancy<S> for Nobody {
    fn owes(&self, _state: &S) -> (u64, u64) {
        match *self {}
    }

    fn inherit(&self, _state: &mut S, _from: &S) {
        match *self {}
    }

    fn when_full(&self) -> WhenFull {
        match *self {}
    }
}

impl<C: AtomicState> Table<C> {
    /// What a key that is nowhere starts with, if it inherits anything: at least what was owed by everybody who was forgotten
    /// in either of its sets. The spot vouches for it.
    #[inline]
    pub(crate) fn estate(&self, spot: &Spot, tenancy: &impl Tenancy<C::State>) -> Option<C::State> {
        if self.has_estates() { self.estate_of_both(spot, tenancy) } else { None }
    }

    #[inline]
    pub(crate) fn has_estates(&self) -> bool {
        !self.crowding.estates.is_empty()
    }

    #[cold]
    fn estate_of_both(&self, spot: &Spot, tenancy: &impl Tenancy<C::State>) -> Option<C::State> {
        let [home, other] = spot.candidates.map(|set| &self.crowding.estates[set]);
        if home.idle_at() == 0 && other.idle_at() == 0 {
            return None;
        }
        let mut state = home.snapshot().clone();
        tenancy.inherit(&mut state, &other.snapshot());
        Some(state)
    }

    /// Makes room for a key that found none: moves some key to its other set, or lets the policy speak.
    ///
    /// Call it without holding a lock, and then read anew. By the time of that somebody else may have taken the room.
    ///
    /// # Errors
    ///
    /// If there is no room, and nobody is to be forgotten.
    #[cold]
    pub(crate) fn make_room(&self, spot: &Spot, now: u64, tenancy: &impl Tenancy<C::State>) -> Result<(), Full> {
        if self.make_room_by_moving(spot.candidates, now) {
            return Ok(());
        }
        match tenancy.when_full() {
            WhenFull::Evict | WhenFull::CarryOver if self.forget_who_owes_least(spot.candidates, now, tenancy) => {
                Ok(())
            }
            WhenFull::Deny | WhenFull::Evict | WhenFull::CarryOver => Err(self.full(spot.candidates)),
        }
    }

    /// Whether a key that is nowhere would be refused for want of room.
    #[inline]
    pub(crate) fn is_full_for(&self, spot: &Spot, now: u64, when_full: WhenFull) -> Result<(), Full> {
        if spot.is_nowhere() && (when_full == WhenFull::Deny || self.all_are_held(spot.candidates.into_iter())) {
            return self.has_room(spot.candidates, now);
        }
        Ok(())
    }

    /// Whether something is held on every key of these sets: then none can be evicted.
    fn all_are_held(&self, mut sets: impl Iterator<Item = usize>) -> bool {
        let is_held = |set: usize, slot| self.holds.of(self.sets[set].fingerprint(slot)) > 0;
        self.holds.any() && sets.all(|set| all_slots().all(|slot| is_held(set, slot)))
    }

    #[cold]
    fn has_room(&self, candidates: [usize; 2], now: u64) -> Result<(), Full> {
        let is_free = |set: usize| self.sets[set].free_slot(now, &self.holds).is_some();
        let room = candidates.into_iter().any(is_free) || !matches!(self.search(candidates, now), Search::Nothing);
        if room { Ok(()) } else { Err(self.full(candidates)) }
    }

    fn full(&self, sets: [usize; 2]) -> Full {
        let moments = sets.into_iter().flat_map(|set| all_slots().map(move |slot| self.sets[set].cell(slot).idle_at()));
        Full { until: moments.min().unwrap_or(u64::MAX) }
    }

    /// Makes the last move of a chain that ends in a set with a free slot. Earlier moves of a longer chain are made when the
    /// caller comes back.
    pub(super) fn make_room_by_moving(&self, roots: [usize; 2], now: u64) -> bool {
        match self.search(roots, now) {
            Search::Empty => true,
            Search::Move { fingerprint, from, to } => {
                // If another thread was faster, things have changed: the caller looks again.
                self.move_key(fingerprint, from, to, now);
                true
            }
            Search::Nothing => false,
        }
    }

    /// Looks breadth-first for a key that can move to a set with a free slot.
    fn search(&self, roots: [usize; 2], now: u64) -> Search {
        // Nearly always one of those that are there can: nothing needs to be remembered for that.
        let found =
            roots.into_iter().map(|set| self.search_in(set, now, |_| ())).find(|found| *found != Search::Nothing);
        match found {
            Some(found) => found,
            None if self.crowding.is_full(now) => Search::Nothing,
            None => self.search_beyond(roots, now),
        }
    }

    fn search_beyond(&self, roots: [usize; 2], now: u64) -> Search {
        let mut queue = roots.to_vec();
        let mut looked_at = 0;
        while let Some(&from) = queue.get(looked_at) {
            looked_at += 1;
            let found = self.search_in(from, now, |full| {
                if queue.len() < Self::FRONTIER && !queue.contains(&full) {
                    queue.push(full);
                }
            });
            if found != Search::Nothing {
                return found;
            }
        }
        self.crowding.full_at.store(now, Relaxed);
        Search::Nothing
    }

    /// Looks for a key of one set that can move. Tells those of their other sets that are full.
    #[inline]
    fn search_in(&self, from: usize, now: u64, mut full: impl FnMut(usize)) -> Search {
        for slot in all_slots() {
            let fingerprint = self.sets[from].fingerprint(slot);
            if fingerprint == 0 {
                return Search::Empty;
            }
            let to = self.other_candidate(fingerprint, from);
            if self.sets[to].free_slot(now, &self.holds).is_some() {
                return Search::Move { fingerprint, from, to };
            }
            full(to);
        }
        Search::Nothing
    }

    /// How many sets a search for room looks at, each with the three that its keys could move to.
    ///
    /// In a table filled to its 88.7 % three quarters of the sets are full. There one insertion in a hundred looks at ten keys to
    /// find one that can move, and for each twenty more it is one in six of these: that this many are looked at in vain has no
    /// chance to happen.
    const FRONTIER: usize = 256;

    /// Moves the key from one of its sets to the other, unless it is gone or the room is.
    /// Says whether it was moved.
    pub(super) fn move_key(&self, fingerprint: u64, from: usize, to: usize, now: u64) -> bool {
        let (low, high) = (&self.sets[from.min(to)], &self.sets[from.max(to)]);
        let versions = (low.lock_whenever(), high.lock_whenever());
        let (source, target) = (&self.sets[from], &self.sets[to]);
        let found = source.find(fingerprint).zip(target.free_slot(now, &self.holds));
        if let Some((old, new)) = found {
            self.occupy(to, new, fingerprint);
            target.cell(new).copy_from(source.cell(old));
            source.vacate(old);
        }
        high.unlock(versions.1);
        low.unlock(versions.0);
        found.is_some()
    }

    /// The table is full of live keys: forgets, of those in the two sets, the one that owes least. False if something is held
    /// on each of them.
    ///
    /// Under both locks: if somebody else has made room meanwhile nobody is forgotten, and nobody charges a key that is.
    fn forget_who_owes_least(&self, sets: [usize; 2], now: u64, tenancy: &impl Tenancy<C::State>) -> bool {
        let both = LockedPair::lock(self, sets);
        let is_full = sets.iter().all(|&set| self.sets[set].free_slot(now, &self.holds).is_none());
        let mut has_room = !is_full;
        if is_full {
            let slots = sets.into_iter().flat_map(|set| all_slots().map(move |slot| (set, slot)));
            let slots = slots.filter(|&(set, slot)| self.holds.of(self.sets[set].fingerprint(slot)) == 0);
            let owes = |&(set, slot): &(usize, u8)| tenancy.owes(&self.sets[set].cell(slot).snapshot());
            if let Some((set, slot)) = slots.min_by_key(owes) {
                let (set, estate) = (&self.sets[set], self.crowding.estates.get(set));
                if let Some(estate) = estate {
                    tenancy.inherit(&mut estate.edit(), &set.cell(slot).snapshot());
                }
                set.vacate(slot);
                self.crowding.forgotten.fetch_add(1, Relaxed);
                has_room = true;
            }
        }
        drop(both);
        has_room
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    /// One of those looked at has an empty slot.
    Empty,
    Move {
        fingerprint: u64,
        from: usize,
        to: usize,
    },
    Nothing,
}

/// Two sets, locked until dropped: also when a user's algorithm panics.
struct LockedPair<'a, C: AtomicState> {
    sets: [&'a Set<C>; 2],
    versions: [u64; 2],
}

impl<'a, C: AtomicState> LockedPair<'a, C> {
    /// In the order in which every thread locks sets.
    fn lock(table: &'a Table<C>, sets: [usize; 2]) -> Self {
        let sets = [sets[0].min(sets[1]), sets[0].max(sets[1])].map(|set| &table.sets[set]);
        Self { sets, versions: sets.map(Set::lock_whenever) }
    }
}

impl<C: AtomicState> Drop for LockedPair<'_, C> {
    fn drop(&mut self) {
        for (set, version) in self.sets.iter().zip(self.versions) {
            set.unlock(version);
        }
    }
}
