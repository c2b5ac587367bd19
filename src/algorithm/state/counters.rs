use std::fmt;
use std::ops::{Deref, DerefMut};

use super::{AtomicState, State, StateCopy};
use crate::sync::{AtomicU64, Ordering};

/// A state whose number of words is determined when the limiter is built: see
/// [`counter_words`](super::super::Algorithm::counter_words).
///
/// `Counters` dereferences to its words.
#[derive(Clone)]
pub struct Counters {
    words: [u64; Self::MAX_WORDS],
    len: usize,
}

impl Counters {
    /// The maximum number of words.
    pub const MAX_WORDS: usize = 65;

    /// Creates a state of `words` zeros, at most [`MAX_WORDS`](Self::MAX_WORDS).
    #[must_use]
    pub fn zero(words: usize) -> Self {
        Self { words: [0; Self::MAX_WORDS], len: words.min(Self::MAX_WORDS) }
    }
}

impl Deref for Counters {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.words[..self.len]
    }
}

impl DerefMut for Counters {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.words[..self.len]
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self[..].fmt(f)
    }
}

impl State for Counters {
    type Next = Self;
    type AtomicState = Box<[AtomicU64]>;

    fn apply(&mut self, next: Self) {
        *self = next;
    }

    fn preview(next: &Self) -> Option<&Self> {
        Some(next)
    }

    fn idle_at(&self) -> u64 {
        self.first().copied().unwrap_or(0)
    }

    fn from_numbers(numbers: &[u64]) -> Self {
        let mut counters = Self::zero(numbers.len());
        for (word, number) in counters.iter_mut().zip(numbers) {
            *word = *number;
        }
        counters
    }

    fn to_numbers(&self, numbers: &mut Vec<u64>) {
        numbers.extend(&**self);
    }
}

// The orderings are those of `AtomicState for [AtomicU64; N]`.
impl AtomicState for Box<[AtomicU64]> {
    type State = Counters;
    type Snapshot<'a> = StateCopy<Counters>;
    type Edit<'a> = CountersGuard<'a>;

    fn new(words: usize) -> Self {
        (0..words.clamp(1, Counters::MAX_WORDS)).map(|_| AtomicU64::new(0)).collect()
    }

    fn snapshot(&self) -> StateCopy<Counters> {
        let mut copy = Counters::zero(self.len());
        for (copied, word) in copy.iter_mut().zip(self) {
            *copied = word.load(Ordering::Acquire);
        }
        StateCopy(copy)
    }

    fn zero(&self) -> StateCopy<Counters> {
        StateCopy(Counters::zero(self.len()))
    }

    fn edit(&self) -> CountersGuard<'_> {
        let StateCopy(state) = self.snapshot();
        CountersGuard { words: self, state }
    }

    fn apply<R>(&self, next: Counters, read: impl FnOnce(&Counters) -> R) -> R {
        let result = read(&next);
        for (cell, word) in self.iter().zip(&*next) {
            cell.store(*word, Ordering::Release);
        }
        result
    }

    fn clear(&self) {
        self.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    fn copy_from(&self, other: &Self) {
        for (to, from) in self.iter().zip(other) {
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    fn idle_at(&self) -> u64 {
        self[0].load(Ordering::Acquire)
    }

    fn heap_bytes(&self) -> usize {
        size_of_val(&**self)
    }
}

#[allow(unreachable_pub, missing_debug_implementations, reason = "the hidden half of a sealed trait")]
pub struct CountersGuard<'a> {
    words: &'a [AtomicU64],
    state: Counters,
}

impl Deref for CountersGuard<'_> {
    type Target = Counters;

    fn deref(&self) -> &Counters {
        &self.state
    }
}

impl DerefMut for CountersGuard<'_> {
    fn deref_mut(&mut self) -> &mut Counters {
        &mut self.state
    }
}

impl Drop for CountersGuard<'_> {
    fn drop(&mut self) {
        for (atomic, word) in self.words.iter().zip(&*self.state) {
            atomic.store(*word, Ordering::Release);
        }
    }
}
