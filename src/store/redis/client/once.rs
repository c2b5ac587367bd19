//! Decisions that charge a request once: the first one, and its repeats.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::completion::{Completion, OperationResult};
use super::future::{by_deadline, reply_of};
use super::hold::{into_guard, into_outcome};
use super::operation::{OperationKind, OperationTarget, QueuedOperation};
use super::reservation::push_key;
use super::{Client, no_runtime};
use crate::decision::{AcquireOptions, Costs};
use crate::error::Error;
use crate::limiter::{LimiterFuture, Outcome};
use crate::store::inner::{CallId, runtime::sleep};
use crate::store::redis::key_format::ReservationKeys;
use crate::store::redis::script::{
    LimitInfo, Operation, OperationTemplate, Repeated, TemplateSettings, fields, to_f64,
};

/// The id of a decision or a hold, and what the server remembers of it.
#[derive(Clone)]
pub(crate) struct IdOperation {
    pub(crate) keys: Arc<ReservationKeys>,
    pub(crate) call_id: CallId,
    pub(crate) max_ids: usize,
    /// 0 for a hold of a request that is charged once, which its settlement records.
    pub(crate) repeats: u16,
}

/// The record of a settled request.
pub(crate) struct RecordOperation {
    pub(super) template: Arc<OperationTemplate>,
    once: IdOperation,
    /// For each limit what the request was charged.
    charged: Vec<u64>,
}

impl IdOperation {
    /// Appends the numbers of a decision, and adds the keys of the id.
    pub(super) fn encode(&self, template: &OperationTemplate, numbers: &mut Vec<f64>, keys: &mut Vec<Vec<u8>>) {
        let limits = numbers.len();
        self.encode_record(numbers, keys);
        if template.charges_before.is_empty() {
            // Without `charges_before` the server does not decide on an id that it knows, and answers with what was
            // charged.
            numbers.resize(numbers.len() + limits, -1.0);
        } else {
            numbers.extend(template.charges_before.iter().copied().map(to_f64));
        }
    }

    pub(super) fn encode_record(&self, numbers: &mut Vec<f64>, keys: &mut Vec<Vec<u8>>) {
        let fields = fields::Reserve {
            record_key: push_key(&self.keys.record, keys),
            counts_key: push_key(&self.keys.counts, keys),
            lifetime: self.call_id.micros(),
            max_ids: self.max_ids as u64,
            repeats: u64::from(self.repeats),
        };
        numbers.extend(fields.map(to_f64).into_numbers());
    }
}

impl RecordOperation {
    /// Returns the numbers to send, and adds the keys of the id.
    pub(super) fn encode(&self, keys: &mut Vec<Vec<u8>>) -> Vec<f64> {
        let mut numbers = self.charged.iter().copied().map(to_f64).collect();
        self.once.encode_record(&mut numbers, keys);
        numbers
    }
}

/// A request that is charged once, until it is decided.
pub(crate) struct OnceRequest {
    pub(crate) options: AcquireOptions,
    pub(crate) target: OperationTarget,
    pub(crate) settings: TemplateSettings,
    /// Whether a limit holds its cost.
    pub(crate) holds: bool,
    pub(crate) once: IdOperation,
}

/// What the client knows of a request before an operation.
enum Attempt {
    First,
    /// For each limit what the request was charged.
    Repeat(Vec<u64>),
    /// The server's record has changed each time.
    WithoutId,
}

impl OnceRequest {
    /// So often other requests with the id may change what the server remembers.
    const MAX_CONFLICTS: usize = 3;

    fn operation(&self, attempt: &Attempt, reply: oneshot::Sender<OperationResult>) -> QueuedOperation {
        let has_id = !matches!(attempt, Attempt::WithoutId);
        let charges_before =
            if let Attempt::Repeat(charges_before) = attempt { charges_before.clone() } else { Vec::new() };
        let operation = match (has_id, self.holds) {
            (true, true) => Operation::OnceHold,
            (true, false) => Operation::Once,
            (false, true) => Operation::Hold,
            (false, false) => Operation::Acquisition,
        };
        let template = Arc::new(self.template(operation, self.options, charges_before));
        let kind = if self.holds {
            OperationKind::Hold(self.options, template, None)
        } else {
            OperationKind::Decide(self.options, template)
        };
        let once = has_id.then(|| Box::new(self.once.clone()));
        QueuedOperation { once, ..self.target.clone().operation(kind, reply) }
    }

    fn template(&self, operation: Operation, options: AcquireOptions, charges_before: Vec<u64>) -> OperationTemplate {
        let OperationTarget { limits, algorithms, .. } = &self.target;
        self.settings.template(&limits.limits, algorithms, operation, options, charges_before)
    }

    /// Records what the settled request was charged.
    pub(super) fn record(&self, client: &Client, actual: &Costs) -> LimiterFuture<()> {
        let charged_on = |limit: &LimitInfo| {
            let whole = limit.options(self.options).cost;
            if limit.held_until_end { 0 } else { limit.facts.cost.actual(actual, whole) }
        };
        let charged = self.target.limits.limits.iter().map(charged_on).collect();
        let template = Arc::new(self.template(Operation::Record, AcquireOptions::cost(0), Vec::new()));
        // `once` of a hold has none. They count from the settlement.
        let repeats = self.once.call_id.repeats;
        let once = IdOperation { repeats, ..self.once.clone() };
        let record = RecordOperation { template, once, charged };
        let kind = OperationKind::Record(Box::new(record));
        client.submit_operation(|reply| Ok(self.target.clone().operation(kind, reply)))
    }
}

impl Client {
    /// Queues the decision on a request that is charged once, and on a repeat once more with what it was charged.
    pub(crate) fn submit_once(self: &Arc<Self>, request: OnceRequest) -> Result<LimiterFuture<Outcome>, Error> {
        let timer = sleep(self.config.deadline).ok_or_else(no_runtime)?;
        let answer_by = Some(timer.deadline());
        let mut attempt = Attempt::First;
        let first = self.enqueue(|reply| Ok(request.operation(&attempt, reply)), answer_by)?;
        let client = Arc::clone(self);
        let decided = async move {
            let (mut reply, mut conflicts, mut has_lost_session) = (first, 0, false);
            loop {
                match reply_of(reply).await? {
                    Completion::Repeated(Repeated::Charged(charges_before)) => {
                        attempt = Attempt::Repeat(charges_before);
                    }
                    Completion::Repeated(Repeated::Changed) => {
                        // Another request with the id was decided in between, or its record expired.
                        conflicts += 1;
                        attempt =
                            if conflicts < OnceRequest::MAX_CONFLICTS { Attempt::First } else { Attempt::WithoutId };
                    }
                    // The second time it is the error of `into_outcome`.
                    Completion::SessionExpired if !has_lost_session => has_lost_session = true,
                    Completion::Decided(decision, Some(grant)) if request.options.hold => {
                        let held = into_guard(&client, grant, Some(request));
                        return Ok(Outcome::of_store(decision, held));
                    }
                    completion => return into_outcome(&client, completion),
                }
                reply = client.enqueue(|reply| Ok(request.operation(&attempt, reply)), answer_by)?;
            }
        };
        let config = Arc::clone(&self.config);
        Ok(LimiterFuture::pending(async move { by_deadline(decided, timer, || config.timeout_message()).await }))
    }
}
