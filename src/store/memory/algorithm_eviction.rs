use crate::algorithm::Algorithm;
use crate::clock::Timestamp;
use crate::store::inner::{micros_floor, table::EvictionPolicy};
use crate::table::WhenFull;

/// The eviction policy of a limit: the algorithm determines the usage.
pub(super) struct AlgorithmEviction<'a, A> {
    pub(super) algorithm: &'a A,
    pub(super) now: Timestamp,
    pub(super) when_full: WhenFull,
}

impl<A: Algorithm> EvictionPolicy<A::State> for AlgorithmEviction<'_, A> {
    fn usage_rank(&self, state: &A::State) -> (u64, u64) {
        let figures = self.algorithm.snapshot(state, self.now).compute();
        (figures.limit.saturating_sub(figures.remaining), micros_floor(figures.reset))
    }

    fn carry_over(&self, state: &mut A::State, from: &A::State) {
        self.algorithm.carry_over_debt(state, from, self.now);
    }

    fn when_full(&self) -> WhenFull {
        self.when_full
    }
}
