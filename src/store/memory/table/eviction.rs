//! A slot for a key that finds both of its sets full: relocation, and at capacity the policy of [`WhenFull`].

use std::sync::atomic::Ordering::Relaxed;

use super::TableInfo;
use super::set::{SLOTS, SlotIndex, candidate_sets};
use super::shard::Keys;
use crate::algorithm::{Algorithm, State};
use crate::clock::Timestamp;
use crate::store::inner::micros_floor;
use crate::store::memory::when_full::WhenFull;

/// How a table evicts: the algorithm determines the usage. Without one, because the key chooses it, the time at which a key
/// is idle does.
pub(in crate::store::memory) struct Eviction<'a, A: Algorithm> {
    pub(in crate::store::memory) algorithm: Option<&'a A>,
    pub(in crate::store::memory) now: Timestamp,
    pub(in crate::store::memory) when_full: WhenFull,
    pub(in crate::store::memory) info: &'a TableInfo<A::State>,
}

impl<A: Algorithm> Eviction<'_, A> {
    /// Returns the usage of a state, to choose the key to evict: the used amount, then the time until it is idle.
    fn usage_rank(&self, state: &A::State) -> (u64, u64) {
        let Some(algorithm) = self.algorithm else { return (0, state.idle_at()) };
        let figures = algorithm.snapshot(state, self.now).compute();
        (figures.limit.saturating_sub(figures.remaining), micros_floor(figures.reset))
    }

    /// Makes `state` one with at least the usage of `from` as well.
    pub(in crate::store::memory) fn carry_over(&self, state: &mut A::State, from: &A::State) {
        match self.algorithm {
            Some(algorithm) => algorithm.carry_over_debt(state, from, self.now),
            None if from.idle_at() > state.idle_at() => state.clone_from(from),
            None => {}
        }
    }
}

/// The table is full, and no key can be evicted. At `until` one of the keys in the sets is idle.
///
/// With `all_held` the policy evicts, and the reason is that every key in the sets has a held amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull {
    pub(in crate::store::memory) until: u64,
    pub(in crate::store::memory) all_held: bool,
}

impl<S> TableInfo<S> {
    /// The maximum duration of the hint. A search reads 768 sets of a large shard. If none of their keys is idle, hardly
    /// any other key is. But usage can be set to less, and keys that are inserted meanwhile can be idle earlier.
    const MAX_HINT: u64 = 10_000;

    /// Records that a search has failed. At `until` the first of the keys that it has read is idle.
    fn note_full(&self, now: u64, until: u64) {
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
    /// take up to 40 us: row "memory flood" of `benches/figures.md`.
    fn is_full(&self, now: u64) -> bool {
        // Whatever the clock does, a hint lasts no longer than `MAX_HINT`.
        let left = self.full_until.load(Relaxed).saturating_sub(now);
        left > 0 && left <= Self::MAX_HINT
    }
}

impl<A: Algorithm> Keys<A> {
    /// Frees a slot for an absent key in a shard that cannot grow.
    ///
    /// # Errors
    ///
    /// Returns an error if no key can move, and the policy evicts none.
    #[cold]
    pub(super) fn make_space(&mut self, fingerprint: u64, policy: &Eviction<'_, A>) -> Result<(), TableFull> {
        let (sets, now) = (candidate_sets(fingerprint, self.sets.len()), policy.now.as_micros());
        if let Some(moves) = self.find_moves(sets, now, policy.info) {
            self.moves += 1;
            for Move { from, to } in moves {
                // The search has found the first slot free, and each move frees the next one.
                let Some(free) = self.free_slot_in(to, now) else { break };
                self.horizon = self.horizon.max(self.state(free).idle_at());
                self.move_state(from, free);
            }
            return Ok(());
        }
        match policy.when_full {
            WhenFull::Evict | WhenFull::CarryOver if self.evict_least_used(sets, policy) => Ok(()),
            when_full => Err(self.full_error(sets, when_full)),
        }
    }

    /// Returns an error if an absent key would be denied because the table is full.
    pub(in crate::store::memory) fn is_full_for(
        &self,
        fingerprint: u64,
        policy: &Eviction<'_, A>,
    ) -> Result<(), TableFull> {
        let &Eviction { now, when_full, info, .. } = policy;
        let sets = candidate_sets(fingerprint, self.sets.len());
        // Under the other policies an eviction frees a slot, unless every key has a held amount.
        let can_be_full = || when_full == WhenFull::Deny || slots_of(sets).all(|slot| self.is_held(slot));
        if self.sets.len() < info.max_sets || self.find(fingerprint).is_some() || !can_be_full() {
            return Ok(());
        }
        let now = now.as_micros();
        let has_space =
            sets.iter().any(|set| self.free_slot_in(*set, now).is_some()) || self.find_moves(sets, now, info).is_some();
        if has_space { Ok(()) } else { Err(self.full_error(sets, when_full)) }
    }

    fn full_error(&self, sets: [usize; 2], when_full: WhenFull) -> TableFull {
        let moments = slots_of(sets).map(|slot| self.state(slot).idle_at());
        TableFull { until: moments.min().unwrap_or(u64::MAX), all_held: when_full != WhenFull::Deny }
    }

    /// Evicts the key with the least usage in the two sets. Returns `false` if every key has a held amount.
    fn evict_least_used(&mut self, sets: [usize; 2], policy: &Eviction<'_, A>) -> bool {
        let slots = slots_of(sets).filter(|slot| !self.is_held(*slot));
        // The least usage: the limit that is lost with the key is the smallest that can be.
        let Some(slot) = slots.min_by_key(|slot| policy.usage_rank(self.state(*slot))) else { return false };
        if policy.info.carries_debt {
            let debt = self.state(slot).clone();
            self.inherit_debt(Some(slot.set), &debt, policy);
        }
        self.clear_slot(slot, policy.info);
        self.evicted += 1;
        true
    }

    /// Searches, breadth first, for moves that free a slot in one of two sets. The first move is into a free slot.
    fn find_moves(&self, roots: [usize; 2], now: u64, info: &TableInfo<A::State>) -> Option<Vec<Move>> {
        /// The maximum number of sets that a search reads, each with the three sets that its keys could move to.
        ///
        /// In a table filled to 88.7 %, three quarters of the sets are full. There, one insertion in a hundred reads ten
        /// keys to find one that can move, and for every twenty keys more it is one in six of these. So a search of this
        /// length fails only if the table is full.
        const MAX_SEARCH_SETS: usize = 256;
        if info.is_full(now) {
            return None;
        }
        let mut seen = vec![false; self.sets.len()];
        let mut reached: Vec<Reached> = Vec::with_capacity(8);
        for set in roots {
            seen[set] = true;
            reached.push(Reached { set, by: None });
        }
        let (mut next, mut full_until) = (0, u64::MAX);
        while let Some(&Reached { set, .. }) = reached.get(next) {
            for slot in 0..SLOTS {
                let from = SlotIndex { set, slot };
                let [first, second] = candidate_sets(self.fingerprint(from), self.sets.len());
                let to = if set == first { second } else { first };
                if self.free_slot_in(to, now).is_some() {
                    return Some(moves_to(&reached, next, Move { from, to }));
                }
                let idle_times = self.sets[to].states.iter().map(State::idle_at).filter(|idle_at| *idle_at > now);
                full_until = idle_times.fold(full_until, u64::min);
                if reached.len() < MAX_SEARCH_SETS && !std::mem::replace(&mut seen[to], true) {
                    reached.push(Reached { set: to, by: Some((next, slot)) });
                }
            }
            next += 1;
        }
        info.note_full(now, full_until);
        None
    }
}

fn slots_of(sets: [usize; 2]) -> impl Iterator<Item = SlotIndex> {
    sets.into_iter().flat_map(|set| (0..SLOTS).map(move |slot| SlotIndex { set, slot }))
}

/// A move of the key in a slot to its other set.
struct Move {
    from: SlotIndex,
    to: usize,
}

/// A set that a search has reached: the other set of a key, which is in a slot of the set with this index in the search.
#[derive(Clone, Copy)]
struct Reached {
    set: usize,
    by: Option<(usize, usize)>,
}

/// Returns the moves that lead from one of the first two sets of a search to another set of it, the last one first.
fn moves_to(reached: &[Reached], mut index: usize, last: Move) -> Vec<Move> {
    let mut moves = vec![last];
    while let Reached { set: to, by: Some((origin, slot)) } = reached[index] {
        moves.push(Move { from: SlotIndex { set: reached[origin].set, slot }, to });
        index = origin;
    }
    moves
}
