//! Reads the result of each operation from the script's reply, and replays it for the operations behind it.

use std::sync::Arc;

use super::completion::{Completion, OperationResult};
use super::operation::{OperationKind, QueuedOperation};
use crate::decision::AcquireOptions;
use crate::error::Error;
use crate::store::inner::StateEncoding;
use crate::store::redis::holds::{PendingHold, SessionUpdate};
use crate::store::redis::lease::{LeaseRenewal, LeaseReply};
use crate::store::redis::script::{
    Failure, Operation, OperationTemplate, Replay, ReplyReader, ScriptVerdict, catch_panic, limit_has_no_algorithm,
};

impl QueuedOperation {
    /// Returns the operation's result, or `None` if the reply ends too early.
    pub(super) fn read_result(
        &mut self,
        reply: &mut ReplyReader<'_>,
        replay: &mut Replay<'_>,
    ) -> Option<OperationResult> {
        // Results consume pending holds and updates. What replaces the operation allocates nothing.
        match std::mem::replace(&mut self.kind, OperationKind::Mutate(Vec::new())) {
            OperationKind::Decide(options, template) => {
                let verdict = match self.read_verdict(reply, replay)? {
                    Ok(verdict) => verdict,
                    Err(error) => {
                        self.kind = OperationKind::Decide(options, template);
                        return Some(Err(error));
                    }
                };
                if let Some(failed) = verdict.failed_reservation(&template, replay.now) {
                    return Some(failed.map(|decision| Completion::Decided(decision, None)));
                }
                if let Some(repeated) = verdict.repeated_request(&template) {
                    return Some(Ok(Completion::Repeated(repeated)));
                }
                let decided =
                    catch_panic(|| verdict.decision(options, &template, replay, |limit| self.target.key(limit)));
                Some(decided.map(|(decision, _)| Completion::Decided(decision, None)))
            }
            // `join_sessions` found no algorithm, so nothing was sent.
            OperationKind::Hold(_, _, None) => Some(Err(limit_has_no_algorithm())),
            OperationKind::Hold(options, template, Some(pending)) => {
                let verdict = self.read_verdict(reply, replay)?;
                let result = self.read_hold(options, &template, pending, verdict, replay);
                if replay.was_late {
                    self.kind = OperationKind::Hold(options, template, None);
                }
                Some(result)
            }
            OperationKind::Update(update) => self.read_update(*update, reply, replay),
            OperationKind::Settle(_) => self.read_settlement(reply, replay),
            OperationKind::Lease(renewal) => self.read_lease(*renewal, reply, replay),
            OperationKind::Command(_) => None,
            OperationKind::Mutate(templates) => {
                // All replies, also after an invalid state: those to the next operation come behind them.
                let values = templates.iter().map(|_| reply.next_i64()).collect::<Option<Vec<i64>>>()?;
                if values.contains(&Failure::InvalidState.result()) {
                    return Some(Err(self.foreign_key_error()));
                }
                Some(catch_panic(|| replay_operations(&templates, replay)).map(|()| Completion::Done))
            }
        }
    }

    /// Reads a verdict, or the error of a decision that was not made. Returns `None` if the reply ends too early.
    pub(super) fn read_verdict(
        &self,
        reply: &mut ReplyReader<'_>,
        replay: &mut Replay<'_>,
    ) -> Option<Result<ScriptVerdict, Error>> {
        let verdict = ScriptVerdict::read(reply, replay)?;
        replay.was_late = verdict.has(Failure::Late);
        if verdict.has(Failure::InvalidState) {
            return Some(Err(self.foreign_key_error()));
        }
        Some(if replay.was_late { Err(arrived_late()) } else { verdict.check_hold().map(|()| verdict) })
    }

    fn read_hold(
        &self,
        options: AcquireOptions,
        template: &OperationTemplate,
        pending: PendingHold,
        verdict: Result<ScriptVerdict, Error>,
        replay: &mut Replay<'_>,
    ) -> OperationResult {
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(error) => {
                pending.denied();
                return Err(error);
            }
        };
        if let Some(repeated) = verdict.repeated_request(template) {
            pending.denied();
            return Ok(Completion::Repeated(repeated));
        }
        if let Some(unknown) = verdict.expired_sessions() {
            pending.expired(&unknown);
            return Ok(Completion::SessionExpired);
        }
        // If the replay panics, `pending` is dropped, and releases what the server has granted.
        let (decision, held_costs) =
            catch_panic(|| verdict.decision(options, template, replay, |limit| self.target.key(limit)))?;
        if decision.is_allowed() {
            return Ok(Completion::Decided(
                decision,
                Some(pending.granted(&held_costs, replay.limits, &template.charges_before)),
            ));
        }
        pending.denied();
        Ok(Completion::Decided(decision, None))
    }

    /// Returns `None` if the reply ends too early.
    fn read_update(
        &self,
        update: SessionUpdate,
        reply: &mut ReplyReader<'_>,
        replay: &mut Replay<'_>,
    ) -> Option<OperationResult> {
        if update.encode().is_none() {
            // Another update of the call has carried the settlements.
            update.finish(true, 0);
            return Some(Ok(Completion::Done));
        }
        let [released, charged] = reply.next_array()?;
        if ReplyReader::is_invalid_state(released) || charged < 0 {
            return Some(Err(self.foreign_key_error()));
        }
        let (index, is_known) = (update.target.limit, Failure::of(released) != Some(Failure::Expired));
        // For requests in flight, the second number is the held cost for which the server has no room.
        let in_flight = update.session.is_in_flight;
        if is_known {
            let algorithm = replay.limits[index].algorithm(&update.target.algorithm);
            replay.settle(index, algorithm, released, if in_flight { 0 } else { charged });
        }
        update.finish(is_known, if in_flight { charged.unsigned_abs() } else { 0 });
        Some(Ok(Completion::Done))
    }

    /// Returns `None` if the reply ends too early.
    fn read_settlement(&self, reply: &mut ReplyReader<'_>, replay: &mut Replay<'_>) -> Option<OperationResult> {
        let mut result = Ok(Completion::Done);
        let (limits, algorithms) = (replay.limits, replay.algorithms);
        for (index, limit) in limits.iter().enumerate() {
            if !replay.applies(index) {
                continue;
            }
            let [released, charged] = reply.next_array()?;
            if ReplyReader::is_invalid_state(released) {
                result = Err(self.foreign_key_error());
            } else if Failure::of(released) == Some(Failure::UnknownId) {
                result = Err(Error::unknown_id());
            } else {
                replay.settle(index, limit.select(index, algorithms), released, charged);
            }
        }
        Some(result)
    }

    /// Returns `None` if the reply ends too early.
    fn read_lease(
        &self,
        renewal: LeaseRenewal,
        reply: &mut ReplyReader<'_>,
        replay: &mut Replay<'_>,
    ) -> Option<OperationResult> {
        let [held, expiry, charged, total] = reply.next_array()?;
        let (now, index) = (replay.now, renewal.quota.entry.limit);
        let limit = &replay.limits[index];
        let is_full = limit.script.state_encoding() == StateEncoding::Full;
        let mut view = [0; 3];
        if held >= 0 && !is_full {
            // The script sends the figures only of a lease that it has applied.
            view = reply.next_array()?.map(|number| u64::try_from(number).unwrap_or(0));
        }
        let state = replay.state(index);
        let mut figures = None;
        if let Some(algorithm) = limit.algorithm(&renewal.quota.entry.algorithm)
            && let (Ok(charged), Ok(total)) = (u64::try_from(charged), u64::try_from(total))
        {
            state.held = total;
            if charged > 0 && is_full {
                state.replay_charge(algorithm, now, charged);
            }
            let options = AcquireOptions::cost(0);
            let snapshot = catch_panic(|| {
                if is_full {
                    return state.replay(|numbers| algorithm.replay(numbers, now, options, None, total));
                }
                Ok(algorithm.replay_view(view, now))
            });
            figures = snapshot.ok().map(|snapshot| snapshot.compute());
        }
        let applied = u64::try_from(held).ok().zip(u64::try_from(expiry).ok());
        let result = match applied {
            Some((held, expiry)) => LeaseReply::Applied { held, expiry },
            None if Failure::of(held) == Some(Failure::Expired) => LeaseReply::Expired,
            None => LeaseReply::Refused,
        };
        renewal.finish(result, now.as_micros(), figures);
        Some(if ReplyReader::is_invalid_state(held) { Err(self.foreign_key_error()) } else { Ok(Completion::Done) })
    }

    pub(super) fn foreign_key_error(&self) -> Error {
        let keys = self.target.keys().filter(|key| !key.is_empty());
        let keys: Vec<_> = keys.map(String::from_utf8_lossy).collect();
        Error::unavailable(format!(
            "the call to Redis failed: a key holds no state of this limiter; delete the key ({}), or choose another \
             prefix",
            keys.join(", ")
        ))
    }
}

/// The script did not make the decision, because its reply would have come after the deadline.
fn arrived_late() -> Error {
    Error::unavailable(
        "the decision reached Redis too late, and nothing is charged: its reply would have missed the deadline; check \
         the server and the network for stalls, or raise `deadline`",
    )
}

fn replay_operations(templates: &[Arc<OperationTemplate>], replay: &mut Replay<'_>) -> Result<(), Error> {
    for template in templates {
        let index = usize::from(template.limit) - 1;
        let (now, algorithms, limit) = (replay.now, replay.algorithms, &replay.limits[index]);
        if limit.script.state_encoding() != StateEncoding::Header {
            let algorithm = limit.select(index, algorithms).ok_or_else(limit_has_no_algorithm)?;
            replay.state(index).replay(|numbers| {
                if matches!(template.operation, Operation::Set | Operation::Reset) {
                    numbers.clear();
                }
                // A block changes no number.
                if matches!(template.operation, Operation::Set | Operation::Charge) && template.cost > 0 {
                    algorithm.replay_charge(numbers, now, template.cost);
                }
            })?;
        }
    }
    Ok(())
}
