use super::{EvictionPolicy, WhenFull};

/// The eviction policy of tests: measures the usage of a key by the time at which it is idle.
pub(crate) struct ByIdleTime;

impl EvictionPolicy<[u64; 2]> for ByIdleTime {
    fn usage_rank(&self, &[idle_at, _]: &[u64; 2]) -> (u64, u64) {
        (0, idle_at)
    }

    fn carry_over(&self, state: &mut [u64; 2], from: &[u64; 2]) {
        state[0] = state[0].max(from[0]);
    }

    fn when_full(&self) -> WhenFull {
        WhenFull::Evict
    }
}
