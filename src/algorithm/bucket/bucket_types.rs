//! Everything but the names and the documentation of the bucket types. The leaky queue shares a part.

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

/// Implements a bucket type: its constructors, its accessors and [`Algorithm`](super::Algorithm).
macro_rules! impl_bucket {
    ($bucket:ident) => {
        impl $bucket {
            /// Creates a bucket that refills `quota.limit()` in each period, with a burst of the same size.
            ///
            /// # Panics
            ///
            /// Panics if the quota cannot be represented exactly: in lowest terms, the limit times the period in
            /// microseconds must be at most 2^53 and the limit below 2^32. In a `const` the compiler reports the panic.
            /// [`try_new`](Self::try_new) never panics.
            #[must_use]
            #[track_caller]
            pub const fn new(quota: Quota) -> Self {
                Self { kernel: Bucket::unwrap_or_panic(Bucket::new(quota, quota.limit())) }
            }

            /// Creates the same bucket as [`new`](Self::new), and never panics.
            ///
            /// # Errors
            ///
            /// Returns an error if the quota cannot be represented exactly. The error contains the nearest valid quota.
            pub fn try_new(quota: Quota) -> Result<Self, Error> {
                match Bucket::new(quota, quota.limit()) {
                    Ok(kernel) => Ok(Self { kernel }),
                    Err(error) => Err(error.into_error(quota)),
                }
            }

            /// Sets the burst: the maximum that an idle key can take at once. With a quota of zero the burst is zero.
            ///
            /// # Panics
            ///
            /// Panics if `burst` is zero or over 2^53, or would take over 200 years to fill. In a `const` the compiler
            /// reports the panic. [`try_burst`](Self::try_burst) never panics.
            #[must_use]
            #[track_caller]
            pub const fn burst(self, burst: u64) -> Self {
                Self { kernel: Bucket::unwrap_or_panic(Bucket::new(self.kernel.quota(), burst)) }
            }

            /// Sets the same burst as [`burst`](Self::burst), and never panics.
            ///
            /// # Errors
            ///
            /// Returns an error if `burst` is zero or over 2^53, or would take over 200 years to fill.
            pub fn try_burst(self, burst: u64) -> Result<Self, Error> {
                match Bucket::new(self.kernel.quota(), burst) {
                    Ok(kernel) => Ok(Self { kernel }),
                    Err(error) => Err(error.into_error(self.kernel.quota())),
                }
            }

            /// Sets the burst to 1, so that no window of one period admits more than `quota.limit()`. Requests are then
            /// spaced evenly.
            ///
            /// A bucket admits up to `burst + limit - 1` in a window of one period. For the strict bound with bursts,
            /// choose a sliding log or a strict sliding window.
            #[must_use]
            pub const fn strict(self) -> Self {
                self.burst(1)
            }

            /// Returns the quota.
            #[must_use]
            pub const fn quota(&self) -> Quota {
                self.kernel.quota()
            }

            /// Returns the burst.
            #[must_use]
            pub const fn max_burst(&self) -> u64 {
                self.kernel.burst()
            }
        }

        impl Algorithm for $bucket {
            crate::algorithm::bucket::bucket_types::bucket_algorithm!();

            #[inline]
            fn decide(
                &self,
                state: &[u64; 4],
                now: Timestamp,
                options: crate::algorithm::ChargeOptions,
            ) -> crate::algorithm::Step<[u64; 4]> {
                self.kernel.decide(state, now, options, false)
            }

            fn share_capacity(&self) -> Option<crate::algorithm::ShareCapacity> {
                let quota = self.kernel.quota();
                Some(crate::algorithm::ShareCapacity {
                    family: crate::algorithm::ShareFamily::Bucket,
                    limit: quota.limit(),
                    period: quota.period_micros(),
                    max: self.kernel.burst(),
                })
            }

            // Row "hot key" of benches/figures.md: see `Bucket::decide_in_line`.
            #[inline(always)]
            fn decide_in_line(
                &self,
                state: &[u64; 4],
                now: Timestamp,
                options: crate::algorithm::ChargeOptions,
                _: crate::algorithm::InLine,
            ) -> Option<crate::algorithm::Step<[u64; 4]>> {
                self.kernel.decide_in_line(state, now, options, false)
            }
        }

        #[cfg(feature = "redis")]
        impl crate::algorithm::LuaAlgorithm for $bucket {
            const SCRIPT: crate::algorithm::LuaScript = crate::algorithm::bucket::SCRIPT;

            fn params(&self, cost: u64, params: &mut Vec<u64>) {
                self.kernel.params(false, cost, params);
            }

            fn uses_fast_path(&self, options: AcquireOptions) -> bool {
                self.kernel.uses_fast_path(options)
            }

            fn decode_state(&self, numbers: &[u64]) -> [u64; 4] {
                Bucket::decode_state(numbers)
            }

            fn encode_state(&self, state: &[u64; 4], numbers: &mut Vec<u64>) {
                Bucket::encode_state(state, numbers);
            }
        }

        impl fmt::Debug for $bucket {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($bucket))
                    .field("quota", &self.kernel.quota())
                    .field("burst", &self.kernel.burst())
                    .finish()
            }
        }
    };
}

pub(in crate::algorithm) use bucket_algorithm;
pub(super) use impl_bucket;
