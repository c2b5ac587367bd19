//! Peeks and charges by an algorithm's `decide`, as stores do.

use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, State, Step};
use tower_ratelimit::{AcquireOptions, Timestamp, Verdict};

pub(crate) trait AlgorithmExt: Algorithm {
    /// Returns the verdict on a request without charging it.
    fn peek(&self, state: &Self::State, now: Timestamp, options: AcquireOptions) -> Verdict {
        self.decide(state, now, options.into()).verdict()
    }

    /// Charges `cost` unconditionally, for a request that starts after `delay`.
    fn charge(&self, state: &mut Self::State, now: Timestamp, delay: Duration, cost: u64) {
        if cost == 0 {
            return;
        }
        if let Step::Allow { next, .. } = self.decide(state, now, ChargeOptions::forced(cost, delay)) {
            state.apply(next);
        }
    }
}

impl<A: Algorithm> AlgorithmExt for A {}
