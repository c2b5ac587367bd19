//! States, and how a slot of a shared table holds them.

mod blocks;
mod log;
mod words;

use std::ops::{Deref, DerefMut};

pub use self::blocks::Counters;
pub use self::log::{HitLog, HitLogEdit};

/// What a store remembers of a key: `[u64; N]` with `N` at least 1, or where that does not do, [`Counters`] or a [`HitLog`].
///
/// Zeros are a key never seen. The first word is the moment from which on the state is as good as zeros.
///
/// The trait is sealed: a state must be made of words that many threads can read while one of them writes.
pub trait State: Clone + Send + Sync + 'static + sealed::Sealed {
    /// The result of an allowed request: the next state itself, or for a [`HitLog`], which is edited in place, the
    /// [edit](HitLogEdit).
    type Next: Send;

    /// Makes this the next state.
    fn apply(&mut self, next: Self::Next);

    #[doc(hidden)]
    fn idle_at(&self) -> u64;

    /// Returns the next state, unless it exists only after the edit.
    #[doc(hidden)]
    fn preview(next: &Self::Next) -> Option<&Self>;

    #[doc(hidden)]
    type AtomicState: AtomicState<State = Self>;

    #[doc(hidden)]
    fn from_numbers(numbers: &[u64]) -> Self;

    #[doc(hidden)]
    fn to_numbers(&self, numbers: &mut Vec<u64>);
}

mod sealed {
    #[allow(unnameable_types, reason = "sealed")]
    pub trait Sealed {}
    impl<const N: usize> Sealed for [u64; N] {}
    impl Sealed for super::Counters {}
    impl Sealed for super::HitLog {}
}

/// A state where many threads can reach it.
///
/// The cell itself keeps nothing consistent; its owner's sequence lock does.
#[allow(unreachable_pub, reason = "the hidden half of a sealed trait")]
pub trait AtomicState: Send + Sync + 'static {
    type State: State;

    /// A cell in the zero state, for a state of so many words where their number is not part of its type.
    fn new(words: usize) -> Self;

    /// A copy, or a hold on the state. It may be torn, or another key's: what is consistent, the owner's lock tells afterwards.
    type Snapshot<'a>: Deref<Target = Self::State>
    where
        Self: 'a;

    fn snapshot(&self) -> Self::Snapshot<'_>;

    /// The zero state of a cell like this one.
    fn zero(&self) -> Self::Snapshot<'_>;

    /// The state to change, which is stored when this is dropped.
    type Edit<'a>: DerefMut<Target = Self::State>
    where
        Self: 'a;

    /// The state to change. Only under the owner's lock.
    fn edit(&self) -> Self::Edit<'_>;

    /// Stores the next state, and returns what `read` reads from it. Only under the owner's lock.
    fn apply<R>(&self, next: <Self::State as State>::Next, read: impl FnOnce(&Self::State) -> R) -> R;

    /// Back to the zero state. Only under the owner's lock.
    fn clear(&self);

    /// Takes over another cell's state. Only under the owners' locks.
    fn copy_from(&self, other: &Self);

    /// The first word. By itself it may be stale, but is never torn.
    fn fresh_at(&self) -> u64;

    /// The bytes that it takes on the heap.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// A snapshot that is a copy.
#[allow(unreachable_pub, missing_debug_implementations, reason = "the hidden half of a sealed trait")]
pub struct StateCopy<T>(T);

impl<T> Deref for StateCopy<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
