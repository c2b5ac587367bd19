use super::{Cell, Copied, State};
use crate::sync::{AtomicU64, Ordering};

impl<const N: usize> State for [u64; N] {
    type Cell = [AtomicU64; N];
}

// Loads acquire and stores release, so that a reader who sees any word of a writer also sees that writer's lock, and
// knows its copy to be torn. On x86 both are plain moves.
impl<const N: usize> Cell for [AtomicU64; N] {
    type State = [u64; N];
    type Snapshot<'a> = Copied<[u64; N]>;

    fn new(_words: usize) -> Self {
        const { assert!(N > 0, "a state needs at least one word: the moment from which on it is as good as new") }
        std::array::from_fn(|_| AtomicU64::new(0))
    }

    #[inline(always)]
    fn snapshot(&self) -> Copied<[u64; N]> {
        Copied(std::array::from_fn(|word| self[word].load(Ordering::Acquire)))
    }

    #[inline(always)]
    fn zero(&self) -> Copied<[u64; N]> {
        Copied([0; N])
    }

    #[inline(always)]
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

    #[inline(always)]
    fn fresh_at(&self) -> u64 {
        self[0].load(Ordering::Acquire)
    }
}
