//! Sets and their slots.

use crate::algorithm::State;

/// The number of slots of a set. With three slots and states of four words, a set fills two cache lines.
pub(super) const SLOTS: usize = 3;

/// A few slots of a shard.
///
/// All fingerprints are in the first cache line, and no state of four words is in two lines. Many processors fetch two lines
/// that are aligned to 128 bytes together.
#[repr(C, align(128))]
pub(super) struct Set<S> {
    _line: u64,
    pub(super) fingerprints: [u64; SLOTS],
    pub(super) states: [S; SLOTS],
}

/// A slot of a shard. Valid under the lock of the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::memory) struct SlotIndex {
    pub(super) set: usize,
    pub(super) slot: usize,
}

impl<S: State> Set<S> {
    pub(super) fn empty() -> Self {
        Self { _line: 0, fingerprints: [0; SLOTS], states: std::array::from_fn(|_| S::empty()) }
    }

    /// Finds the slot of a key.
    ///
    /// With branches: a processor that predicts the slot goes on before the cache line arrives. Not by an iterator, whose
    /// closure is not in line without LTO.
    #[inline]
    pub(super) fn find(&self, fingerprint: u64) -> Option<usize> {
        let [first, second, third] = self.fingerprints;
        if first == fingerprint {
            Some(0)
        } else if second == fingerprint {
            Some(1)
        } else if third == fingerprint {
            Some(2)
        } else {
            None
        }
    }
}

/// Returns the two candidate sets of a key in a shard of `sets` sets, a power of two. They differ in the lowest bit.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "only the low bits count")]
pub(super) fn candidate_sets(fingerprint: u64, sets: usize) -> [usize; 2] {
    let mask = sets.wrapping_sub(1);
    let first = fingerprint as usize & mask;
    [first, first ^ (((fingerprint >> 24) as usize | 1) & mask)]
}
