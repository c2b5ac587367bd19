use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::algorithm::{Algorithm, LuaAlgorithm};
use crate::calendar::Calendar;
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, LazySnapshot};
use crate::error::Error;
use crate::store::inner::AlgorithmExt as _;

/// A [`LuaAlgorithm`] of any type. Its states are the numbers stored in Redis.
pub(crate) trait DynLuaAlgorithm: Send + Sync {
    fn supports_scheduling(&self) -> bool;

    /// Appends the parameters of the Lua implementation.
    fn params(&self, cost: u64, params: &mut Vec<u64>);

    /// The calendar whose instants replace the last parameters: see [`LuaAlgorithm::calendar`].
    fn calendar(&self) -> Option<Calendar>;

    /// Replays a decision on `numbers`: charges them after the delay `charged_after`, if the script did.
    ///
    /// Returns the numbers of the key after the decision, with the cost `held` on it.
    fn replay(
        &self,
        numbers: &mut Vec<u64>,
        now: Timestamp,
        options: AcquireOptions,
        charged_after: Option<Duration>,
        held: u64,
    ) -> LazySnapshot;

    /// Returns the numbers of a key whose state is too large to travel, from the three numbers in the reply.
    fn replay_view(&self, view: [u64; 3], now: Timestamp) -> LazySnapshot;

    /// The time after which a hold ends: see [`Algorithm::max_hold_duration`].
    fn max_hold_duration(&self) -> Option<Duration>;

    /// The run time of one decision in the script: see [`LuaAlgorithm::weight`].
    fn weight(&self) -> u16;

    /// Whether the script's fast path supports a decision with these options.
    fn uses_fast_path(&self, options: AcquireOptions) -> bool;
}

impl dyn DynLuaAlgorithm + '_ {
    /// Replays a charge.
    pub(crate) fn replay_charge(&self, numbers: &mut Vec<u64>, now: Timestamp, cost: u64) {
        let _ = self.replay(numbers, now, AcquireOptions::cost(cost), Some(Duration::ZERO), 0);
    }
}

impl<A: LuaAlgorithm> DynLuaAlgorithm for A {
    fn supports_scheduling(&self) -> bool {
        A::supports_scheduling(self)
    }

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        A::params(self, cost, params);
    }

    fn calendar(&self) -> Option<Calendar> {
        A::calendar(self)
    }

    fn replay(
        &self,
        numbers: &mut Vec<u64>,
        now: Timestamp,
        options: AcquireOptions,
        charged_after: Option<Duration>,
        held: u64,
    ) -> LazySnapshot {
        let mut state = self.decode_state(numbers);
        if let Some(delay) = charged_after {
            self.charge(&mut state, now, delay, options.cost);
            numbers.clear();
            self.encode_state(&state, numbers);
        }
        if held > 0 {
            self.peek_with_held(&state, now, options.into(), held).1
        } else {
            Algorithm::snapshot(self, &state, now)
        }
    }

    fn replay_view(&self, view: [u64; 3], now: Timestamp) -> LazySnapshot {
        self.snapshot_from_view(view, now)
    }

    fn max_hold_duration(&self) -> Option<Duration> {
        Algorithm::max_hold_duration(self).filter(|_| A::HELD_UNTIL_END)
    }

    fn weight(&self) -> u16 {
        A::weight(self)
    }

    fn uses_fast_path(&self, options: AcquireOptions) -> bool {
        A::uses_fast_path(self, options)
    }
}

/// Runs the algorithms of one operation. They may be the user's code.
///
/// A panic fails only this operation, and later ones of the batch on the same keys: their replayed state is lost.
pub(crate) fn catch_panic<T>(replay: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(replay)).unwrap_or_else(|_| Err(replay_panicked()))
}

pub(super) fn replay_panicked() -> Error {
    Error::unavailable(
        "reading the reply of Redis failed: the algorithm of a limit panicked, and the cost may have been charged; \
         correct the algorithm",
    )
}
