use std::time::Duration;

use crate::algorithm::{Algorithm, LuaAlgorithm};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, LazySnapshot};
use crate::store::redis::client::operation::{Operation, Shape};

/// A scripted algorithm of any type, with its states as the numbers that lie in Redis.
pub(crate) trait Twin: Send + Sync {
    fn supports_scheduling(&self) -> bool;
    fn params(&self, cost: u64, params: &mut Vec<u64>);

    /// How a key with this state stands with these costs held on it, after it was charged if it was.
    ///
    /// Leaves in `numbers` the state after it.
    fn stand(
        &self,
        numbers: &mut Vec<u64>,
        now: Timestamp,
        ask: AcquireOptions,
        charged_after: Option<Duration>,
        held: u64,
    ) -> LazySnapshot;

    /// Charges a cost.
    fn charge(&self, numbers: &mut Vec<u64>, now: Timestamp, cost: u64);

    /// What another operation makes of the state.
    fn operate(&self, numbers: &mut Vec<u64>, now: Timestamp, shape: &Shape);

    /// How a key stands, where a decision brings what its figures are made of.
    fn stand_by_view(&self, view: [u64; 3], now: Timestamp) -> LazySnapshot;

    /// How long the script works on one decision: see [`LuaAlgorithm::weight`].
    fn weight(&self) -> u16;

    /// Whether the kernel's short cut takes an ask like this.
    fn uses_fast_path(&self, ask: AcquireOptions) -> bool;
}

impl<A: LuaAlgorithm> Twin for A {
    fn supports_scheduling(&self) -> bool {
        A::supports_scheduling(self)
    }

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        A::params(self, cost, params);
    }

    fn stand(
        &self,
        numbers: &mut Vec<u64>,
        now: Timestamp,
        ask: AcquireOptions,
        charged_after: Option<Duration>,
        held: u64,
    ) -> LazySnapshot {
        let mut state = self.decode_state(numbers);
        if let Some(delay) = charged_after {
            Algorithm::charge(self, &mut state, now, delay, ask.cost);
            numbers.clear();
            self.encode_state(&state, numbers);
        }
        if held > 0 { self.peek_with_held(&state, now, ask, held).1 } else { Algorithm::snapshot(self, &state, now) }
    }

    fn charge(&self, numbers: &mut Vec<u64>, now: Timestamp, cost: u64) {
        let mut state = self.decode_state(numbers);
        Algorithm::charge(self, &mut state, now, Duration::ZERO, cost);
        numbers.clear();
        self.encode_state(&state, numbers);
    }

    fn operate(&self, numbers: &mut Vec<u64>, now: Timestamp, shape: &Shape) {
        let is_new = matches!(shape.operation, Operation::Set | Operation::Reset);
        let mut state = self.decode_state(if is_new { &[] } else { numbers });
        match shape.operation {
            Operation::Charge | Operation::Set if shape.cost > 0 => {
                Algorithm::charge(self, &mut state, now, Duration::ZERO, shape.cost);
            }
            _ if is_new => {}
            // It changes no figures.
            _ => return,
        }
        numbers.clear();
        self.encode_state(&state, numbers);
    }

    fn stand_by_view(&self, view: [u64; 3], now: Timestamp) -> LazySnapshot {
        self.snapshot_from_view(view, now)
    }

    fn weight(&self) -> u16 {
        A::weight(self)
    }

    fn uses_fast_path(&self, ask: AcquireOptions) -> bool {
        A::uses_fast_path(self, ask)
    }
}
