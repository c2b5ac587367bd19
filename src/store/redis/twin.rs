use std::time::Duration;

use super::order::{Operation, Shape};
use crate::algorithm::Scripted;
use crate::clock::Timestamp;
use crate::decision::{Ask, Reading};

/// A scripted algorithm of any type, with its states as the numbers that lie in Redis.
pub(super) trait Twin: Send + Sync {
    fn promises_turns(&self) -> bool;
    fn params(&self, cost: u64, params: &mut Vec<u64>);

    /// How a key with this state stands, after it was charged if it was, and until when that charge counts.
    ///
    /// Leaves in `numbers` the state after it.
    fn stand(&self, numbers: &mut Vec<u64>, now: Timestamp, charge: Option<(Duration, u64)>) -> (Reading, Timestamp);

    /// What another operation makes of the state.
    fn operate(&self, numbers: &mut Vec<u64>, now: Timestamp, shape: &Shape);

    /// How a key stands, where a decision brings what its figures are made of.
    fn stand_by_view(&self, view: [u64; 3], now: Timestamp) -> (Reading, Timestamp);

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

    fn stand(&self, numbers: &mut Vec<u64>, now: Timestamp, charge: Option<(Duration, u64)>) -> (Reading, Timestamp) {
        let mut state = self.state_of(numbers);
        if let Some((delay, cost)) = charge {
            self.commit(&mut state, now, delay, cost);
            numbers.clear();
            self.numbers_of(&state, numbers);
        }
        let until = Timestamp::from_micros(numbers.first().copied().unwrap_or(0));
        (self.reading(&state, now), until)
    }

    fn operate(&self, numbers: &mut Vec<u64>, now: Timestamp, shape: &Shape) {
        let is_new = matches!(shape.operation, Operation::Set | Operation::Reset);
        let mut state = self.state_of(if is_new { &[] } else { numbers });
        match shape.operation {
            Operation::GiveBack => {
                if let Some(charge) = shape.charge {
                    self.give_back(&mut state, now, charge, shape.cost);
                }
            }
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

    fn stand_by_view(&self, view: [u64; 3], now: Timestamp) -> (Reading, Timestamp) {
        self.reading_of(view, now)
    }

    fn is_short(&self, ask: Ask) -> bool {
        A::is_short(self, ask)
    }
}
