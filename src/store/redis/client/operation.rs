use std::sync::Arc;

use redis::Cmd;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::completion::OperationResult;
use super::pending_decision::IdOperation;
use crate::decision::AcquireOptions;
use crate::error::Error;
use crate::store::redis::cluster::cluster_slot;
use crate::store::redis::connect::Failure;
use crate::store::redis::holds::{HoldRegistry, PendingHold, SessionUpdate};
use crate::store::redis::lease::LeaseRenewal;
use crate::store::redis::script::{EntryTarget, LimitSet, OperationTemplate, OwnAlgorithm};

/// The limits and keys of an operation.
#[derive(Clone)]
pub(crate) struct OperationTarget {
    /// The limits that the keys and templates belong to. All operations of a batch have the same.
    pub(crate) limits: Arc<LimitSet>,
    /// The keys of all limits, concatenated. The key of a limit without part in the operation is empty.
    pub(crate) keys: Vec<u8>,
    /// For each limit the end of its key in `keys`.
    pub(crate) key_offsets: Vec<usize>,
    /// For each limit the algorithm, if the key chooses it. Empty if no limit's algorithm depends on the key.
    pub(crate) algorithms: Vec<OwnAlgorithm>,
    /// The run time of one step in the script: the sum of the limits' weights.
    pub(crate) weight: usize,
}

/// An operation from its queueing to its reply.
pub(crate) struct QueuedOperation {
    pub(crate) kind: OperationKind,
    pub(crate) target: OperationTarget,
    pub(crate) id: Option<Box<IdOperation>>,
    /// The caller's deadline, if the operation may fail for load: a decision or a hold. `None` for all others.
    pub(crate) answer_by: Option<Instant>,
    /// The operation is asked once more: the reply to the first call said that nothing was charged.
    pub(crate) is_second: bool,
    pub(crate) reply: oneshot::Sender<OperationResult>,
}

pub(crate) enum OperationKind {
    /// A decision that charges, a peek, or a hold with an id.
    Decide(AcquireOptions, Arc<OperationTemplate>),
    /// A decision that holds the cost. The sessions are chosen when the operation is sent.
    Hold(AcquireOptions, Arc<OperationTemplate>, Option<PendingHold>),
    /// The settlement of a hold by its id, or the record of what a request was charged by its settlement.
    Settle(Arc<OperationTemplate>),
    Update(Box<SessionUpdate>),
    /// The report of a lease.
    Lease(Box<LeaseRenewal>),
    /// Changes of one limit's state each: charge, set, block, reset.
    Mutate(Vec<Arc<OperationTemplate>>),
    /// A command in place of a step of the script. All operations of its batch are commands.
    #[cfg_attr(not(feature = "redis-cell"), allow(dead_code, reason = "only `RedisCell` sends commands"))]
    Command(Cmd),
}

impl OperationTarget {
    /// The key of an entry.
    pub(crate) fn of_entry(key: &[u8], entry: &EntryTarget) -> Self {
        let limits = Arc::clone(&entry.limits);
        let mut key_offsets = vec![0; entry.limit];
        key_offsets.resize(limits.limits.len(), key.len());
        let mut algorithms = Vec::new();
        if entry.algorithm.is_some() {
            algorithms.resize(entry.limit, None);
            algorithms.push(entry.algorithm.clone());
        }
        Self { limits, keys: key.to_vec(), key_offsets, algorithms, weight: entry.weight.max(1) }
    }

    /// Returns an operation on these keys.
    pub(crate) fn operation(self, kind: OperationKind, reply: oneshot::Sender<OperationResult>) -> QueuedOperation {
        QueuedOperation { kind, target: self, id: None, answer_by: None, is_second: false, reply }
    }

    /// The key of the limit with this index.
    pub(crate) fn key(&self, limit: usize) -> &[u8] {
        let start = if limit == 0 { 0 } else { self.key_offsets[limit - 1] };
        &self.keys[start..self.key_offsets[limit]]
    }

    /// Returns the keys of all limits: see [`key`](Self::key).
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.key_offsets.len()).map(|limit| self.key(limit))
    }

    /// The cluster slot of the keys. They all have the same one.
    pub(crate) fn slot(&self) -> u16 {
        cluster_slot(self.keys().find(|key| !key.is_empty()).unwrap_or_default())
    }
}

impl QueuedOperation {
    pub(crate) fn with_id(self, id: IdOperation) -> Self {
        Self { id: Some(Box::new(id)), ..self }
    }

    /// Returns the numbers to send, with the sessions of a hold, and adds the keys of the id, if there is one.
    pub(super) fn numbers(
        &self,
        template: &OperationTemplate,
        sessions: Option<Vec<f64>>,
        keys: &mut Vec<Vec<u8>>,
    ) -> Vec<f64> {
        let Some(id) = &self.id else { return sessions.unwrap_or_default() };
        let mut numbers = sessions.unwrap_or_else(|| id.numbers.clone());
        id.encode(template, &mut numbers, keys);
        numbers
    }

    /// The maximum number of steps that the operation adds to a batch.
    pub(crate) fn steps(&self) -> usize {
        match &self.kind {
            OperationKind::Mutate(templates) => templates.len(),
            _ => 1,
        }
    }

    /// The run time of the whole operation in the script. A decision of one bucket has weight 1.
    pub(crate) fn total_weight(&self) -> usize {
        self.steps() * self.target.weight
    }

    pub(super) fn is_hold(&self) -> bool {
        matches!(self.kind, OperationKind::Hold(..))
    }

    /// Whether the operation holds on a key on which calls in flight create enough sessions: a key has a limited number.
    pub(super) fn must_wait(&self, holds: &HoldRegistry) -> bool {
        self.is_hold() && holds.creates_enough(self.target.keys())
    }

    /// Whether the caller has gone. A cancelled operation must not be sent: the caller believes that nothing is
    /// charged.
    ///
    /// Updates, settlements and reports of leases are sent in any case: the cost was spent.
    pub(crate) fn is_cancelled(&self) -> bool {
        let is_sent_anyway =
            matches!(self.kind, OperationKind::Update(_) | OperationKind::Settle(_) | OperationKind::Lease(_));
        self.reply.is_closed() && !is_sent_anyway
    }

    pub(crate) fn complete(self, result: OperationResult) {
        // If the caller has gone, the result is dropped, and a grant in it releases its hold.
        let _ = self.reply.send(result);
    }

    /// Completes the operation after a call without a result.
    pub(crate) fn fail(mut self, failure: &Failure) {
        match &mut self.kind {
            OperationKind::Update(update) if failure.is_rejected => update.reject(),
            OperationKind::Hold(_, _, pending) if failure.is_rejected => {
                pending.take().into_iter().for_each(PendingHold::denied);
            }
            _ => {}
        }
        let has_replied = failure.is_rejected || failure.server_responded;
        let may_be_held = !has_replied && matches!(self.kind, OperationKind::Hold(_, _, Some(_)));
        let error = failure.error.clone();
        self.complete(Err(if may_be_held { hold_unknown(error) } else { error }));
    }
}

fn hold_unknown(error: Error) -> Error {
    Error::unavailable(
        "hold failed: Redis did not reply, and the cost may stay held until the hold expires; see the source of this \
         error",
    )
    .with_source(error)
}
