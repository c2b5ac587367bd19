use std::fmt;
use std::ops::{Deref, DerefMut};

use super::{AtomicState, State, StateCopy};
use crate::decision::LazySnapshot;
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
    pub const MAX_WORDS: usize = 134;

    /// Creates a state of `words` zeros, at most [`MAX_WORDS`](Self::MAX_WORDS).
    #[must_use]
    pub fn zero(words: usize) -> Self {
        Self { words: [0; Self::MAX_WORDS], len: words.min(Self::MAX_WORDS) }
    }
}

impl Counters {
    /// Makes the state so many words long, at most [`MAX_WORDS`](Self::MAX_WORDS), if it is shorter.
    pub(crate) fn grow(&mut self, words: usize) {
        self.len = self.len.max(words.min(Self::MAX_WORDS));
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

/// A change of a [`Counters`], which is made in place. A copy of all words would take longer than a decision.
#[derive(Clone, Copy, Debug)]
pub struct CountersEdit {
    words: [u64; 4],
    edit: fn(&mut Counters, &[u64; 4]),
    snapshot: Option<LazySnapshot>,
}

impl CountersEdit {
    /// Creates a change that `edit` makes. `edit` gets `words` and the state on which the algorithm has decided.
    #[must_use]
    #[inline]
    pub const fn new(words: [u64; 4], edit: fn(&mut Counters, &[u64; 4])) -> Self {
        Self { words, edit, snapshot: None }
    }

    /// Adds the [snapshot](super::super::Algorithm::snapshot) of the changed state at the time of the decision. Without
    /// it, the store reads the changed state once more, under a lock.
    #[must_use]
    #[inline]
    pub const fn with_snapshot(mut self, snapshot: LazySnapshot) -> Self {
        self.snapshot = Some(snapshot);
        self
    }
}

impl State for Counters {
    type Next = CountersEdit;
    type AtomicState = Box<[AtomicU64]>;

    #[inline]
    fn apply(&mut self, next: CountersEdit) {
        (next.edit)(self, &next.words);
    }

    #[inline]
    fn next_state(_next: &CountersEdit) -> Option<&Self> {
        None
    }

    #[inline]
    fn next_snapshot(next: &CountersEdit) -> Option<LazySnapshot> {
        next.snapshot
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

    // The maximum number of words: an algorithm with other settings may have written the state.
    fn from_stored(numbers: &[u64]) -> Option<Self> {
        let mut counters = Self::zero(Self::MAX_WORDS);
        counters.get_mut(..numbers.len())?.copy_from_slice(numbers);
        Some(counters)
    }

    /// Leaves out the zeros at the end.
    fn to_stored(&self, numbers: &mut Vec<u64>) {
        let last = self.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        numbers.extend(&self[..last]);
    }

    fn fit(&mut self, zero: &Self) -> bool {
        let fits = self.iter().skip(zero.len).all(|word| *word == 0);
        if fits {
            self.len = zero.len;
        }
        fits
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

    fn empty<'a>() -> StateCopy<Counters>
    where
        Self: 'a,
    {
        StateCopy(Counters::zero(0))
    }

    fn read(&self, StateCopy(copy): &mut StateCopy<Counters>) {
        copy.len = self.len().min(Counters::MAX_WORDS);
        // Four words at a time: row "sliding window" of docs/performance.md.
        let (fours, rest) = self.as_chunks::<4>();
        let (copied_fours, _) = copy.words.as_chunks_mut::<4>();
        for (copied, words) in copied_fours.iter_mut().zip(fours) {
            *copied = std::array::from_fn(|word| words[word].load(Ordering::Acquire));
        }
        for (copied, word) in copy.words[fours.len() * 4..].iter_mut().zip(rest) {
            *copied = word.load(Ordering::Acquire);
        }
    }

    fn read_zero(&self, StateCopy(copy): &mut StateCopy<Counters>) {
        *copy = Counters::zero(self.len());
    }

    fn edit(&self) -> CountersGuard<'_> {
        let StateCopy(state) = self.snapshot();
        CountersGuard { words: self, state }
    }

    #[inline]
    fn apply<R>(
        &self,
        StateCopy(state): &mut StateCopy<Counters>,
        next: CountersEdit,
        read: impl FnOnce(&Counters) -> R,
    ) -> R {
        state.apply(next);
        let result = read(state);
        for (cell, word) in self.iter().zip(&**state) {
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
