//! What the bucket's named fronts share: everything but their names and their documentation. The queue shares half of it.

/// What is the same of every [`Algorithm`](super::Algorithm) with a field of the kernel's type, in turn or not.
macro_rules! bucket_state {
    () => {
        type State = [u64; 4];

        const DECIDES_AT_ONCE: bool = true;

        #[inline(always)]
        fn charge(&self, state: &mut [u64; 4], now: Timestamp, delay: Duration, cost: u64) {
            self.kernel.charge(state, now, delay, cost);
        }

        #[inline(always)]
        fn new_at_once(&self) -> Option<[u64; 4]> {
            Some(self.kernel.new_state())
        }

        #[inline(always)]
        fn reading_at_once(&self, state: &[u64; 4], now: Timestamp) -> LazySnapshot {
            self.kernel.reading_at_once(state, now)
        }

        #[inline(always)]
        fn remaining_at_once(&self, charged: &[u64; 4], _now: Timestamp) -> u64 {
            self.kernel.remaining(charged)
        }

        #[inline(always)]
        fn snapshot(&self, state: &[u64; 4], now: Timestamp) -> LazySnapshot {
            self.kernel.snapshot(state, now)
        }

        fn carry_over_debt(&self, state: &mut [u64; 4], from: &[u64; 4], now: Timestamp) {
            self.kernel.carry_over_debt(state, from, now);
        }

        fn max_reset(&self) -> Duration {
            self.kernel.max_reset()
        }

        fn supports_scheduling(&self) -> bool {
            true
        }
    };
}

/// Implements a front: a type with a field of the kernel's type, its constructors and its [`Algorithm`](super::Algorithm).
macro_rules! bucket_front {
    ($front:ident) => {
        impl $front {
            /// `quota.limit()` in each period, with a burst of as many.
            ///
            /// # Panics
            ///
            /// If the quota can't be counted exactly: in lowest terms, the limit times the period in microseconds must
            /// be at most 2^53, and the limit below 2^32. In a `const` the compiler shows the panic; [`try_new`](Self::try_new) never panics.
            #[must_use]
            #[track_caller]
            pub const fn new(quota: Quota) -> Self {
                Self { kernel: Bucket::expect(Bucket::new(quota, quota.limit())) }
            }

            /// As [`new`](Self::new), never panicking.
            ///
            /// # Errors
            ///
            /// If the quota can't be counted exactly; the error names the nearest one that can.
            pub fn try_new(quota: Quota) -> Result<Self, Error> {
                match Bucket::new(quota, quota.limit()) {
                    Ok(kernel) => Ok(Self { kernel }),
                    Err(unfit) => Err(unfit.explain(quota)),
                }
            }

            /// Sets the burst: how much a key that was idle long enough may have at once.
            ///
            /// # Panics
            ///
            /// If `burst` is zero or over 2^53, or would take over 200 years to fill. In a `const` the compiler shows
            /// the panic; [`try_burst`](Self::try_burst) never panics.
            #[must_use]
            #[track_caller]
            pub const fn burst(self, burst: u64) -> Self {
                Self { kernel: Bucket::expect(Bucket::new(self.kernel.quota(), burst)) }
            }

            /// As [`burst`](Self::burst), never panicking.
            ///
            /// # Errors
            ///
            /// If `burst` is zero or over 2^53, or would take over 200 years to fill.
            pub fn try_burst(self, burst: u64) -> Result<Self, Error> {
                match Bucket::new(self.kernel.quota(), burst) {
                    Ok(kernel) => Ok(Self { kernel }),
                    Err(unfit) => Err(unfit.explain(self.kernel.quota())),
                }
            }

            /// Never more than `quota.limit()` in any window of one period: the largest burst that keeps to that, which
            /// is 1. Requests are then spaced evenly.
            ///
            /// A bucket's worst window holds up to `burst + limit - 1`; for the strict bound with bursts choose a
            /// sliding log or a strict sliding window.
            #[must_use]
            pub const fn strict(self) -> Self {
                self.burst(1)
            }

            /// The quota: what comes back, and how fast.
            #[must_use]
            pub const fn quota(&self) -> Quota {
                self.kernel.quota()
            }

            /// The burst: the most that can be had at once.
            #[must_use]
            pub const fn max_burst(&self) -> u64 {
                self.kernel.burst()
            }
        }

        impl Algorithm for $front {
            crate::algorithm::bucket::types::bucket_state!();

            #[inline(always)]
            fn peek(&self, state: &[u64; 4], now: Timestamp, ask: AcquireOptions) -> Verdict {
                self.kernel.peek(state, now, ask)
            }

            #[inline(always)]
            fn try_at_once(
                &self,
                state: &[u64; 4],
                now: Timestamp,
                ask: AcquireOptions,
            ) -> crate::algorithm::AtOnce<[u64; 4]> {
                self.kernel.try_at_once(state, now, ask)
            }
        }

        #[cfg(feature = "redis")]
        impl crate::algorithm::LuaAlgorithm for $front {
            const SCRIPT: crate::algorithm::LuaScript = crate::algorithm::bucket::SCRIPT;

            fn params(&self, cost: u64, params: &mut Vec<u64>) {
                self.kernel.params(false, cost, params);
            }

            fn uses_fast_path(&self, ask: AcquireOptions) -> bool {
                self.kernel.uses_fast_path(ask)
            }

            fn decode_state(&self, numbers: &[u64]) -> [u64; 4] {
                Bucket::decode_state(numbers)
            }

            fn encode_state(&self, state: &[u64; 4], numbers: &mut Vec<u64>) {
                Bucket::encode_state(state, numbers);
            }
        }

        impl fmt::Debug for $front {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($front))
                    .field("quota", &self.kernel.quota())
                    .field("burst", &self.kernel.burst())
                    .finish()
            }
        }
    };
}

pub(super) use bucket_front;
pub(in crate::algorithm) use bucket_state;
