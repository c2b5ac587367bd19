use std::time::Duration;

use super::TestKey;
use crate::quota::Quota;

/// Pseudo-random numbers, equal in each run.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(super) fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        let index = self.below(u64::try_from(values.len()).unwrap_or(1));
        values[usize::try_from(index).unwrap_or(0)]
    }

    pub(super) fn quota(&mut self) -> Quota {
        Quota::new(1 + self.below(7), Duration::from_millis(1_000 + 1_000 * self.below(9)))
    }

    pub(super) fn key(&mut self) -> TestKey {
        TestKey { user: self.below(2), team: self.below(2), tier: usize::from(self.below(6) == 0) }
    }
}
