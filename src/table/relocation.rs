//! Relocation: moves a key to its other set, to free a slot for another key.
//!
//! A relocation locks both sets of the key. So no reader sees the key in neither set: a reading of an absent key is
//! valid only if the versions of both sets are unchanged.

use super::eviction::LockedSets;
use super::set::{HELD, all_slots};
use super::table::Table;
use crate::algorithm::AtomicState;

impl<C: AtomicState> Table<C> {
    /// Frees a slot in one of two sets by moving keys. Returns `false` if no moves are found.
    ///
    /// The caller retries in any case: another thread may have taken the slot, or have changed a set before its move.
    pub(super) fn relocate(&self, roots: [usize; 2], now: u64) -> bool {
        let Some(moves) = self.find_moves(roots, now) else { return false };
        for Move { fingerprint, from, to } in moves {
            if !self.move_key(fingerprint, from, to, now) {
                break;
            }
        }
        true
    }

    /// Searches, breadth first, for moves that free a slot in one of two sets. The first move is into a free slot.
    pub(super) fn find_moves(&self, roots: [usize; 2], now: u64) -> Option<Vec<Move>> {
        if self.eviction.is_full(now) {
            return None;
        }
        let (mut seen, mut reached) = (SeenSets([0; 64]), Vec::with_capacity(8));
        for set in roots {
            seen.insert(set);
            reached.push(Reached { set, by: 0, origin: None });
        }
        let (mut next, mut full_until) = (0, u64::MAX);
        while let Some(&Reached { set: from, .. }) = reached.get(next) {
            for slot in all_slots() {
                // Read without locks: `move_key` finds out whether the search was overtaken.
                let fingerprint = self.sets[from].fingerprint(slot);
                // Another thread has freed this slot meanwhile. In a root nothing needs to move: the caller retries.
                if fingerprint == 0 {
                    return Some(moves_to(&reached, next, Vec::new()));
                }
                let to = self.other_candidate(fingerprint, from);
                if self.sets[to].find_free(now, &self.holds).is_some() {
                    return Some(moves_to(&reached, next, vec![Move { fingerprint, from, to }]));
                }
                full_until = full_until.min(self.sets[to].next_idle_at(now));
                if reached.len() < Self::MAX_SEARCH_SETS && seen.insert(to) {
                    reached.push(Reached { set: to, by: fingerprint, origin: Some(next) });
                }
            }
            next += 1;
        }
        self.eviction.note_full(now, full_until);
        None
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
            // Both sets have the key for a moment. No reading is valid meanwhile, as both are locked.
            target.cell(new).copy_from(source.cell(old));
            source.clear_slot(old, token);
            // `HELD` follows the key. `BLOCKED` is set in both sets of a blocked key already.
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

/// A move of a key to its other set.
pub(super) struct Move {
    fingerprint: u64,
    from: usize,
    to: usize,
}

/// A set that a search has reached: the other set of the key `by`, which is in the set `origin` of the search.
struct Reached {
    set: usize,
    by: u64,
    origin: Option<usize>,
}

/// Adds the moves that lead from one of the first two sets of a search to another set of it, the last one first.
fn moves_to(reached: &[Reached], mut index: usize, mut moves: Vec<Move>) -> Vec<Move> {
    while let Reached { set: to, by: fingerprint, origin: Some(origin) } = reached[index] {
        moves.push(Move { fingerprint, from: reached[origin].set, to });
        index = origin;
    }
    moves
}

/// The sets that a search has reached. Exact in a table of up to 4096 sets. In a larger one, a search of 256 sets leaves
/// out one in thirty sets on average: it may have reached another set with the same bit.
struct SeenSets([u64; 64]);

impl SeenSets {
    /// Returns whether the set is new.
    fn insert(&mut self, set: usize) -> bool {
        let (word, bit) = (&mut self.0[set / 64 % 64], 1 << (set % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}
