use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::completion::Answers;
use super::config::ServerClock;
use super::operation::{OperationKind, QueuedOperation};
use crate::calendar::Calendar;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::store::inner::StateEncoding;
use crate::store::redis::connect::Failure;
use crate::store::redis::holds::{HoldRegistry, NewSessions};
use crate::store::redis::script::{
    LimitSet, NO_KEY, OperationTemplate, Replay, ReplyReader, StepEncoder, catch_panic, push_f64, push_u16, to_f64,
};

/// The operations of one call, and the encoded input of the script: `read.lua` documents the format.
pub(super) struct Batch {
    operations: Vec<QueuedOperation>,
    pub(super) limits: Arc<LimitSet>,
    holds: Arc<HoldRegistry>,
    /// For each operation and limit the index of its key in `keys`.
    key_indices: Vec<u16>,
    /// Each distinct key, as operation and limit of its first use.
    keys: Vec<(usize, usize)>,
    /// The keys of reservation ids.
    id_keys: Vec<Vec<u8>>,
    input: Vec<u8>,
    /// The calendars of windows, each with the place of its instants in the input.
    calendars: Vec<(usize, Calendar)>,
    latest_start: Option<LatestStart>,
}

/// When a script must start so that its reply can come in time.
#[derive(Clone, Copy)]
pub(super) struct LatestStart {
    /// By the server's clock, as the last replies have shown it.
    pub(super) server_time: Timestamp,
    /// When the reply then comes at the latest.
    pub(super) reply_by: Instant,
}

impl Batch {
    /// Encodes operations, which have the same limits. `now` replaces the server's time in tests. The script makes no
    /// decisions after `latest_start`.
    pub(super) fn new(
        limits: Arc<LimitSet>,
        mut operations: Vec<QueuedOperation>,
        holds: &Arc<HoldRegistry>,
        now: Option<Timestamp>,
        latest_start: Option<LatestStart>,
    ) -> Self {
        load_sessions(&mut operations, &limits, holds);
        let limit_count = limits.limits.len();
        let (keys, key_indices) = dedup_keys(&operations, &limits);
        // Distinct ones.
        let mut templates: Vec<&Arc<OperationTemplate>> = Vec::new();
        let mut steps = StepEncoder::new(limit_count);
        let mut id_keys = Vec::new();
        // No fast path knows keys without a step: of an update of sessions that have all ended.
        let mut has_silent = false;
        for (operation, key_indices) in operations.iter().zip(key_indices.chunks(limit_count)) {
            let mut is_silent = true;
            let mut push = |template, numbers: &[f64]| {
                is_silent = false;
                let is_same = |known: &&Arc<OperationTemplate>| Arc::ptr_eq(known, template) || *known == template;
                let index = templates.iter().rposition(is_same).unwrap_or_else(|| {
                    templates.push(template);
                    templates.len() - 1
                });
                steps.push(index, key_indices, numbers);
            };
            match &operation.kind {
                OperationKind::Decide(_, template) | OperationKind::Settle(template) => {
                    push(template, &operation.numbers(template, None, &mut id_keys));
                }
                OperationKind::Hold(_, template, Some(pending)) => {
                    push(template, &operation.numbers(template, Some(pending.ids()), &mut id_keys));
                }
                OperationKind::Hold(..) | OperationKind::Command(_) => {}
                OperationKind::Update(update) => {
                    if let Some(numbers) = update.encode() {
                        push(&update.target.template, &numbers);
                    }
                }
                OperationKind::Lease(renewal) => {
                    push(&renewal.quota.entry.template, &renewal.encode());
                }
                OperationKind::Mutate(templates) => {
                    for template in templates {
                        push(template, &[]);
                    }
                }
            }
            has_silent |= is_silent;
        }
        // With one template, distinct keys of the steps are in the order of their first use.
        let plain_keys = if templates.len() == 1 && id_keys.is_empty() { keys.len() } else { usize::MAX };
        let (step_count, steps) = steps.encoded(plain_keys);
        let mut input = Vec::with_capacity(64 + templates.len() * 100 + steps.len());
        for time in [now, latest_start.map(|start| start.server_time)] {
            push_f64(time.map_or(0.0, |time| to_f64(time.as_micros())), &mut input);
        }
        let fast_path = limits.script.fast_path(templates.iter().map(|template| &***template));
        push_u16(if has_silent { 0 } else { fast_path }, &mut input);
        push_u16(templates.len(), &mut input);
        push_u16(step_count, &mut input);
        for limit in 0..limit_count {
            push_u16(keys.iter().filter(|key| key.1 == limit).count(), &mut input);
        }
        let mut calendars = Vec::new();
        for template in templates {
            template.encode(&mut input, &mut calendars);
        }
        input.extend_from_slice(&steps);
        Self {
            operations,
            limits,
            holds: Arc::clone(holds),
            key_indices,
            keys,
            id_keys,
            input,
            calendars,
            latest_start,
        }
    }

    /// Returns the server's time from a reply that asks for the instants around that time, and says that nothing has changed.
    pub(super) fn other_server_time(&self, reply: &Value) -> Option<Timestamp> {
        let Value::BulkString(bytes) = reply else { return None };
        // Every other reply is longer.
        let bytes = <[u8; 8]>::try_from(&bytes[..]).ok().filter(|_| !self.calendars.is_empty())?;
        Some(Timestamp::from_micros(ReplyReader::read_time(bytes)?))
    }

    /// The call of the script, by its hash or with its text. `server_clock` estimates the server's time, which calendars
    /// need.
    pub(super) fn command(&self, by_hash: bool, server_clock: &ServerClock) -> Cmd {
        let script = &self.limits.script;
        let (name, text) = if by_hash { ("EVALSHA", &script.hash) } else { ("EVAL", &script.text) };
        let key_count = self.keys.len() + self.id_keys.len();
        let key_bytes: usize = self.operations.iter().map(|operation| operation.target.keys.len()).sum();
        let mut command = Cmd::with_capacity(4 + key_count, 16 + text.len() + key_bytes + self.input.len());
        command.arg(name).arg(text).arg(key_count);
        for &(operation, limit) in &self.keys {
            command.arg(self.operations[operation].target.key(limit));
        }
        for key in &self.id_keys {
            command.arg(&key[..]);
        }
        if self.calendars.is_empty() {
            command.arg(&self.input[..]);
        } else {
            let (mut input, now) = (self.input.clone(), server_clock.now().as_micros());
            for &(place, calendar) in &self.calendars {
                let instants = calendar.instants(now).map(|instant| to_f64(instant).to_le_bytes());
                if let Some(place) = input.get_mut(place..place + size_of_val(&instants)) {
                    place.copy_from_slice(instants.as_flattened());
                }
            }
            command.arg(input);
        }
        command
    }

    pub(super) fn into_operations(self) -> Vec<QueuedOperation> {
        self.operations
    }

    /// Replays the batch, and returns the result of each operation from its part of the reply.
    ///
    /// # Errors
    ///
    /// If the reply is malformed. The error has completed the remaining operations.
    pub(super) fn complete(self, reply: &Value, sent_at: Instant) -> Result<ScriptRun, Error> {
        let limits = &self.limits.limits[..];
        let Some((now, mut reply, mut states)) = ReplyReader::new(reply, self.keys.len()) else {
            return Err(fail_unexpected(self.operations));
        };
        // The reply came as early as the reply to a script that had started in time, so the server's clock has gained.
        let is_in_time = self.latest_start.is_some_and(|start| Instant::now() <= start.reply_by);
        let mut run = ScriptRun {
            sent_at,
            started_at: now,
            late: 0,
            clock_has_gained: false,
            answers: Answers(VecDeque::with_capacity(self.operations.len())),
            again: Vec::new(),
        };
        let mut operations = self.operations.into_iter();
        for key_indices in self.key_indices.chunks(limits.len()) {
            let Some(mut operation) = operations.next() else { break };
            let algorithms = std::mem::take(&mut operation.target.algorithms);
            let mut replay =
                Replay { now, limits, algorithms: &algorithms, key_indices, states: &mut states, was_late: false };
            let Some(result) = operation.read_result(&mut reply, &mut replay) else {
                let others = std::iter::once(operation).chain(operations).collect();
                return Err(fail_unexpected(others));
            };
            let was_late = replay.was_late;
            run.clock_has_gained |= was_late && is_in_time;
            if was_late && is_in_time && !operation.is_second {
                operation.target.algorithms = algorithms;
                operation.is_second = true;
                run.again.push(operation);
                continue;
            }
            run.late += usize::from(was_late);
            run.answers.0.push_back((operation, result));
        }
        self.holds.emit_expired(reply.expired);
        Ok(run)
    }
}

/// What a reply says about the run of the script.
pub(super) struct ScriptRun {
    /// When the client sent the command.
    pub(super) sent_at: Instant,
    /// The server's time.
    pub(super) started_at: Timestamp,
    /// The number of decisions that the script did not make, because their replies would have come too late.
    pub(super) late: usize,
    /// It made no decision, although their replies came in time.
    pub(super) clock_has_gained: bool,
    pub(super) answers: Answers,
    /// The operations to ask once more: nothing was charged.
    pub(super) again: Vec<QueuedOperation>,
}

fn fail_unexpected(operations: Vec<QueuedOperation>) -> Error {
    let error =
        Error::unavailable("unexpected reply to the rate limit script; check that all processes run the same version");
    let failure = Failure::server_responded(error.clone());
    for operation in operations {
        operation.fail(&failure);
    }
    error
}

/// Sets what is known only when a batch is sent: the sessions of holds, and the sums of updates.
fn load_sessions(operations: &mut [QueuedOperation], limits: &Arc<LimitSet>, holds: &Arc<HoldRegistry>) {
    let (mut new, mut updated) = (NewSessions::default(), HashSet::new());
    for operation in operations {
        let target = &operation.target;
        match &mut operation.kind {
            OperationKind::Hold(options, _, pending) => {
                // The operation was sent before, and the server replied that it did not run it.
                if let Some(pending) = pending.take() {
                    pending.denied();
                }
                let join =
                    || holds.join_sessions(|limit| target.key(limit), &target.algorithms, limits, *options, &mut new);
                *pending = catch_panic(join).ok();
            }
            // The first update of a session in the batch carries all of its settlements.
            OperationKind::Update(update) => update.load(updated.insert(update.session.id)),
            _ => {}
        }
    }
}

/// Returns the distinct keys as operation and limit of their first use, and for each operation and limit the index of
/// its key.
///
/// The keys are ordered by limit. Limits whose state does not travel come last, because the script reads all others at
/// once.
fn dedup_keys(operations: &[QueuedOperation], limits: &LimitSet) -> (Vec<(usize, usize)>, Vec<u16>) {
    let limits = &limits.limits;
    let count = operations.len() * limits.len();
    let mut keys: Vec<(usize, usize)> = Vec::with_capacity(count);
    let mut key_indices = vec![NO_KEY; count];
    let mut known = HashMap::with_capacity_and_hasher(count, foldhash::fast::RandomState::default());
    for layout in [StateEncoding::Full, StateEncoding::Header] {
        for (limit, _) in limits.iter().enumerate().filter(|(_, limit)| limit.script.state_encoding() == layout) {
            let with_key =
                operations.iter().enumerate().filter(|(_, operation)| !operation.target.key(limit).is_empty());
            for (index, operation) in with_key {
                let key_index = *known.entry(operation.target.key(limit)).or_insert_with(|| {
                    keys.push((index, limit));
                    u16::try_from(keys.len() - 1).unwrap_or(u16::MAX)
                });
                key_indices[index * limits.len() + limit] = key_index;
            }
        }
    }
    (keys, key_indices)
}
