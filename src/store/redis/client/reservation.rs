//! Holds with an id, and their settlement by the id.

use std::sync::Arc;

use super::completion::{Completion, OperationResult};
use super::operation::QueuedOperation;
use super::results::arrived_late;
use crate::decision::{AcquireOptions, Costs};
use crate::error::Error;
use crate::store::inner::{CallId, StateEncoding};
use crate::store::redis::key_format::ReservationKeys;
use crate::store::redis::script::{
    Failure, LimitInfo, OperationTemplate, Replay, ReplyReader, ScriptVerdict, Settled, catch_panic, fields,
    limit_has_no_algorithm, to_f64,
};

/// A hold with an id.
pub(crate) struct ReserveOperation {
    pub(crate) options: AcquireOptions,
    pub(crate) reserve: CallId,
    pub(crate) template: Arc<OperationTemplate>,
    pub(crate) keys: ReservationKeys,
    pub(crate) max_ids: usize,
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
        let mut numbers: Vec<_> = limits.iter().map(holds).collect();
        let fields = fields::Reserve {
            record_key: push_key(&self.keys.record, keys),
            counts_key: push_key(&self.keys.counts, keys),
            lifetime: self.reserve.micros(),
            max_ids: self.max_ids as u64,
            repeats: u64::from(self.reserve.repeats),
        };
        numbers.extend(fields.map(to_f64).into_numbers());
        numbers
    }

    /// Returns `None` if the reply ends too early.
    pub(super) fn read(
        &self,
        operation: &QueuedOperation,
        reply: &mut ReplyReader<'_>,
        replay: &mut Replay<'_>,
    ) -> Option<OperationResult> {
        let verdict = ScriptVerdict::read(reply, replay)?;
        if verdict.has_invalid_state() {
            return Some(Err(operation.foreign_key_error()));
        }
        if verdict.is_late() {
            replay.was_late = true;
            return Some(Err(arrived_late()));
        }
        if let Some(failed) = verdict.failed_reservation(replay.now) {
            return Some(failed.map(|decision| Completion::Decided(decision, None)));
        }
        if let Err(error) = verdict.check_hold() {
            return Some(Err(error));
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
            } else if let Err(error) = replay_settlement(index, released, charged, replay) {
                result = Err(error);
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

fn replay_settlement(index: usize, released: i64, charged: i64, replay: &mut Replay<'_>) -> Result<(), Error> {
    let (now, algorithms, limit) = (replay.now, replay.algorithms, &replay.limits[index]);
    let state = replay.state(index);
    state.held = state.held.saturating_add_signed(-released);
    if charged > 0 && limit.script.state_encoding() == StateEncoding::Full {
        let algorithm = limit.select(index, algorithms).ok_or_else(limit_has_no_algorithm)?;
        state.replay_charge(algorithm, now, charged.unsigned_abs());
    }
    Ok(())
}
