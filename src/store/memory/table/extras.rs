//! What few keys of a shard have besides a state: a held amount, and a block.
//!
//! A key with a held amount keeps its slot, also when its state is idle: no insertion, relocation or eviction takes it over.
//! Otherwise the settlement could find no slot in a full table, and the actual cost would not be charged. A blocked key
//! needs no slot.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::time::Duration;

use super::deadlines::{Deadline, Deadlines};
use crate::clock::Timestamp;
use crate::decision::BlockReason;
use crate::store::inner::latest_end;

/// The extras of a shard, by fingerprint.
pub(super) struct Extras<A> {
    keys: HashMap<u64, Extra, BuildHasherDefault<Fingerprints>>,
    pub(super) deadlines: Deadlines,
    /// The algorithms of holds, where the key chooses the algorithm: a settlement and a save have no key to choose by. By
    /// the number of the hold, each with the fingerprint.
    algorithms: BTreeMap<u64, (u64, A)>,
    last_algorithm: u64,
    /// With so many keys, ended blocks are removed.
    sweep_at: usize,
}

/// The extras of a key.
#[derive(Default)]
pub(super) struct Extra {
    pub(super) held: u64,
    pub(super) block: Option<Block>,
}

impl Extra {
    fn is_empty(&self) -> bool {
        self.held == 0 && self.block.is_none()
    }
}

/// A block of a key: its end, and its [duration and reason](BlockReason::pack).
#[derive(Clone, Copy, Debug)]
pub(in crate::store::memory) struct Block {
    pub(in crate::store::memory) until: u64,
    pub(in crate::store::memory) duration: u64,
}

impl Block {
    /// Returns the time until the block ends, and its reason. `None` if it has ended, or if the clock has stepped back by
    /// more than its duration since it was set.
    pub(super) fn remaining(self, now: Timestamp) -> Option<(Duration, BlockReason)> {
        let (until, (duration, reason)) = (Timestamp::from_micros(self.until), BlockReason::unpack(self.duration));
        (until > now && until <= latest_end(now, duration)).then(|| (until.saturating_since(now), reason))
    }

    /// Returns whether the block ended so long ago that a small step back of the clock does not reach it.
    fn is_over(self, now: Timestamp) -> bool {
        const KEPT_MICROS: u64 = 60_000_000;
        self.until.saturating_add(KEPT_MICROS) <= now.as_micros()
    }
}

impl<A> Default for Extras<A> {
    fn default() -> Self {
        Self {
            keys: HashMap::default(),
            deadlines: Deadlines::default(),
            algorithms: BTreeMap::new(),
            last_algorithm: 0,
            sweep_at: Self::MIN_SWEEP,
        }
    }
}

impl<A> Extras<A> {
    const MIN_SWEEP: usize = 16;

    pub(super) fn get(&self, fingerprint: u64) -> Option<&Extra> {
        self.keys.get(&fingerprint)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the number of the hold, and its deadline, or zeros.
    pub(super) fn hold(
        &mut self,
        fingerprint: u64,
        amount: u64,
        max_duration: Option<(Timestamp, u64)>,
        algorithm: Option<A>,
    ) -> (u64, u64) {
        let extra = self.keys.entry(fingerprint).or_default();
        extra.held = extra.held.saturating_add(amount);
        if let Some((now, duration)) = max_duration {
            let Deadline { at, id } = self.deadlines.add(now, duration, fingerprint, amount);
            return (id, at);
        }
        let Some(algorithm) = algorithm else { return (0, 0) };
        self.last_algorithm += 1;
        self.algorithms.insert(self.last_algorithm, (fingerprint, algorithm));
        (self.last_algorithm, 0)
    }

    pub(super) fn end_hold(&mut self, fingerprint: u64, amount: u64, algorithm: u64) -> Option<A> {
        if let Entry::Occupied(mut extra) = self.keys.entry(fingerprint) {
            extra.get_mut().held = extra.get().held.saturating_sub(amount);
            if extra.get().is_empty() {
                extra.remove();
            }
        }
        if algorithm == 0 { None } else { self.algorithms.remove(&algorithm).map(|(_, algorithm)| algorithm) }
    }

    pub(super) fn algorithm_of(&self, fingerprint: u64) -> Option<&A> {
        self.algorithms.values().rev().find(|(of, _)| *of == fingerprint).map(|(_, algorithm)| algorithm)
    }

    fn drop_if_empty(&mut self, fingerprint: u64) {
        if self.get(fingerprint).is_some_and(Extra::is_empty) {
            self.keys.remove(&fingerprint);
        }
    }

    pub(super) fn held_totals(&self) -> (usize, u64) {
        let held = self.keys.values().map(|extra| extra.held).filter(|held| *held > 0);
        held.fold((0, 0), |(keys, sum), held| (keys + 1, held.saturating_add(sum)))
    }

    /// Blocks a key, or removes its block. With `max` blocks, the block that ends first is dropped.
    pub(super) fn set_block(&mut self, fingerprint: u64, block: Option<Block>, now: Timestamp, max: usize) {
        if block.is_some() && self.keys.len() >= self.sweep_at.min(max) && self.get(fingerprint).is_none() {
            self.drop_blocks(now, max);
        }
        self.keys.entry(fingerprint).or_default().block = block;
        self.drop_if_empty(fingerprint);
    }

    fn drop_blocks(&mut self, now: Timestamp, max: usize) {
        self.keys.retain(|_, extra| {
            extra.block = extra.block.filter(|block| !block.is_over(now));
            extra.held > 0 || extra.block.is_some()
        });
        if self.blocks().count() >= max {
            // A block of a clock that was ahead does not count.
            let rank = |block: Block| if block.remaining(now).is_none() { 0 } else { block.until };
            if let Some((first, _)) = self.blocks().min_by_key(|(_, block)| rank(*block)) {
                self.keys.entry(first).or_default().block = None;
                self.drop_if_empty(first);
            }
        }
        self.sweep_at = (self.keys.len() * 2).max(Self::MIN_SWEEP);
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, Block)> {
        self.keys.iter().filter_map(|(fingerprint, extra)| Some((*fingerprint, extra.block?)))
    }

    /// Returns about how many bytes the extras take.
    pub(super) fn bytes(&self) -> usize {
        // A map allocates an eighth more than its capacity, and a byte of its own for each entry.
        let of = |capacity: usize, entry: usize| capacity * 8 / 7 * (entry + 1);
        size_of::<Self>()
            + of(self.keys.capacity(), size_of::<(u64, Extra)>())
            // A tree fills its nodes to two thirds.
            + self.algorithms.len() * size_of::<(u64, (u64, A))>() * 3 / 2
            + self.deadlines.bytes()
    }
}

/// A hasher that returns a fingerprint unchanged: fingerprints are hashes.
#[derive(Default)]
pub(super) struct Fingerprints(u64);

impl std::hash::Hasher for Fingerprints {
    fn finish(&self) -> u64 {
        self.0
    }

    // The trait demands it. A `u64` is hashed by `write_u64`.
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, fingerprint: u64) {
        // The keys of a shard have the upper bits in common, by which the map distinguishes its entries.
        self.0 = fingerprint.rotate_left(32);
    }
}
