//! Relocation: moves a key to its other set, to free a slot for another key.
//!
//! A relocation locks both sets of the key. So no reader sees the key in neither set: a reading of an absent key is
//! valid only if the versions of both sets are unchanged.

use std::sync::atomic::Ordering::Relaxed;

use super::eviction::LockedSets;
use super::set::{HELD, all_slots};
use super::table::Table;
use crate::algorithm::AtomicState;

impl<C: AtomicState> Table<C> {
    /// Makes the last move of a chain that ends in a set with a free slot. The caller retries, and so makes the earlier
    /// moves of a longer chain.
    pub(super) fn relocate(&self, roots: [usize; 2], now: u64) -> bool {
        match self.find_relocation(roots, now) {
            Search::FreeSlot => true,
            Search::Relocate { fingerprint, from, to } => {
                // If another thread was faster, nothing moves, and the caller retries.
                self.move_key(fingerprint, from, to, now);
                true
            }
            Search::None => false,
        }
    }

    /// Searches for a key that can move to a set with a free slot.
    pub(super) fn find_relocation(&self, roots: [usize; 2], now: u64) -> Search {
        // A key of the two sets can nearly always move: that search allocates no queue.
        let found =
            roots.into_iter().map(|set| self.find_in_set(set, now, |_| ())).find(|found| *found != Search::None);
        match found {
            Some(found) => found,
            None if self.eviction.is_full(now) => Search::None,
            None => self.search_breadth_first(roots, now),
        }
    }

    fn search_breadth_first(&self, roots: [usize; 2], now: u64) -> Search {
        let mut queue = roots.to_vec();
        let mut looked_at = 0;
        while let Some(&from) = queue.get(looked_at) {
            looked_at += 1;
            let found = self.find_in_set(from, now, |full| {
                if queue.len() < Self::MAX_SEARCH_SETS && !queue.contains(&full) {
                    queue.push(full);
                }
            });
            if found != Search::None {
                return found;
            }
        }
        self.eviction.full_since.store(now, Relaxed);
        Search::None
    }

    /// Searches one set for a key that can move. Calls `full` with each other set that has no free slot.
    #[inline]
    fn find_in_set(&self, from: usize, now: u64, mut full: impl FnMut(usize)) -> Search {
        for slot in all_slots() {
            let fingerprint = self.sets[from].fingerprint(slot);
            if fingerprint == 0 {
                return Search::FreeSlot;
            }
            let to = self.other_candidate(fingerprint, from);
            if self.sets[to].find_free(now, &self.holds).is_some() {
                return Search::Relocate { fingerprint, from, to };
            }
            full(to);
        }
        Search::None
    }

    /// The maximum number of sets that a search reads, each with the three sets that its keys could move to.
    ///
    /// In a table filled to 88.7 %, three quarters of the sets are full. There, one insertion in a hundred reads ten
    /// keys to find one that can move, and for every twenty keys more it is one in six of these. So a search of this
    /// length fails only if the table is full.
    const MAX_SEARCH_SETS: usize = 256;

    /// Moves a key from one of its sets to the other, if it is still there and a slot is still free. Returns whether it
    /// moved.
    pub(crate) fn move_key(&self, fingerprint: u64, from: usize, to: usize, now: u64) -> bool {
        let both = LockedSets::lock(self, [from, to]);
        let [token, _] = &both.tokens;
        let (source, target) = (&self.sets[from], &self.sets[to]);
        let found = source.find(fingerprint).zip(target.find_free(now, &self.holds));
        if let Some((old, new)) = found {
            self.claim(to, new, fingerprint, token);
            target.cell(new).copy_from(source.cell(old));
            source.clear_slot(old, token);
            if source.flags() & HELD != 0 {
                source.update_held(&self.holds, token);
                target.update_held(&self.holds, token);
            }
            self.relocations.note(fingerprint, token);
        }
        drop(both);
        found.is_some()
    }
}

/// The result of a search for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// One of the sets has an empty slot.
    FreeSlot,
    /// This key can move to a free slot.
    Relocate {
        fingerprint: u64,
        from: usize,
        to: usize,
    },
    None,
}
