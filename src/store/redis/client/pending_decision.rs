//! Decisions that hold costs or are charged once: several operations may be needed for one.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::completion::{Completion, OperationResult, by_deadline, reply_of};
use super::hold::into_guard;
use super::operation::{OperationKind, OperationTarget, QueuedOperation};
use super::{Client, no_runtime};
use crate::decision::{AcquireOptions, Costs};
use crate::error::Error;
use crate::limiter::{LimiterFuture, Outcome};
use crate::store::inner::CallId;
use crate::store::inner::runtime::sleep;
use crate::store::redis::key_format::ReservationKeys;
use crate::store::redis::script::{LimitInfo, Operation, OperationTemplate, Repeated, to_f64};

/// The id of an operation, and what the server remembers of it.
#[derive(Clone)]
pub(crate) struct IdOperation {
    pub(crate) keys: Arc<ReservationKeys>,
    pub(crate) call_id: CallId,
    pub(crate) max_ids: usize,
    /// 0 for a hold of a request that is charged once, which its settlement records, and for the settlement of a repeat.
    pub(crate) repeats: u16,
    /// The limits' numbers, of an operation without sessions: see `read.lua`.
    pub(crate) numbers: Vec<f64>,
}

impl IdOperation {
    /// Appends what follows the limits' numbers, and adds the keys of the id.
    pub(super) fn encode(&self, template: &OperationTemplate, numbers: &mut Vec<f64>, keys: &mut Vec<Vec<u8>>) {
        let limits = numbers.len();
        let mut number_of = |key: &Vec<u8>| {
            keys.push(key.clone());
            keys.len() as u64
        };
        let record_key = number_of(&self.keys.record);
        if template.operation == Operation::Settle {
            numbers.push(to_f64(record_key));
            return;
        }
        let (counts_key, lifetime) = (number_of(&self.keys.counts), self.call_id.micros());
        let (max_ids, repeats) = (self.max_ids as u64, u64::from(self.repeats));
        numbers.extend([record_key, counts_key, lifetime, max_ids, repeats].map(to_f64));
        if is_once(template) {
            // Without `charges_before` the server does not decide on an id that it knows, and answers with what was
            // charged.
            let charge_before = |limit| template.charges_before.get(limit).map_or(-1.0, |charge| to_f64(*charge));
            numbers.extend((0..limits).map(charge_before));
        }
    }
}

/// Whether a decision is charged once.
fn is_once(template: &OperationTemplate) -> bool {
    matches!(template.operation, Operation::Once | Operation::OnceHold)
}

/// A decision that holds costs or is charged once, until it is made.
pub(crate) struct PendingDecision {
    pub(crate) options: AcquireOptions,
    pub(crate) target: OperationTarget,
    /// Whether a limit holds its cost.
    pub(crate) holds: bool,
    /// The id of a decision that is charged once.
    pub(crate) once: Option<IdOperation>,
    /// For the templates of a decision that is charged once: see the template.
    pub(crate) kept_free: Vec<Option<u64>>,
}

impl PendingDecision {
    /// So often other requests with the id may change what the server remembers.
    const MAX_CONFLICTS: usize = 3;

    /// Returns a template with or without the id. `charges_before` is for each limit what the request was charged.
    pub(crate) fn template(&self, has_id: bool, charges_before: Vec<u64>) -> Arc<OperationTemplate> {
        let operation = match (has_id, self.holds) {
            (true, true) => Operation::OnceHold,
            (true, false) => Operation::Once,
            (false, true) => Operation::Hold,
            (false, false) => Operation::Acquisition,
        };
        let OperationTarget { limits, algorithms, .. } = &self.target;
        Arc::new(limits.template(algorithms, operation, self.options, self.kept_free.clone(), charges_before))
    }

    fn operation(&self, template: &Arc<OperationTemplate>, reply: oneshot::Sender<OperationResult>) -> QueuedOperation {
        let (template, has_id) = (Arc::clone(template), is_once(template));
        let kind = if self.holds {
            OperationKind::Hold(self.options, template, None)
        } else {
            OperationKind::Decide(self.options, template)
        };
        let id = self.once.clone().filter(|_| has_id).map(Box::new);
        QueuedOperation { id, ..self.target.clone().operation(kind, reply) }
    }

    /// Records what the settled request was charged beyond `charges_before`, if it is charged once.
    pub(super) fn record(&self, client: &Client, actual: &Costs, charges_before: &[u64]) -> LimiterFuture<()> {
        let Some(once) = &self.once else { return LimiterFuture::ready(Ok(())) };
        let charged_on = |(index, limit): (usize, &LimitInfo)| {
            let charge_before = charges_before.get(index).copied().unwrap_or_default();
            let charged = limit.facts.cost.actual(actual, limit.options(self.options).cost);
            to_f64(if limit.held_until_end { 0 } else { charged.saturating_sub(charge_before) })
        };
        let OperationTarget { limits, algorithms, .. } = &self.target;
        let numbers = limits.limits.iter().enumerate().map(charged_on).collect();
        let no_cost = AcquireOptions::cost(0);
        let template = Arc::new(limits.template(algorithms, Operation::Record, no_cost, Vec::new(), Vec::new()));
        // `once` of a hold has no repeats. They count from the settlement. A repeat earns none.
        let repeats = if charges_before.is_empty() { once.call_id.repeats } else { 0 };
        let id = IdOperation { repeats, numbers, ..once.clone() };
        client.submit_operation(|reply| {
            Ok(self.target.clone().operation(OperationKind::Settle(template), reply).with_id(id))
        })
    }
}

impl Client {
    /// Queues the decision on a request: once more in a new session if the server does not know the session of a hold, and
    /// on a repeat with what the request was charged.
    pub(crate) fn submit_pending(
        self: &Arc<Self>,
        request: PendingDecision,
        mut template: Arc<OperationTemplate>,
    ) -> Result<LimiterFuture<Outcome>, Error> {
        let timer = sleep(self.config.deadline).ok_or_else(no_runtime)?;
        let answer_by = Some(timer.deadline());
        let first = self.enqueue(|reply| Ok(request.operation(&template, reply)), answer_by)?;
        let (client, config) = (Arc::clone(self), Arc::clone(&self.config));
        let decided = async move {
            let (mut reply, mut conflicts, mut has_lost_session) = (first, 0, false);
            let (decision, grant) = loop {
                match reply_of(reply).await? {
                    Completion::Decided(decision, grant) => break (decision, grant),
                    Completion::Repeated(Repeated::Charged(charges_before)) => {
                        template = request.template(true, charges_before);
                    }
                    Completion::Repeated(Repeated::Changed) => {
                        // Another request with the id was decided in between, or its record expired.
                        conflicts += 1;
                        template = request.template(conflicts < PendingDecision::MAX_CONFLICTS, Vec::new());
                    }
                    Completion::SessionExpired if !has_lost_session => has_lost_session = true,
                    Completion::SessionExpired | Completion::Replied(_) | Completion::Done => {
                        return Err(Error::unavailable(
                            "hold failed: Redis has lost the process's session on the key twice; retry",
                        ));
                    }
                }
                reply = client.enqueue(|reply| Ok(request.operation(&template, reply)), answer_by)?;
            };
            let held = grant.and_then(|grant| into_guard(&client, grant, request, template));
            Ok(Outcome::of_store(decision, held))
        };
        Ok(LimiterFuture::pending(async move { by_deadline(decided, timer, || config.timeout_message()).await }))
    }
}
