//! Processes, a server, and a network that loses, repeats and reorders messages.

use stateright::{Model, Property};

use crate::bug::Bug;
use crate::ledger::{Change, LeaseReply, LeaseReport, Ledger};
use crate::server::Server;

/// The maximum number of processes with leases.
pub const HOLDERS: usize = 2;
/// The burst of the bucket, and the time in which one token is refilled.
pub const BURST: u64 = 3;
pub const EMISSION: u64 = 1;
/// The units that all leases hold together at most.
pub const MAX_HELD: u64 = 2;
/// The duration of a lease.
pub const DURATION: u64 = 5;
/// By how much the clock of a process may be late within a duration. The margin covers it.
const DRIFT: u64 = 2;
const MARGIN: u64 = 2;

/// What is explored.
pub struct System {
    pub bug: Bug,
    /// The number of processes with leases.
    pub holders: usize,
    /// The time at which an exploration ends.
    pub end: u64,
    /// The number of reports of each process.
    pub reports: u64,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    ledger: Ledger,
    remaining: u64,
    generation: u64,
    deadline: u64,
    /// When the pending report was last sent.
    last_sent: u64,
    /// A thread that has taken a unit and not read the clock yet: its generation, and the time.
    suspended: Option<(u64, u64)>,
    reports: u64,
    is_dead: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    Report { holder: usize, fields: [u64; 7] },
    Reply { holder: usize, sequence: u64, held: u64, expiry: u64, is_expired: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    now: u64,
    server: Server,
    holders: Vec<Holder>,
    /// All messages that were ever sent. Each may arrive at any time, any number of times, or never.
    network: Vec<Message>,
    /// The theoretical arrival time of the auditor's bucket, which sees all admissions.
    audited: u64,
    has_exceeded: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Tick,
    /// A process without a lease asks the server.
    Decide,
    /// A thread takes a unit, and continues with `Continue`.
    Take(usize),
    Continue(usize),
    /// The process reports, keeps all or nothing, and wants all or nothing.
    Report {
        holder: usize,
        keep_all: bool,
        want: u64,
    },
    SendAgain(usize),
    Arrive(Message),
    /// A report arrives while leases must yield, whatever the reason.
    ArriveYielding(Message),
    Die(usize),
}

impl System {
    fn usable(&self) -> u64 {
        if self.bug == Bug::NoMargin { DURATION } else { DURATION - MARGIN }
    }
}

/// The clock of a process when it spends. It showed the right time when the report was sent, and is late by now. An
/// earlier clock is not worse: the process then stops to spend earlier.
fn clock(now: u64) -> u64 {
    now.saturating_sub(DRIFT)
}

impl State {
    fn admit(&mut self) {
        self.audited = self.audited.max(self.now) + EMISSION;
        self.has_exceeded |= self.audited > self.now + BURST * EMISSION;
    }

    fn send(&mut self, message: Message) {
        if let Err(position) = self.network.binary_search(&message) {
            self.network.insert(position, message);
        }
    }

    fn send_report(&mut self, holder: usize, report: &LeaseReport) {
        let LeaseReport { sequence, spent, unconfirmed, keep, want, expiry, sent_at } = *report;
        self.send(Message::Report { holder, fields: [sequence, spent, unconfirmed, keep, want, expiry, sent_at] });
    }

    fn receive(&mut self, system: &System, message: &Message, yields: bool) {
        match *message {
            Message::Report { holder, fields: [sequence, spent, unconfirmed, keep, want, expiry, sent_at] } => {
                let report = LeaseReport { sequence, spent, unconfirmed, keep, want, expiry, sent_at };
                let reply = self.server.renew(holder, &report, self.now, yields, system.bug);
                let (held, expiry, is_expired) = match reply {
                    LeaseReply::Applied { held, expiry } => (held, expiry, false),
                    LeaseReply::Expired | LeaseReply::Refused => (0, 0, true),
                };
                self.send(Message::Reply { holder, sequence, held, expiry, is_expired });
            }
            Message::Reply { holder, sequence, held, expiry, is_expired } => {
                let now = clock(self.now);
                let holder = &mut self.holders[holder];
                let reply = if is_expired { LeaseReply::Expired } else { LeaseReply::Applied { held, expiry } };
                match holder.ledger.reply(sequence, reply, system.usable(), now) {
                    None => {}
                    Some(Change::Granted { units, deadline }) => {
                        let from_last = holder.last_sent + system.usable();
                        let is_late = system.bug == Bug::DeadlineFromLastSending;
                        holder.deadline = holder.deadline.max(if is_late { from_last } else { deadline });
                        holder.remaining += units;
                    }
                    Some(Change::Stop) => {
                        holder.ledger.stop(holder.remaining);
                        (holder.remaining, holder.generation) = (0, holder.generation + 1);
                    }
                    Some(Change::Lost) => (holder.remaining, holder.generation) = (0, holder.generation + 1),
                }
            }
        }
    }

    fn continue_thread(&mut self, system: &System, index: usize) {
        let now = clock(self.now);
        let holder = &mut self.holders[index];
        let Some((generation, taken_at)) = holder.suspended.take() else { return };
        let is_same = generation == holder.generation || system.bug == Bug::GenerationUnchecked;
        let read_at = if system.bug == Bug::ClockBeforeSpending { clock(taken_at) } else { now };
        let is_in_time = read_at < holder.deadline || system.bug == Bug::DeadlineUnchecked;
        if is_same && is_in_time {
            self.admit();
        } else if generation == holder.generation {
            holder.remaining += 1;
        }
    }
}

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let holder = Holder {
            ledger: Ledger::default(),
            remaining: 0,
            generation: 0,
            deadline: 0,
            last_sent: 0,
            suspended: None,
            reports: 0,
            is_dead: false,
        };
        let now = DURATION;
        vec![State {
            now,
            server: Server::default(),
            holders: vec![holder; self.holders],
            network: Vec::new(),
            audited: 0,
            has_exceeded: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.has_exceeded {
            return;
        }
        if state.now < self.end {
            actions.push(Action::Tick);
        }
        actions.push(Action::Decide);
        for (index, holder) in state.holders.iter().enumerate().filter(|(_, holder)| !holder.is_dead) {
            if holder.suspended.is_some() {
                actions.push(Action::Continue(index));
            } else if holder.remaining > 0 {
                actions.push(Action::Take(index));
            }
            let pending = holder.ledger.pending();
            let gives_up = |report: LeaseReport| clock(state.now) >= report.sent_at + self.usable();
            if pending.is_none_or(gives_up) && holder.reports < self.reports {
                actions.push(Action::Report { holder: index, keep_all: true, want: MAX_HELD });
                if holder.remaining > 0 {
                    actions.push(Action::Report { holder: index, keep_all: false, want: 0 });
                }
            }
            // To send a report again changes only this bug's deadline: the network repeats messages by itself.
            if pending.is_some() && self.bug == Bug::DeadlineFromLastSending && holder.last_sent < state.now {
                actions.push(Action::SendAgain(index));
            }
            // The other process is the same one.
            if index == 0 {
                actions.push(Action::Die(index));
            }
        }
        actions.extend(state.network.iter().cloned().map(Action::Arrive));
        let is_report = |message: &&Message| matches!(message, Message::Report { .. });
        actions.extend(state.network.iter().filter(is_report).cloned().map(Action::ArriveYielding));
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Tick => state.now += 1,
            Action::Decide => {
                if state.server.decide(state.now, self.bug) {
                    state.admit();
                }
            }
            Action::Take(index) => {
                let now = state.now;
                let holder = &mut state.holders[index];
                holder.remaining -= 1;
                // The time of the subtraction matters for one bug only.
                let taken_at = if self.bug == Bug::ClockBeforeSpending { now } else { 0 };
                holder.suspended = Some((holder.generation, taken_at));
            }
            Action::Continue(index) => state.continue_thread(self, index),
            Action::Report { holder: index, keep_all, want } => {
                let (now, late) = (state.now, clock(state.now));
                let holder = &mut state.holders[index];
                let has_passed = late >= holder.deadline;
                let keep = if keep_all && !has_passed { holder.remaining } else { 0 };
                let report = holder.ledger.report(holder.remaining, keep, want, now);
                holder.remaining = keep;
                holder.generation += 1;
                holder.reports += 1;
                holder.last_sent = now;
                state.send_report(index, &report);
            }
            Action::SendAgain(index) => state.holders[index].last_sent = state.now,
            Action::Arrive(message) => {
                if let Message::Reply { holder, .. } = message
                    && state.holders[holder].is_dead
                {
                    return None;
                }
                state.receive(self, &message, false);
            }
            Action::ArriveYielding(message) => state.receive(self, &message, true),
            Action::Die(index) => {
                let holder = &mut state.holders[index];
                *holder = Holder { is_dead: true, suspended: None, remaining: 0, ..holder.clone() };
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("within the bound", |_, state: &State| !state.has_exceeded)]
    }
}
