use std::fmt;
use std::ops::{Deref, DerefMut};

use super::{Cell, Copied, State};
use crate::sync::{AtomicU64, Ordering};

/// A state whose number of words is known when the limiter is built: see
/// [`state_words`](super::super::Algorithm::state_words).
///
/// It dereferences to its words.
#[derive(Clone)]
pub struct Blocks {
    words: [u64; Self::MAX_WORDS],
    len: usize,
}

impl Blocks {
    /// The most words that such a state can have.
    pub const MAX_WORDS: usize = 65;

    /// A state of so many zeros, at most [`MAX_WORDS`](Self::MAX_WORDS).
    #[must_use]
    pub fn zero(words: usize) -> Self {
        Self { words: [0; Self::MAX_WORDS], len: words.min(Self::MAX_WORDS) }
    }
}

impl Deref for Blocks {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.words[..self.len]
    }
}

impl DerefMut for Blocks {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.words[..self.len]
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self[..].fmt(f)
    }
}

impl State for Blocks {
    type Cell = Box<[AtomicU64]>;

    fn from_numbers(numbers: &[u64]) -> Self {
        let mut blocks = Self::zero(numbers.len());
        for (word, number) in blocks.iter_mut().zip(numbers) {
            *word = *number;
        }
        blocks
    }

    fn to_numbers(&self, numbers: &mut Vec<u64>) {
        numbers.extend(&**self);
    }
}

// The orderings are those of the cell of fixed size.
impl Cell for Box<[AtomicU64]> {
    type State = Blocks;
    type Snapshot<'a> = Copied<Blocks>;
    type Edit<'a> = EditBlocks<'a>;

    fn new(words: usize) -> Self {
        (0..words.clamp(1, Blocks::MAX_WORDS)).map(|_| AtomicU64::new(0)).collect()
    }

    fn snapshot(&self) -> Copied<Blocks> {
        let mut copy = Blocks::zero(self.len());
        for (word, cell) in copy.iter_mut().zip(self) {
            *word = cell.load(Ordering::Acquire);
        }
        Copied(copy)
    }

    fn zero(&self) -> Copied<Blocks> {
        Copied(Blocks::zero(self.len()))
    }

    fn edit(&self) -> EditBlocks<'_> {
        let Copied(state) = self.snapshot();
        EditBlocks { cell: self, state }
    }

    fn edit_from(&self, Copied(state): Copied<Blocks>) -> EditBlocks<'_> {
        EditBlocks { cell: self, state }
    }

    fn clear(&self) {
        self.iter().for_each(|cell| cell.store(0, Ordering::Release));
    }

    fn copy_from(&self, other: &Self) {
        for (to, from) in self.iter().zip(other) {
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    fn fresh_at(&self) -> u64 {
        self[0].load(Ordering::Acquire)
    }

    fn heap_bytes(&self) -> usize {
        size_of_val(&**self)
    }
}

#[allow(unreachable_pub, missing_debug_implementations, reason = "the hidden half of a sealed trait")]
pub struct EditBlocks<'a> {
    cell: &'a [AtomicU64],
    state: Blocks,
}

impl Deref for EditBlocks<'_> {
    type Target = Blocks;

    fn deref(&self) -> &Blocks {
        &self.state
    }
}

impl DerefMut for EditBlocks<'_> {
    fn deref_mut(&mut self) -> &mut Blocks {
        &mut self.state
    }
}

impl Drop for EditBlocks<'_> {
    fn drop(&mut self) {
        for (cell, word) in self.cell.iter().zip(&*self.state) {
            cell.store(*word, Ordering::Release);
        }
    }
}
