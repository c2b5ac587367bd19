//! States, and how a slot of a shared table holds them.

use crate::sync::{AtomicU64, Ordering};

/// What a store remembers of a key: `[u64; N]`, with `N` at least 1.
///
/// Zeros are a key never seen. The first word is the moment from which on the state is as good as zeros.
///
/// The trait is sealed: a state must be made of words that many threads can read while one of them writes.
pub trait State: Sized + Send + Sync + 'static + sealed::Sealed {
    #[doc(hidden)]
    type Cell: Cell<State = Self>;
}

mod sealed {
    #[allow(unnameable_types, reason = "sealed")]
    pub trait Sealed {}
    impl<const N: usize> Sealed for [u64; N] {}
}

/// A state where many threads can reach it.
///
/// The cell itself keeps nothing consistent; its owner's sequence lock does.
#[allow(unreachable_pub, reason = "the hidden half of a sealed trait")]
pub trait Cell: Send + Sync + 'static {
    type State;

    /// A cell in the zero state.
    fn new() -> Self;

    /// Runs `f` on a copy, unless `valid` says after copying that the copy may be torn.
    fn read<R>(&self, valid: impl FnOnce() -> bool, f: impl FnOnce(&Self::State) -> R) -> Option<R>;

    /// Runs `f` on the zero state.
    fn read_zero<R>(f: impl FnOnce(&Self::State) -> R) -> R;

    /// Changes the state. Only under the owner's lock.
    fn write<R>(&self, f: impl FnOnce(&mut Self::State) -> R) -> R;

    /// Back to the zero state. Only under the owner's lock.
    fn clear(&self);

    /// Takes over another cell's state. Only under the owners' locks.
    fn copy_from(&self, other: &Self);

    /// The first word. By itself it may be stale, but is never torn.
    fn fresh_at(&self) -> u64;
}

impl<const N: usize> State for [u64; N] {
    type Cell = [AtomicU64; N];
}

// Loads acquire and stores release, so that a reader who sees any word of a writer also sees that writer's lock, and
// knows its copy to be torn. On x86 both are plain moves.
impl<const N: usize> Cell for [AtomicU64; N] {
    type State = [u64; N];

    fn new() -> Self {
        const { assert!(N > 0, "a state needs at least one word: the moment from which on it is as good as new") }
        std::array::from_fn(|_| AtomicU64::new(0))
    }

    #[inline]
    fn read<R>(&self, valid: impl FnOnce() -> bool, f: impl FnOnce(&[u64; N]) -> R) -> Option<R> {
        let copy: [u64; N] = std::array::from_fn(|word| self[word].load(Ordering::Acquire));
        valid().then(|| f(&copy))
    }

    #[inline]
    fn read_zero<R>(f: impl FnOnce(&[u64; N]) -> R) -> R {
        f(&[0; N])
    }

    #[inline]
    fn write<R>(&self, f: impl FnOnce(&mut [u64; N]) -> R) -> R {
        let mut state = std::array::from_fn(|word| self[word].load(Ordering::Relaxed));
        let result = f(&mut state);
        for (cell, word) in self.iter().zip(state) {
            cell.store(word, Ordering::Release);
        }
        result
    }

    fn clear(&self) {
        for cell in self {
            cell.store(0, Ordering::Release);
        }
    }

    fn copy_from(&self, other: &Self) {
        for (to, from) in self.iter().zip(other) {
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    #[inline]
    fn fresh_at(&self) -> u64 {
        self[0].load(Ordering::Acquire)
    }
}
