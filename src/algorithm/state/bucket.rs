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

impl BucketState {
    /// So many bits a time has: enough for what is owed at the [last](crate::Timestamp::LAST) moment.
    const TIME_BITS: u32 = 54;
    const LATEST: u64 = (1 << Self::TIME_BITS) - 1;
    /// So many bits of a word are left beside a time.
    const SPARE_BITS: u32 = 64 - Self::TIME_BITS;
    const SPARE: u64 = (1 << Self::SPARE_BITS) - 1;
    /// So many bits the rate has.
    const RATE_BITS: u32 = 61;
    const RATE: u64 = (1 << Self::RATE_BITS) - 1;
    /// So many bits the part has: 33, in what is left beside three times and the rate.
    pub(crate) const PART_BITS: u32 = 3 * Self::SPARE_BITS + (64 - Self::RATE_BITS);

    /// Three times with a piece of the part below each, and the rate with the last piece above it.
    #[inline(always)]
    fn pack(self) -> [u64; 4] {
        let Self { whole, part, rate, written_at, floor } = self;
        let beside = |time: u64, piece: u32| {
            time.min(Self::LATEST) << Self::SPARE_BITS | (part >> (piece * Self::SPARE_BITS) & Self::SPARE)
        };
        let last = part >> (3 * Self::SPARE_BITS);
        [beside(whole, 0), beside(written_at, 1), beside(floor, 2), last << Self::RATE_BITS | (rate & Self::RATE)]
    }

    #[inline(always)]
    fn unpack([whole, written_at, floor, rate]: [u64; 4]) -> Self {
        let pieces = [whole, written_at, floor].map(|word| word & Self::SPARE);
        let part = pieces[0]
            | pieces[1] << Self::SPARE_BITS
            | pieces[2] << (2 * Self::SPARE_BITS)
            | rate >> Self::RATE_BITS << (3 * Self::SPARE_BITS);
        let [whole, written_at, floor] = [whole, written_at, floor].map(|word| word >> Self::SPARE_BITS);
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
        self[0].0.load(Ordering::Acquire) >> BucketState::SPARE_BITS
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
            part in 0..1_u64 << BucketState::PART_BITS,
            rate in 0..=BucketState::RATE,
            written_at in 0..=BucketState::LATEST,
            floor in 0..=BucketState::LATEST,
        ) {
            let state = BucketState { whole, part, rate, written_at, floor };
            prop_assert_eq!(BucketState::unpack(state.pack()), state);
        }

        #[test]
        fn a_time_that_is_too_late_is_the_latest(time in BucketState::LATEST..) {
            let state = BucketState { whole: time, written_at: time, floor: time, ..BucketState::default() };
            let back = BucketState::unpack(state.pack());
            prop_assert_eq!([back.whole, back.written_at, back.floor], [BucketState::LATEST; 3]);
        }
    }
}
