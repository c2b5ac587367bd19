//! Holds with an id, and their settlement by the id.

use std::sync::Arc;

use super::completion::{Completion, OperationResult};
use super::once::IdOperation;
use super::operation::QueuedOperation;
use crate::decision::{AcquireOptions, Costs};
use crate::error::Error;
use crate::store::redis::script::{
    Failure, LimitInfo, OperationTemplate, Replay, ReplyReader, Settled, catch_panic, fields, to_f64,
};

/// A hold with an id.
pub(crate) struct ReserveOperation {
    pub(crate) options: AcquireOptions,
    pub(crate) template: Arc<OperationTemplate>,
    pub(crate) id: IdOperation,
}

/// The settlement of a hold by its id.
pub(crate) struct SettleOperation {
    pub(crate) template: Arc<OperationTemplate>,
    pub(crate) record: Vec<u8>,
    pub(crate) actual: Costs,
}

impl ReserveOperation {
    /// Returns the numbers to send, and adds the keys of the id.
    pub(super) fn encode(&self, limits: &[LimitInfo], keys: &mut Vec<Vec<u8>>) -> Vec<f64> {
        let holds = |limit: &LimitInfo| f64::from(u8::from(limit.options(self.options).hold));
        let mut numbers = limits.iter().map(holds).collect();
        self.id.encode_record(&mut numbers, keys);
        numbers
    }

    /// Returns `None` if the reply ends too early.
    pub(super) fn read(
        &self,
        operation: &QueuedOperation,
        reply: &mut ReplyReader<'_>,
        replay: &mut Replay<'_>,
    ) -> Option<OperationResult> {
        let verdict = match operation.read_verdict(reply, replay)? {
            Ok(verdict) => verdict,
            Err(error) => return Some(Err(error)),
        };
        if let Some(failed) = verdict.failed_reservation(replay.now) {
            return Some(failed.map(|decision| Completion::Decided(decision, None)));
        }
        let key = |limit| operation.target.key(limit);
        let decided = catch_panic(|| verdict.decision(self.options, &self.template, replay, key));
        Some(decided.map(|(decision, _)| Completion::Decided(decision, None)))
    }
}

impl SettleOperation {
    /// Returns the numbers to send, and adds the key of the record.
    pub(super) fn encode(&self, limits: &[LimitInfo], keys: &mut Vec<Vec<u8>>) -> Vec<f64> {
        // In place of a cost that only Redis knows: the held one.
        const HELD: u64 = u64::MAX;
        let actual = |limit: &LimitInfo| match limit.facts.cost.actual(&self.actual, HELD) {
            HELD => -1.0,
            actual => to_f64(actual),
        };
        let mut numbers: Vec<_> = limits.iter().map(actual).collect();
        numbers.extend(fields::Settle { record_key: push_key(&self.record, keys) }.map(to_f64).into_numbers());
        numbers
    }

    /// Returns `None` if the reply ends too early.
    pub(super) fn read(
        operation: &QueuedOperation,
        reply: &mut ReplyReader<'_>,
        replay: &mut Replay<'_>,
    ) -> Option<OperationResult> {
        let mut result = Ok(Completion::Done);
        for index in (0..replay.limits.len()).filter(|index| replay.applies(*index)).collect::<Vec<_>>() {
            let Settled { released, charged } = Settled::read(|| reply.next_i64())?;
            if ReplyReader::is_invalid_state(released) {
                result = Err(operation.foreign_key_error());
            } else if Failure::of(released) == Some(Failure::UnknownId) {
                result = Err(Error::unknown_id());
            } else {
                let (limits, algorithms) = (replay.limits, replay.algorithms);
                replay.settle(index, limits[index].select(index, algorithms), released, charged);
            }
        }
        Some(result)
    }
}

/// Adds the key of an id. Returns its number.
pub(super) fn push_key(key: &[u8], keys: &mut Vec<Vec<u8>>) -> u64 {
    keys.push(key.to_vec());
    keys.len() as u64
}
