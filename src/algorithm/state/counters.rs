use std::ops::{Deref, DerefMut};

use super::State;
use crate::decision::LazySnapshot;

/// A state whose number of words is determined when the limiter is built: see
/// [`counter_words`](super::super::Algorithm::counter_words).
///
/// `Counters` dereferences to its words.
#[derive(Clone, Debug)]
pub struct Counters(Vec<u64>);

impl Counters {
    /// The maximum number of words.
    pub const MAX_WORDS: usize = 134;

    /// Creates a state of `words` zeros, at most [`MAX_WORDS`](Self::MAX_WORDS).
    pub fn zero(words: usize) -> Self {
        Self(vec![0; words.min(Self::MAX_WORDS)])
    }
}

impl Counters {
    /// Makes the state so many words long, at most [`MAX_WORDS`](Self::MAX_WORDS), if it is shorter.
    pub(crate) fn grow(&mut self, words: usize) {
        let words = words.min(Self::MAX_WORDS);
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
    }
}

impl Deref for Counters {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        &self.0
    }
}

impl DerefMut for Counters {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.0
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
    #[inline]
    pub const fn new(words: [u64; 4], edit: fn(&mut Counters, &[u64; 4])) -> Self {
        Self { words, edit, snapshot: None }
    }

    /// Adds the [snapshot](super::super::Algorithm::snapshot) of the changed state at the time of the decision. Without
    /// it, the store reads the changed state once more, under a lock.
    #[inline]
    #[must_use]
    pub const fn with_snapshot(mut self, snapshot: LazySnapshot) -> Self {
        self.snapshot = Some(snapshot);
        self
    }
}

impl State for Counters {
    type Next = CountersEdit;

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

    #[inline]
    fn idle_at(&self) -> u64 {
        self.first().copied().unwrap_or(0)
    }

    #[inline]
    fn empty() -> Self {
        Self(Vec::new())
    }

    fn clear(&mut self, words: usize) {
        let words = words.clamp(1, Self::MAX_WORDS);
        self.0.clear();
        self.0.reserve_exact(words);
        self.0.resize(words, 0);
    }

    fn from_numbers(numbers: &[u64]) -> Self {
        Self(numbers[..numbers.len().min(Self::MAX_WORDS)].to_vec())
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

    fn fit(&mut self, words: usize) -> bool {
        let fits = self.iter().skip(words).all(|word| *word == 0);
        if fits {
            self.0.resize(words, 0);
        }
        fits
    }

    fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<u64>()
    }
}
