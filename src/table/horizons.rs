use crate::sync::{AtomicU64, Ordering};

/// The horizons: for each group of sets, the latest time at which a dropped state became idle.
///
/// One horizon for each set would take a sixteenth of the table. A thread that reads a horizon that another set has
/// raised decides later than necessary, but never later than the clock of some thread.
pub(super) struct Horizons(Box<[AtomicU64]>);

impl Horizons {
    /// The number of sets that share a horizon. So the horizons fit in a processor's cache, and threads seldom write to
    /// the same one.
    const SETS: usize = 64;

    pub(super) fn new(sets: usize) -> Self {
        Self((0..sets.div_ceil(Self::SETS)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    #[inline]
    pub(super) fn of(&self, set: usize) -> u64 {
        self.0[set / Self::SETS].load(Ordering::Acquire)
    }

    /// Raises the horizon. Several threads may raise it at the same time.
    #[inline]
    pub(super) fn raise(&self, set: usize, dropped: u64) {
        let horizon = &self.0[set / Self::SETS];
        if dropped > horizon.load(Ordering::Relaxed) {
            horizon.fetch_max(dropped, Ordering::AcqRel);
        }
    }
}
