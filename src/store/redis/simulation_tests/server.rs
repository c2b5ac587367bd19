//! A server that runs the limiter's commands one after the other.

use std::collections::VecDeque;

use super::model::{Execution, Run, Store, Verdict};
use super::quota::{Form, Quota};
use super::scenario::FaultKind;
use super::wire::{Arguments, Input, bulk_string};
use super::world::{Connection, Link};

/// An error that the client does not know.
const UNKNOWN_ERROR: &str = "-ERR unknown\r\n";

/// The names of the limits. The first one counts each key.
pub(super) const LIMIT_NAMES: [&str; 3] = ["default", "all", "everything"];

pub(super) struct Server {
    quotas: Vec<Quota>,
    /// What the names of each limit's keys start with.
    key_prefixes: Vec<String>,
    link: Link,
    pub(super) store: Store,
    snapshot: Option<Store>,
    has_script: bool,
    /// The inputs of the calls that were answered NOSCRIPT.
    refused: Vec<Vec<u8>>,
    /// The number of fail-overs. Connections that were opened before the last one lead to a replica.
    pub(super) master: u64,
    queue: VecDeque<Command>,
    busy_until: u64,
    paused_until: u64,
    clock: ServerClock,
    is_down: bool,
    /// While the server is down, its host answers nothing.
    loses_connects: bool,
    pub(super) is_loading: bool,
    is_out_of_memory: bool,
    is_busy: bool,
    /// The bytes of the next reply before a cut.
    pub(super) cut_in_reply: Option<usize>,
    /// All runs of the script, and what they decided.
    pub(super) calls: Vec<CallRecord>,
    pub(super) executions: Vec<Execution>,
    /// The first call with wrong parameters or keys.
    pub(super) wrong: Option<String>,
    pub(super) has_lost_data: bool,
    /// The server ignores reports that release leases: a mistake.
    pub(super) ignores_releases: bool,
    pub(super) is_traced: bool,
}

/// How much more time the server's clock has counted than there was.
#[derive(Default)]
struct ServerClock {
    gained: i64,
    /// Since this time the clock gains so many percent.
    slew: (u64, i64),
}

impl ServerClock {
    fn gained(&self, at: u64) -> i64 {
        let elapsed = i64::try_from(at.saturating_sub(self.slew.0)).expect("a short time");
        self.gained + elapsed * self.slew.1 / 100
    }

    fn set_slew(&mut self, at: u64, percent: i64) {
        *self = Self { gained: self.gained(at), slew: (at, percent) };
    }
}

/// A command that waits for the server.
struct Command {
    connection: usize,
    arrived_at: u64,
    written_at: u64,
    bytes: Vec<u8>,
    arguments: Arguments,
}

/// One run of the script.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallRecord {
    pub(super) connection: usize,
    /// When the client sent it.
    pub(super) sent_at: u64,
    pub(super) ran_at: u64,
    pub(super) ended_at: u64,
    pub(super) operations: u64,
    /// The server had answered NOSCRIPT to the same batch.
    pub(super) is_repeated: bool,
    /// When the whole reply was readable for the client.
    pub(super) answered_at: Option<u64>,
}

/// A command that has run.
pub(super) struct Done {
    pub(super) connection: usize,
    /// When it has run.
    pub(super) at: u64,
    pub(super) reply: Vec<u8>,
    /// The index of the run of the script.
    pub(super) call: Option<usize>,
    /// For the trace.
    pub(super) note: String,
}

impl Server {
    /// The server's clock at the start, in microseconds.
    pub(super) const EPOCH: u64 = 1_800_000_000_000_000;

    pub(super) fn new(quotas: Vec<Quota>, link: Link) -> Self {
        let key_prefix = |(quota, limit): (&Quota, &str)| {
            let script = match quota.form {
                Form::FixedWindow => "fixed_window3",
                Form::TokenBucket { .. } => "bucket2",
                Form::SlidingWindow { .. } => "sliding_window3",
                Form::SlidingLog => "sliding_log4",
                Form::InFlight => "in_flight1",
            };
            format!("ratelimit:api:{limit}:{script}:")
        };
        Self {
            key_prefixes: quotas.iter().zip(LIMIT_NAMES).map(key_prefix).collect(),
            quotas,
            link,
            store: Store::default(),
            snapshot: None,
            has_script: false,
            refused: Vec::new(),
            master: 0,
            queue: VecDeque::new(),
            busy_until: 0,
            paused_until: 0,
            clock: ServerClock::default(),
            is_down: false,
            loses_connects: false,
            is_loading: false,
            is_out_of_memory: false,
            is_busy: false,
            cut_in_reply: None,
            calls: Vec::new(),
            executions: Vec::new(),
            wrong: None,
            has_lost_data: false,
            ignores_releases: false,
            is_traced: false,
        }
    }

    /// The server's clock, in microseconds since the Unix epoch, at a time since the start.
    pub(super) fn time(&self, at: u64) -> u64 {
        (Self::EPOCH + at).saturating_add_signed(self.clock.gained(at))
    }

    /// Sets the server's clock forward or back, in microseconds.
    pub(super) fn step_clock(&mut self, micros: i64) {
        self.clock.gained += micros;
    }

    pub(super) fn set_slew(&mut self, at: u64, percent: i64) {
        self.clock.set_slew(at, percent);
    }

    pub(super) fn is_down(&self) -> bool {
        self.is_down
    }

    pub(super) fn loses_connects(&self) -> bool {
        self.is_down && self.loses_connects
    }

    pub(super) fn queue(
        &mut self,
        connection: usize,
        arrived_at: u64,
        written_at: u64,
        bytes: Vec<u8>,
        arguments: Arguments,
    ) {
        self.queue.push_back(Command { connection, arrived_at, written_at, bytes, arguments });
    }

    /// Drops the commands of a connection that has ended.
    pub(super) fn forget(&mut self, connection: usize) {
        self.queue.retain(|command| command.connection != connection);
    }

    /// Returns when the next command can run, if that is later.
    pub(super) fn ready_at(&self, at: u64) -> Option<u64> {
        let ready = self.busy_until.max(self.paused_until);
        (!self.queue.is_empty() && ready > at).then_some(ready)
    }

    /// Runs the next command, if the server is free.
    pub(super) fn run_next(&mut self, at: u64, connections: &[Connection]) -> Option<Done> {
        if self.is_down || self.busy_until.max(self.paused_until) > at {
            return None;
        }
        let command = self.queue.pop_front()?;
        let start = command.arrived_at.max(self.busy_until).max(self.paused_until);
        let connection = &connections[command.connection];
        let (reply, call, note) = self.run(&command, start, connection);
        let at = start.max(self.busy_until);
        Some(Done { connection: command.connection, at, reply, call, note })
    }

    fn run(&mut self, command: &Command, at: u64, connection: &Connection) -> (Vec<u8>, Option<usize>, String) {
        let arguments: Vec<&[u8]> = command.arguments.iter().map(|range| &command.bytes[range.clone()]).collect();
        let name = arguments[0];
        let error = if name == b"CLIENT" || name == b"PING" {
            None
        } else if self.is_loading {
            Some("-LOADING Redis is loading the dataset in memory\r\n")
        } else if self.is_busy {
            Some("-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n")
        } else if name == b"EVALSHA" && !self.has_script {
            self.refused.extend(arguments.last().map(|input| input.to_vec()));
            Some(mistake!(ScriptIsNotSent, UNKNOWN_ERROR, "-NOSCRIPT No matching script. Please use EVAL.\r\n"))
        } else if name != b"SCRIPT" && connection.master != self.master {
            Some(mistake!(ReplicaIsKept, UNKNOWN_ERROR, "-READONLY You can't write against a read only replica.\r\n"))
        } else if name != b"SCRIPT" && self.is_out_of_memory {
            Some("-OOM command not allowed when used memory > 'maxmemory'.\r\n")
        } else {
            None
        };
        let note = |result: &str| {
            if self.is_traced { format!("server: {}: {result}", String::from_utf8_lossy(name)) } else { String::new() }
        };
        if let Some(error) = error {
            return (error.as_bytes().to_vec(), None, note(error.trim_end()));
        }
        match name {
            b"CLIENT" | b"SET" => (b"+OK\r\n".to_vec(), None, note("OK")),
            b"PING" => (b"+PONG\r\n".to_vec(), None, note("PONG")),
            b"SCRIPT" => {
                let note = note("loaded");
                self.has_script = true;
                (bulk_string(&[b'0'; 40]), None, note)
            }
            b"EVAL" | b"EVALSHA" => {
                self.has_script = true;
                let call = self.calls.len();
                let refused = self.refused.iter().position(|input| Some(&&input[..]) == arguments.last());
                let is_repeated = refused.map(|index| self.refused.swap_remove(index)).is_some();
                let before = self.executions.len();
                let input = Input::read(arguments.last().expect("the input"), &self.quotas);
                let names = &arguments[3..arguments.len() - 1];
                // The keys of ids follow.
                let (names, id_keys) = names.split_at(input.key_counts.iter().sum::<usize>());
                let id_keys = id_keys.iter().map(|key| std::str::from_utf8(key).expect("text")).collect();
                // The keys are in the order of their limits, those of logs last.
                let mut order: Vec<usize> = (0..self.quotas.len()).collect();
                order.sort_by_key(|limit| self.quotas[*limit].form == Form::SlidingLog);
                let limits = order.iter().flat_map(|limit| std::iter::repeat_n(*limit, input.key_counts[*limit]));
                let keys = limits.zip(names).map(|(limit, name)| self.index_of(limit, name)).collect();
                self.wrong = self.wrong.take().or(input.wrong.clone());
                let run = Run {
                    client: connection.client,
                    call,
                    now: self.time(at),
                    quotas: &self.quotas,
                    keys,
                    id_keys,
                    ignores_releases: self.ignores_releases,
                    executions: &mut self.executions,
                };
                let reply = self.store.run(&input, run);
                let operations: u64 = input.steps.iter().map(|step| u64::from(step.repeats)).sum();
                let late = self.executions[before..].iter().filter(|done| done.verdict == Verdict::Late).count();
                self.busy_until = at + self.link.per_call + self.link.per_operation * (operations - late as u64);
                let (connection, sent_at) = (command.connection, command.written_at);
                self.calls.push(CallRecord {
                    connection,
                    sent_at,
                    ran_at: at,
                    ended_at: self.busy_until,
                    operations,
                    is_repeated,
                    answered_at: None,
                });
                let note =
                    if self.is_traced { self.describe(call, connection, before, operations) } else { String::new() };
                (bulk_string(&reply), Some(call), note)
            }
            _ => panic!("the client sent an unknown command: {}", String::from_utf8_lossy(name)),
        }
    }

    /// Returns the index in the store of a key: see the documentation of `Redis`.
    fn index_of(&mut self, limit: usize, name: &[u8]) -> usize {
        let name = std::str::from_utf8(name).expect("text");
        let number = name.strip_prefix(&self.key_prefixes[limit]).and_then(|number| number.parse().ok());
        if number.is_none() {
            self.wrong = Some(format!("the key {name} of the limit {limit}"));
        }
        self.store.index_of(limit, number.unwrap_or(u64::MAX))
    }

    fn describe(&self, call: usize, connection: usize, before: usize, steps: u64) -> String {
        let decisions: Vec<_> = self.executions[before..]
            .iter()
            .map(|done| format!("{} key {} cost {}: {:?}", done.kind, done.key, done.cost, done.verdict))
            .collect();
        let others = steps - decisions.len() as u64;
        format!("server: call {call} on connection {connection}: [{}] and {others} updates", decisions.join(", "))
    }

    pub(super) fn expire(&mut self, at: u64) {
        let now = self.time(at);
        self.store.expire(&self.quotas, now);
    }

    pub(super) fn take_snapshot(&mut self) {
        self.snapshot = Some(self.store.clone());
    }

    pub(super) fn crash(&mut self, keeps_data: bool, loses_connects: bool) {
        (self.is_down, self.loses_connects, self.has_script) = (true, loses_connects, false);
        self.queue.clear();
        if !keeps_data {
            self.store = Store::default();
            self.has_lost_data = true;
        }
    }

    pub(super) fn restart(&mut self, is_loading: bool) {
        (self.is_down, self.is_loading) = (false, is_loading);
    }

    pub(super) fn begin_fault(&mut self, at: u64, kind: FaultKind, until: u64) {
        match kind {
            FaultKind::Pause => self.paused_until = self.paused_until.max(until),
            FaultKind::FlushScripts => self.has_script = false,
            FaultKind::OutOfMemory => self.is_out_of_memory = true,
            FaultKind::Busy => self.is_busy = true,
            FaultKind::FailOver(_) => {
                self.store = self.snapshot.take().unwrap_or_default();
                (self.master, self.has_script, self.has_lost_data) = (self.master + 1, false, true);
            }
            FaultKind::Foreign(key) => {
                self.store.set_foreign(key, true);
                self.has_lost_data = true;
            }
            FaultKind::ClockStep(millis) => self.step_clock(i64::try_from(millis * 1000).expect("a short time")),
            FaultKind::ClockSlew(percent) => self.set_slew(at, i64::try_from(percent).expect("a small number")),
            other => unreachable!("the network has this fault: {other:?} at {at}"),
        }
    }

    pub(super) fn end_fault(&mut self, at: u64, kind: FaultKind) {
        match kind {
            FaultKind::OutOfMemory => self.is_out_of_memory = false,
            FaultKind::Busy => self.is_busy = false,
            FaultKind::ClockSlew(_) => self.set_slew(at, 0),
            FaultKind::CutInReply(_) => self.cut_in_reply = None,
            FaultKind::Foreign(key) => {
                // On the replica, too: a fail-over would bring the value back, and the fault would not end.
                for store in [Some(&mut self.store), self.snapshot.as_mut()].into_iter().flatten() {
                    store.set_foreign(key, false);
                }
            }
            _ => {}
        }
    }
}
