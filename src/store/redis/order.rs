use std::sync::Arc;

use tokio::sync::oneshot;

use super::trade::Answer;
use super::twin::Twin;
use crate::algorithm::Charge;
use crate::decision::Ask;

/// Something to be done in Redis, on its way there.
pub(super) struct Order {
    pub(super) steps: Steps,
    /// The keys of all limits in one text, and where each ends.
    pub(super) keys: Vec<u8>,
    pub(super) key_ends: Vec<usize>,
    /// For each limit the algorithm for this key, where that is not the same one for all. Empty if none is.
    pub(super) twins: Vec<Option<Arc<dyn Twin>>>,
    pub(super) reply: oneshot::Sender<Answer>,
}

pub(super) enum Steps {
    Decide(Ask, Arc<Shape>),
    /// Other operations, one after the other.
    Operate(Vec<Arc<Shape>>),
}

/// What many orders have in common: see `driver.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) operation: Operation,
    /// Which limit is meant, counted from 1; 0 for all of them.
    pub(super) limit: u16,
    pub(super) first: u64,
    /// -1 where nothing is said.
    pub(super) second: i64,
    /// What the parameters are for. Not sent.
    pub(super) cost: u64,
    /// What is given back of which charge. Not sent.
    pub(super) charge: Option<Charge>,
    /// For each limit, or for the one that is meant, the kernel's parameters and whether it is a shadow; and what else the
    /// operation takes.
    pub(super) params: Vec<u64>,
    /// Whether the short cut of the only limit takes it.
    pub(super) is_short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Operation {
    Acquire = 0,
    Peek = 1,
    GiveBack = 2,
    Charge = 3,
    Set = 4,
    Block = 5,
    Reset = 6,
}

impl Order {
    /// The key of the limit with this index.
    pub(super) fn key(&self, limit: usize) -> &[u8] {
        let start = if limit == 0 { 0 } else { self.key_ends[limit - 1] };
        &self.keys[start..self.key_ends[limit]]
    }

    pub(super) fn shapes(&self) -> &[Arc<Shape>] {
        match &self.steps {
            Steps::Decide(_, shape) => std::slice::from_ref(shape),
            Steps::Operate(shapes) => shapes,
        }
    }
}

/// What a double holds exactly.
pub(super) const EXACT: u64 = 1 << 53;

#[allow(clippy::cast_precision_loss, reason = "at most 2^53")]
pub(super) fn double(number: u64) -> f64 {
    number.min(EXACT) as f64
}
