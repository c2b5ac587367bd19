use std::sync::Arc;

use tokio::sync::oneshot;

use crate::decision::AcquireOptions;
use crate::store::redis::bound_limit::RowInfo;
use crate::store::redis::client::trade::Answer;
use crate::store::redis::holds::session::{Bound, Session, Update};
use crate::store::redis::script::replay::Twin;

/// Something to be done in Redis, on its way there.
pub(crate) struct Order {
    pub(crate) steps: Steps,
    /// The keys of all limits in one text, and where each ends. A limit that the steps do not concern has an empty one.
    pub(crate) keys: Vec<u8>,
    pub(crate) key_ends: Vec<usize>,
    /// For each limit the algorithm for this key, where that is not the same one for all. Empty if none is.
    pub(crate) twins: Vec<Option<Arc<dyn Twin>>>,
    /// How long the script works on one of its steps: the weights of all limits.
    pub(crate) weight: usize,
    pub(crate) reply: oneshot::Sender<Answer>,
}

pub(crate) enum Steps {
    Decide(AcquireOptions, Arc<Shape>),
    /// A decision that holds the cost, in sessions that are chosen when the order is sent.
    Hold(AcquireOptions, Arc<Shape>, Option<Bound>),
    /// Brings sessions up to date.
    Update(Vec<Update>),
    /// Other operations, one after the other.
    Operate(Vec<Arc<Shape>>),
}

/// What many orders have in common: see `driver.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) operation: Operation,
    /// Which limit is meant, counted from 1; 0 for all of them.
    pub(crate) limit: u16,
    pub(crate) first: u64,
    /// -1 where nothing is said.
    pub(crate) second: i64,
    /// What the parameters are for. Not sent.
    pub(crate) cost: u64,
    /// For each limit, or for the one that is meant, the kernel's parameters and whether it is a shadow; and what else the
    /// operation takes.
    pub(crate) params: Vec<u64>,
    /// Whether the short cut of the only limit takes it.
    pub(crate) uses_fast_path: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Operation {
    Acquisition = 0,
    Peek = 1,
    Hold = 2,
    Charge = 3,
    Set = 4,
    Block = 5,
    Reset = 6,
    Update = 7,
}

impl Order {
    /// The key of the limit with this index.
    pub(crate) fn key(&self, limit: usize) -> &[u8] {
        let start = if limit == 0 { 0 } else { self.key_ends[limit - 1] };
        &self.keys[start..self.key_ends[limit]]
    }

    /// Which key chooses the slot: all of an order are in one.
    pub(crate) fn any_key(&self) -> &[u8] {
        (0..self.key_ends.len()).map(|limit| self.key(limit)).find(|key| !key.is_empty()).unwrap_or_default()
    }

    /// How many steps it has at most.
    pub(crate) fn steps(&self) -> usize {
        match &self.steps {
            Steps::Decide(..) | Steps::Hold(..) => 1,
            Steps::Update(updates) => updates.len(),
            Steps::Operate(shapes) => shapes.len(),
        }
    }

    /// An order on the keys of some sessions, each of another limit, in the limits' order.
    pub(crate) fn on_sessions<'a>(
        sessions: impl Iterator<Item = &'a Arc<Session>>,
        rows: &[RowInfo],
        steps: Steps,
        reply: oneshot::Sender<Answer>,
    ) -> Self {
        let limits = rows.len();
        let (mut keys, mut key_ends, mut twins, mut weight) = (Vec::new(), Vec::with_capacity(limits), Vec::new(), 1);
        for session in sessions {
            // Its shape is not sent for each limit, so the longest counts.
            weight = weight.max(session.weight);
            key_ends.resize(session.limit, keys.len());
            keys.extend_from_slice(&session.key);
            key_ends.push(keys.len());
            if session.twin.is_some() {
                twins.resize(session.limit, None);
                twins.push(session.twin.clone());
            }
        }
        key_ends.resize(limits, keys.len());
        Self { steps, keys, key_ends, twins, weight, reply }
    }
}

/// What a double holds exactly.
pub(crate) const EXACT: u64 = 1 << 53;

#[allow(clippy::cast_precision_loss, reason = "at most 2^53")]
pub(crate) fn double(number: u64) -> f64 {
    number.min(EXACT) as f64
}
