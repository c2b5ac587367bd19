use crate::sync::{AtomicU64, Ordering};

/// The latest moments at which states that were dropped became as good as new, one for each few sets: by themselves they would
/// take a sixteenth of the table.
///
/// Who reads one that another set has raised decides later than it had to, but no later than somebody's clock has read.
pub(super) struct Horizons(Box<[AtomicU64]>);

impl Horizons {
    /// How many sets share one. There are few enough for a processor's cache, and enough of them that threads seldom meet.
    const SETS: usize = 64;

    pub(super) fn new(sets: usize) -> Self {
        Self((0..sets.div_ceil(Self::SETS)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    #[inline(always)]
    pub(super) fn of(&self, set: usize) -> u64 {
        self.0[set / Self::SETS].load(Ordering::Acquire)
    }

    /// Under the set's lock. Others who share the horizon may hold theirs.
    #[inline(always)]
    pub(super) fn raise(&self, set: usize, dropped: u64) {
        let horizon = &self.0[set / Self::SETS];
        if dropped > horizon.load(Ordering::Relaxed) {
            horizon.fetch_max(dropped, Ordering::AcqRel);
        }
    }
}
