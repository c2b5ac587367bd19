//! What the bucket and the leaky queue have in common.

/// The methods of [`Algorithm`](super::Algorithm) that are the same for every type with a `kernel` field, queued or
/// not.
macro_rules! bucket_algorithm {
    () => {
        type State = [u64; 4];

        const STATE_NAME: &'static str = "bucket1";

        // Part of each decision: row "hot key" of benches/figures.md.
        #[inline(always)]
        fn snapshot(&self, state: &[u64; 4], now: Timestamp) -> LazySnapshot {
            self.kernel.snapshot(state, now)
        }

        // The rate is this quota's, so the function of the snapshot is known.
        #[inline]
        fn snapshot_of_next(&self, next: &[u64; 4], now: Timestamp, _: InLine) -> Option<LazySnapshot> {
            Some(self.kernel.snapshot_of_own(next, now))
        }

        fn carry_over_debt(&self, state: &mut [u64; 4], from: &[u64; 4], now: Timestamp) {
            self.kernel.carry_over_debt(state, from, now);
        }

        #[inline]
        fn max_reset(&self) -> Duration {
            self.kernel.max_reset()
        }

        #[inline]
        fn supports_scheduling(&self) -> bool {
            true
        }
    };
}

pub(in crate::algorithm) use bucket_algorithm;
