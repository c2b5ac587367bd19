//! States of algorithms.

mod counters;
mod hit_log;
mod windows;
mod words;

pub use self::counters::{Counters, CountersEdit};
pub use self::hit_log::{HitLog, HitLogEdit};
pub(crate) use self::hit_log::{KeptFor, Reach};
pub(crate) use self::windows::{KINDS, MAX_WINDOWS, OneWindow, WRITTEN_AT, WindowWords, Windows, further};
use crate::decision::LazySnapshot;

/// The state of one key: `[u64; N]` with `N` at least 1. Other states belong to the algorithms of this crate.
///
/// A state of zeros is the state of a never-seen key. The first word is the time at which the key is idle: from then on
/// the state equals the zero state.
///
/// The trait is sealed, because stores write states into files and servers.
pub trait State: Clone + Send + Sync + 'static + sealed::Sealed {
    /// The result of an allowed request: the next state itself, or for a state that is edited in place, the edit.
    type Next: Send;

    /// Makes this the next state.
    fn apply(&mut self, next: Self::Next);

    #[doc(hidden)]
    fn idle_at(&self) -> u64;

    /// Returns a state that takes nothing on the heap, for a slot without a key. [`clear`](Self::clear) makes it the zero
    /// state.
    #[doc(hidden)]
    fn empty() -> Self;

    /// Makes this the zero state, with `words` words if the type does not determine the number. Keeps allocations.
    #[doc(hidden)]
    #[inline]
    fn clear(&mut self, words: usize) {
        let _ = words;
        *self = Self::empty();
    }

    /// Returns the next state, unless it exists only after the edit.
    #[doc(hidden)]
    fn next_state(next: &Self::Next) -> Option<&Self>;

    /// Returns the snapshot of the next state, if the edit has one.
    #[doc(hidden)]
    #[inline]
    fn next_snapshot(next: &Self::Next) -> Option<LazySnapshot> {
        let _ = next;
        None
    }

    #[doc(hidden)]
    fn from_numbers(numbers: &[u64]) -> Self;

    #[doc(hidden)]
    fn to_numbers(&self, numbers: &mut Vec<u64>);

    /// Returns the state with these numbers, which [`to_stored`](Self::to_stored) has written. `None` if no state has such
    /// numbers.
    #[doc(hidden)]
    fn from_stored(numbers: &[u64]) -> Option<Self>;

    /// Appends all numbers of the state, for a store of bytes and for a file. The first number is the time at which the key
    /// is idle.
    #[doc(hidden)]
    fn to_stored(&self, numbers: &mut Vec<u64>) {
        self.to_numbers(numbers);
    }

    /// Gives a state that was read `words` words. Returns `false` if it does not fit.
    #[doc(hidden)]
    fn fit(&mut self, words: usize) -> bool {
        let _ = words;
        true
    }

    /// Returns the bytes on the heap.
    #[doc(hidden)]
    fn heap_bytes(&self) -> usize {
        0
    }
}

mod sealed {
    #[allow(unnameable_types, reason = "sealed")]
    pub trait Sealed {}
    impl<const N: usize> Sealed for [u64; N] {}
    impl Sealed for super::Counters {}
    impl Sealed for super::HitLog {}
    impl Sealed for super::Windows {}
}
