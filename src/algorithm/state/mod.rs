//! States of algorithms, and their atomic forms in the table.

mod counters;
mod hit_log;
mod words;

use std::ops::{Deref, DerefMut};

pub use self::counters::{Counters, CountersEdit};
pub use self::hit_log::{HitLog, HitLogEdit};
pub(crate) use self::hit_log::{KeptFor, Reach};
use crate::decision::LazySnapshot;

/// The state of one key: `[u64; N]` with `N` at least 1, [`Counters`] or a [`HitLog`].
///
/// A state of zeros is that of a never-seen key. The first word is the time at which the key is idle: from then on
/// the state equals the zero state.
///
/// The trait is sealed, because threads read a state's words while another thread writes them.
pub trait State: Clone + Send + Sync + 'static + sealed::Sealed {
    /// The result of an allowed request: the next state itself, or for a state that is edited in place, the edit: a
    /// [`CountersEdit`] or a [`HitLogEdit`].
    type Next: Send;

    /// Makes this the next state.
    fn apply(&mut self, next: Self::Next);

    #[doc(hidden)]
    fn idle_at(&self) -> u64;

    /// Returns the next state, unless it exists only after the edit.
    #[doc(hidden)]
    fn next_state(next: &Self::Next) -> Option<&Self>;

    /// Returns the snapshot of the next state, if the edit has one.
    #[doc(hidden)]
    fn next_snapshot(next: &Self::Next) -> Option<LazySnapshot>;

    #[doc(hidden)]
    type AtomicState: AtomicState<State = Self>;

    #[doc(hidden)]
    fn from_numbers(numbers: &[u64]) -> Self;

    #[doc(hidden)]
    fn to_numbers(&self, numbers: &mut Vec<u64>);

    /// Returns the state with these numbers, which [`to_stored`](Self::to_stored) has written. `None` if no state has such
    /// numbers.
    #[doc(hidden)]
    fn from_stored(numbers: &[u64]) -> Option<Self>;

    /// Appends all numbers of the state, for a store of bytes and for a file. The first number is the time at which the key
    /// is idle. Of another thread's incomplete change any numbers.
    #[doc(hidden)]
    fn to_stored(&self, numbers: &mut Vec<u64>) {
        self.to_numbers(numbers);
    }

    /// Gives a state that was read the number of words of `zero`. Returns `false` if it does not fit.
    #[doc(hidden)]
    fn fit(&mut self, zero: &Self) -> bool {
        let _ = zero;
        true
    }
}

mod sealed {
    #[allow(unnameable_types, reason = "sealed")]
    pub trait Sealed {}
    impl<const N: usize> Sealed for [u64; N] {}
    impl Sealed for super::Counters {}
    impl Sealed for super::HitLog {}
}

/// A state in the table, which many threads access.
///
/// # Consistency
///
/// The sequence lock of the set that contains the state protects it, not this trait. A reader takes a snapshot and
/// then validates the set's version; a snapshot whose version changed may be torn, and must be discarded. A writer
/// locks the set first. Loads acquire and stores release: a reader that sees one word of a writer then also sees that
/// writer's lock.
#[allow(unreachable_pub, reason = "the hidden half of a sealed trait")]
pub trait AtomicState: Send + Sync + 'static {
    type State: State;

    /// Creates the zero state. `words` counts only if the type does not determine the number of words.
    fn new(words: usize) -> Self;

    /// A copy of the state, or a lock guard on it.
    ///
    /// The caller declares it, and passes a reference down to the table: a move of a copy of [`Counters`] would take
    /// longer than all else of a decision (row "sliding window" of docs/performance.md).
    type Snapshot<'a>: Deref<Target = Self::State>
    where
        Self: 'a;

    /// Returns a snapshot that nothing was read into.
    fn empty<'a>() -> Self::Snapshot<'a>
    where
        Self: 'a;

    /// Reads the state. The result may be torn, or belong to another key, until the caller validates the set's version.
    /// A snapshot that is a lock guard must be dropped before the next reading.
    fn read<'a>(&'a self, snapshot: &mut Self::Snapshot<'a>);

    /// Makes the snapshot the zero state with this state's number of words.
    fn read_zero<'a>(&'a self, snapshot: &mut Self::Snapshot<'a>);

    /// Reads the state, and returns the snapshot.
    fn snapshot(&self) -> Self::Snapshot<'_> {
        let mut snapshot = Self::empty();
        self.read(&mut snapshot);
        snapshot
    }

    /// A guard that stores the changed state when it is dropped.
    type Edit<'a>: DerefMut<Target = Self::State>
    where
        Self: 'a;

    /// Edits the state. The caller must have locked the set.
    fn edit(&self) -> Self::Edit<'_>;

    /// Stores the next state, and returns what `read` reads from it. The caller must have locked the set, in which
    /// nothing has changed since `present` was read.
    fn apply<'a, R>(
        &'a self,
        present: &mut Self::Snapshot<'a>,
        next: <Self::State as State>::Next,
        read: impl FnOnce(&Self::State) -> R,
    ) -> R;

    /// Sets the zero state. The caller must have locked the set.
    fn clear(&self);

    /// Takes over another state, which may be cleared. The caller must have locked both sets.
    fn copy_from(&self, other: &Self);

    /// Returns the first word, the time at which the key is idle. It may be stale, and is never torn.
    fn idle_at(&self) -> u64;

    /// Returns the bytes on the heap.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// A snapshot that is a copy of the state.
#[allow(unreachable_pub, missing_debug_implementations, reason = "the hidden half of a sealed trait")]
pub struct StateCopy<T>(T);

impl<T> Deref for StateCopy<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
