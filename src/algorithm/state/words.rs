use std::ops::{Deref, DerefMut};

use super::{AtomicState, State, StateCopy};
use crate::decision::LazySnapshot;
use crate::sync::{AtomicU64, Ordering};

impl<const N: usize> State for [u64; N] {
    type Next = Self;
    type AtomicState = [AtomicU64; N];

    #[inline]
    fn apply(&mut self, next: Self) {
        *self = next;
    }

    #[inline]
    fn next_state(next: &Self) -> Option<&Self> {
        Some(next)
    }

    #[inline]
    fn next_snapshot(_next: &Self) -> Option<LazySnapshot> {
        None
    }

    #[inline]
    fn idle_at(&self) -> u64 {
        const { assert!(N > 0, "a state needs at least one word: the time from which on it is idle") }
        self[0]
    }

    fn from_numbers(numbers: &[u64]) -> Self {
        std::array::from_fn(|word| numbers.get(word).copied().unwrap_or(0))
    }

    fn to_numbers(&self, numbers: &mut Vec<u64>) {
        numbers.extend(self);
    }

    fn from_stored(numbers: &[u64]) -> Option<Self> {
        numbers.try_into().ok()
    }
}

// Loads acquire and stores release: a reader that sees one word of a writer also sees that writer's lock, so its
// validation of the set's version fails. With relaxed orderings it could accept a torn copy. On x86 both are plain
// moves.
impl<const N: usize> AtomicState for [AtomicU64; N] {
    type State = [u64; N];
    type Snapshot<'a> = StateCopy<[u64; N]>;
    type Edit<'a> = WordsGuard<'a, N>;

    fn new(_words: usize) -> Self {
        const { assert!(N > 0, "a state needs at least one word: the time at which the key is idle") }
        std::array::from_fn(|_| AtomicU64::new(0))
    }

    #[inline]
    fn empty<'a>() -> StateCopy<[u64; N]>
    where
        Self: 'a,
    {
        StateCopy([0; N])
    }

    #[inline]
    fn read(&self, copy: &mut StateCopy<[u64; N]>) {
        *copy = StateCopy(std::array::from_fn(|word| self[word].load(Ordering::Acquire)));
    }

    #[inline]
    fn read_zero(&self, copy: &mut StateCopy<[u64; N]>) {
        *copy = StateCopy([0; N]);
    }

    #[inline]
    fn edit(&self) -> WordsGuard<'_, N> {
        // Relaxed: the caller has locked the set, which acquires what the writer before has stored.
        WordsGuard { words: self, state: std::array::from_fn(|word| self[word].load(Ordering::Relaxed)) }
    }

    #[inline]
    fn apply<R>(&self, _present: &mut StateCopy<[u64; N]>, next: [u64; N], read: impl FnOnce(&[u64; N]) -> R) -> R {
        let result = read(&next);
        for (cell, word) in self.iter().zip(next) {
            cell.store(word, Ordering::Release);
        }
        result
    }

    fn clear(&self) {
        for word in self {
            word.store(0, Ordering::Release);
        }
    }

    fn copy_from(&self, other: &Self) {
        for (to, from) in self.iter().zip(other) {
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    #[inline]
    fn idle_at(&self) -> u64 {
        self[0].load(Ordering::Acquire)
    }
}

#[allow(unreachable_pub, missing_debug_implementations, reason = "the hidden half of a sealed trait")]
pub struct WordsGuard<'a, const N: usize> {
    words: &'a [AtomicU64; N],
    state: [u64; N],
}

impl<const N: usize> Deref for WordsGuard<'_, N> {
    type Target = [u64; N];

    #[inline]
    fn deref(&self) -> &[u64; N] {
        &self.state
    }
}

impl<const N: usize> DerefMut for WordsGuard<'_, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u64; N] {
        &mut self.state
    }
}

impl<const N: usize> Drop for WordsGuard<'_, N> {
    #[inline]
    fn drop(&mut self) {
        for (atomic, word) in self.words.iter().zip(self.state) {
            atomic.store(word, Ordering::Release);
        }
    }
}
