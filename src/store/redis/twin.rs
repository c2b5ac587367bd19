use std::time::Duration;

use super::order::{Operation, Shape};
use crate::algorithm::Scripted;
use crate::clock::Timestamp;
use crate::decision::{Ask, Reading};

/// A scripted algorithm of any type, with its states as the numbers that lie in Redis.
pub(super) trait Twin: Send + Sync {
    fn promises_turns(&self) -> bool;
    fn params(&self, cost: u64, params: &mut Vec<u64>);

    /// How a key with this state stands with these costs held on it, after it was charged if it was.
    ///
    /// Leaves in `numbers` the state after it.
    fn stand(
        &self,
        numbers: &mut Vec<u64>,
        now: Timestamp,
        ask: Ask,
        charged_after: Option<Duration>,
        held: u64,
    ) -> Reading;

    /// Charges a cost.
    fn charge(&self, numbers: &mut Vec<u64>, now: Timestamp, cost: u64);

    /// What another operation makes of the state.
    fn operate(&self, numbers: &mut Vec<u64>, now: Timestamp, shape: &Shape);

    /// How a key stands, where a decision brings what its figures are made of.
    fn stand_by_view(&self, view: [u64; 3], now: Timestamp) -> Reading;

    /// How long the script works on one decision: see [`Scripted::weight`].
    fn weight(&self) -> u16;

    /// Whether the kernel's short cut takes an ask like this.
    fn is_short(&self, ask: Ask) -> bool;
}

impl<A: Scripted> Twin for A {
    fn promises_turns(&self) -> bool {
        A::promises_turns(self)
    }

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        A::params(self, cost, params);
    }

    fn stand(
        &self,
        numbers: &mut Vec<u64>,
        now: Timestamp,
        ask: Ask,
        charged_after: Option<Duration>,
        held: u64,
    ) -> Reading {
        let mut state = self.state_of(numbers);
        if let Some(delay) = charged_after {
            self.commit(&mut state, now, delay, ask.cost);
            numbers.clear();
            self.numbers_of(&state, numbers);
        }
        if held > 0 { self.peek_with_held(&state, now, ask, held).1 } else { self.reading(&state, now) }
    }

    fn charge(&self, numbers: &mut Vec<u64>, now: Timestamp, cost: u64) {
        let mut state = self.state_of(numbers);
        self.commit(&mut state, now, Duration::ZERO, cost);
        numbers.clear();
        self.numbers_of(&state, numbers);
    }

    fn operate(&self, numbers: &mut Vec<u64>, now: Timestamp, shape: &Shape) {
        let is_new = matches!(shape.operation, Operation::Set | Operation::Reset);
        let mut state = self.state_of(if is_new { &[] } else { numbers });
        match shape.operation {
            Operation::Charge | Operation::Set if shape.cost > 0 => {
                self.commit(&mut state, now, Duration::ZERO, shape.cost);
            }
            _ if is_new => {}
            // It changes no figures.
            _ => return,
        }
        numbers.clear();
        self.numbers_of(&state, numbers);
    }

    fn stand_by_view(&self, view: [u64; 3], now: Timestamp) -> Reading {
        self.reading_of(view, now)
    }

    fn weight(&self) -> u16 {
        A::weight(self)
    }

    fn is_short(&self, ask: Ask) -> bool {
        A::is_short(self, ask)
    }
}
