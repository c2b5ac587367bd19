use std::ops::{Deref, DerefMut};

use super::{Cell, Copied, State};
use crate::sync::{AtomicU64, Ordering};

/// What a [`Gcra`](crate::Gcra), a [`TokenBucket`](crate::TokenBucket), a [`LeakyBucket`](crate::LeakyBucket) and a
/// [`LeakyQueue`](crate::LeakyQueue) remember of a key. In a table it takes four words.
///
/// `BucketState::default()` is the zero state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketState {
    /// The first tick at which the bucket is full again.
    pub(crate) whole: u64,
    pub(crate) part: u64,
    /// The quota that wrote the state, packed.
    pub(crate) rate: u64,
    pub(crate) written_at: u64,
    pub(crate) floor: u64,
}

/// How a state of five words lies in four.
///
/// Nearly always the floor is zero: then the four others are as they are. With a floor, its word takes the part's place, the
/// highest bit of the rate's word says so, and the part lies in pieces above the three times and the rate.
///
/// No time is later than 200 years after the [last](crate::Timestamp::LAST) moment.
impl BucketState {
    const TIME_BITS: u32 = 54;
    const LATEST: u64 = (1 << Self::TIME_BITS) - 1;
    /// So many bits of a word are left above a time.
    const PIECE_BITS: u32 = 64 - Self::TIME_BITS;
    const PIECE: u64 = (1 << Self::PIECE_BITS) - 1;
    const RATE_BITS: u32 = 61;
    const RATE: u64 = (1 << Self::RATE_BITS) - 1;
    const HAS_FLOOR: u64 = 1 << 63;
    /// So many bits the part has: 32, in what is left above three times and the rate.
    pub(crate) const PART_BITS: u32 = 3 * Self::PIECE_BITS + (63 - Self::RATE_BITS);

    #[inline(always)]
    fn pack(self) -> [u64; 4] {
        let Self { whole, part, rate, written_at, floor } = self;
        debug_assert!(whole.max(written_at).max(floor) <= Self::LATEST && part >> Self::PART_BITS == 0, "{self:?}");
        if floor == 0 { [whole, written_at, part, rate] } else { self.pack_with_floor() }
    }

    #[inline(always)]
    fn pack_with_floor(self) -> [u64; 4] {
        let Self { whole, part, rate, written_at, floor } = self;
        let above = |time, index| (part >> (index * Self::PIECE_BITS) & Self::PIECE) << Self::TIME_BITS | time;
        let last = part >> (3 * Self::PIECE_BITS) << Self::RATE_BITS;
        [above(whole, 0), above(written_at, 1), above(floor, 2), Self::HAS_FLOOR | last | rate]
    }

    #[inline(always)]
    fn unpack(words: [u64; 4]) -> Self {
        let [whole, written_at, part, rate] = words;
        if rate < Self::HAS_FLOOR {
            Self { whole, part, rate, written_at, floor: 0 }
        } else {
            Self::unpack_with_floor(words)
        }
    }

    #[inline(always)]
    fn unpack_with_floor([whole, written_at, floor, rate]: [u64; 4]) -> Self {
        let last = (rate & !Self::HAS_FLOOR) >> Self::RATE_BITS << (3 * Self::PIECE_BITS);
        let pieces = [whole, written_at, floor].map(|word| word >> Self::TIME_BITS);
        let part = pieces[0] | pieces[1] << Self::PIECE_BITS | pieces[2] << (2 * Self::PIECE_BITS) | last;
        let [whole, written_at, floor] = [whole, written_at, floor].map(|word| word & Self::LATEST);
        Self { whole, part, rate: rate & Self::RATE, written_at, floor }
    }
}

/// The time at which the bucket is full again, what is to be taken off it, the rate, the time of the last charge, the floor.
impl From<BucketState> for [u64; 5] {
    fn from(state: BucketState) -> Self {
        let BucketState { whole, part, rate, written_at, floor } = state;
        [whole, part, rate, written_at, floor]
    }
}

impl From<[u64; 5]> for BucketState {
    fn from([whole, part, rate, written_at, floor]: [u64; 5]) -> Self {
        Self { whole, part, rate, written_at, floor }
    }
}

impl State for BucketState {
    type Cell = [PackedWord; 4];

    fn from_numbers(numbers: &[u64]) -> Self {
        <[u64; 5]>::from_numbers(numbers).into()
    }

    fn to_numbers(&self, numbers: &mut Vec<u64>) {
        numbers.extend(<[u64; 5]>::from(*self));
    }
}

/// A word of a packed state.
#[derive(Debug)]
#[allow(unreachable_pub, reason = "the hidden half of a sealed trait")]
pub struct PackedWord(AtomicU64);

// The orderings are those of the cell of whole words.
impl Cell for [PackedWord; 4] {
    type State = BucketState;
    type Snapshot<'a> = Copied<BucketState>;
    type Edit<'a> = EditPacked<'a>;

    fn new(_words: usize) -> Self {
        std::array::from_fn(|_| PackedWord(AtomicU64::new(0)))
    }

    #[inline(always)]
    fn snapshot(&self) -> Copied<BucketState> {
        Copied(BucketState::unpack(std::array::from_fn(|word| self[word].0.load(Ordering::Acquire))))
    }

    #[inline(always)]
    fn zero(&self) -> Copied<BucketState> {
        Copied(BucketState::default())
    }

    #[inline(always)]
    fn edit(&self) -> EditPacked<'_> {
        EditPacked { cell: self, state: self.snapshot().0 }
    }

    #[inline(always)]
    fn edit_from(&self, Copied(state): Copied<BucketState>) -> EditPacked<'_> {
        EditPacked { cell: self, state }
    }

    fn clear(&self) {
        for word in self {
            word.0.store(0, Ordering::Release);
        }
    }

    fn copy_from(&self, other: &Self) {
        for (to, from) in self.iter().zip(other) {
            to.0.store(from.0.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    #[inline(always)]
    fn fresh_at(&self) -> u64 {
        self[0].0.load(Ordering::Acquire) & BucketState::LATEST
    }
}

#[allow(unreachable_pub, missing_debug_implementations, reason = "the hidden half of a sealed trait")]
pub struct EditPacked<'a> {
    cell: &'a [PackedWord; 4],
    state: BucketState,
}

impl Deref for EditPacked<'_> {
    type Target = BucketState;

    #[inline(always)]
    fn deref(&self) -> &BucketState {
        &self.state
    }
}

impl DerefMut for EditPacked<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut BucketState {
        &mut self.state
    }
}

impl Drop for EditPacked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        for (cell, word) in self.cell.iter().zip(self.state.pack()) {
            cell.0.store(word, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_packed_comes_back(
            whole in 0..=BucketState::LATEST,
            part in prop_oneof![Just(0), 0..1_u64 << BucketState::PART_BITS],
            rate in 0..=BucketState::RATE,
            written_at in 0..=BucketState::LATEST,
            floor in prop_oneof![Just(0), 0..=BucketState::LATEST],
        ) {
            let state = BucketState { whole, part, rate, written_at, floor };
            prop_assert_eq!(BucketState::unpack(state.pack()), state);
            prop_assert_eq!(state.pack()[0] & BucketState::LATEST, whole);
        }
    }
}
