//! Processes, a server, and a network that loses, repeats and reorders messages.

use stateright::{Model, Property};

use crate::ledger::{Change, LeaseReply, LeaseReport, Ledger};
use crate::mistake::Mistake;
use crate::server::Server;

/// The cost of each decision: the least grant of the server.
pub const COST: u64 = 2;
/// The burst of the bucket, and the time in which one token is refilled.
pub const BURST: u64 = 3 * COST;
pub const EMISSION: u64 = 1;
/// The time of one step.
const TICK: u64 = COST * EMISSION;
/// The units that all leases hold together at most.
pub const MAX_HELD: u64 = 2 * COST;
/// The duration of a lease.
pub const DURATION: u64 = 5 * TICK;
/// By how much the clock of a process may be late within a duration. The margin covers it.
const DRIFT: u64 = 2 * TICK;
const MARGIN: u64 = 2 * TICK;

/// What is explored.
pub struct System {
    pub mistake: Option<Mistake>,
    /// The number of processes with leases.
    pub holders: usize,
    /// The time at which an exploration ends, in ticks.
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
    /// When the last report was sent again: for one mistake only.
    sent_again_at: u64,
    /// A thread that has taken a cost and not read the clock yet: its generation, and the time.
    suspended: Option<(u64, u64)>,
    reports: u64,
    is_dead: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// The numbers of a report, of which the first one is the process.
    Report([u64; 7]),
    Reply {
        holder: usize,
        sequence: u64,
        reply: LeaseReply,
    },
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
    /// A thread takes a cost, and continues with `Continue`.
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

/// The time for which a process spends after a report was sent.
fn usable() -> u64 {
    mistake!(LeaseHasNoMargin, DURATION, DURATION - MARGIN)
}

/// The clock of a process when it spends. It showed the right time when the report was sent, and is late by now. An
/// earlier clock is not worse: the process then stops to spend earlier.
fn clock(now: u64) -> u64 {
    now.saturating_sub(DRIFT)
}

impl State {
    fn admit(&mut self) {
        self.audited = self.audited.max(self.now) + COST * EMISSION;
        self.has_exceeded |= self.audited > self.now + BURST * EMISSION;
    }

    fn send(&mut self, message: Message) {
        if let Err(position) = self.network.binary_search(&message) {
            self.network.insert(position, message);
        }
    }

    fn receive(&mut self, message: &Message, yields: bool) {
        match *message {
            Message::Report(numbers) => {
                let reply = self.server.renew(numbers, self.now, yields);
                self.send(Message::Reply { holder: numbers[0] as usize, sequence: numbers[1], reply });
            }
            Message::Reply { holder, sequence, reply } => {
                let now = clock(self.now);
                let holder = &mut self.holders[holder];
                match holder.ledger.reply(sequence, reply, usable() * mistake!(LeaseIsSpentAfterEnd, 10, 1), now) {
                    None => {}
                    Some(Change::Granted { units, deadline }) => {
                        let counted = mistake!(LeaseCountsFromLastSending, holder.sent_again_at + usable(), 0);
                        holder.deadline = holder.deadline.max(deadline).max(counted);
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

    fn continue_thread(&mut self, index: usize) {
        let now = clock(self.now);
        let holder = &mut self.holders[index];
        let Some((generation, taken_at)) = holder.suspended.take() else { return };
        let is_same = generation == holder.generation || mistake!(GenerationIsNotChecked);
        let read_at = mistake!(ClockIsReadBeforeTaking, clock(taken_at), now);
        let is_in_time = read_at < holder.deadline || mistake!(EndOfLeaseIsNotChecked);
        if is_same && is_in_time {
            self.admit();
        } else if generation == holder.generation {
            holder.remaining += COST;
        }
    }

    /// Returns the state after an action that changes it.
    fn next(&self, action: Action) -> Option<Self> {
        let mut state = self.clone();
        match action {
            Action::Tick => state.now += TICK,
            Action::Decide => {
                if state.server.decide(state.now) {
                    state.admit();
                }
            }
            Action::Take(index) => {
                let now = state.now;
                let holder = &mut state.holders[index];
                holder.remaining -= COST;
                // The time of the subtraction matters for one mistake only.
                let taken_at = mistake!(ClockIsReadBeforeTaking, now, 0);
                holder.suspended = Some((holder.generation, taken_at));
            }
            Action::Continue(index) => state.continue_thread(index),
            Action::Report { holder: index, keep_all, want } => {
                let (now, late) = (state.now, clock(state.now));
                let holder = &mut state.holders[index];
                let has_passed = late >= holder.deadline;
                let keep = if keep_all && !has_passed { holder.remaining } else { 0 };
                let report = holder.ledger.report(holder.remaining, keep, want, now);
                holder.remaining = keep;
                holder.generation += 1;
                holder.reports += 1;
                let LeaseReport { sequence, spent, unconfirmed, keep, want, expiry, .. } = report;
                state.send(Message::Report([index as u64, sequence, spent, unconfirmed, keep, want, expiry]));
            }
            Action::SendAgain(index) => {
                let holder = &mut state.holders[index];
                if holder.ledger.report_again(usable(), state.now).is_some() {
                    holder.sent_again_at = state.now;
                }
            }
            Action::Arrive(message) => {
                if let Message::Reply { holder, .. } = message
                    && state.holders[holder].is_dead
                {
                    return None;
                }
                state.receive(&message, false);
            }
            Action::ArriveYielding(message) => state.receive(&message, true),
            Action::Die(index) => {
                let holder = &mut state.holders[index];
                *holder = Holder { is_dead: true, suspended: None, remaining: 0, ..holder.clone() };
            }
        }
        (state != *self).then_some(state)
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
            sent_again_at: 0,
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
        if state.now < self.end * TICK {
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
            let gives_up = |report: LeaseReport| clock(state.now) >= report.sent_at + usable();
            if pending.is_none_or(gives_up) && holder.reports < self.reports {
                actions.push(Action::Report { holder: index, keep_all: true, want: MAX_HELD });
                if holder.remaining > 0 {
                    actions.push(Action::Report { holder: index, keep_all: false, want: 0 });
                }
            }
            // To send a report again changes something by this mistake only: the network repeats messages by itself.
            if pending.is_some() && self.mistake == Some(Mistake::LeaseCountsFromLastSending) {
                actions.push(Action::SendAgain(index));
            }
            // The other process is the same one.
            if index == 0 {
                actions.push(Action::Die(index));
            }
        }
        actions.extend(state.network.iter().cloned().map(Action::Arrive));
        let is_report = |message: &&Message| matches!(message, Message::Report(_));
        actions.extend(state.network.iter().filter(is_report).cloned().map(Action::ArriveYielding));
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let next = || before.next(action);
        match self.mistake {
            Some(mistake) => mistake.make(next),
            None => next(),
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("within the bound", |_, state: &State| !state.has_exceeded)]
    }
}
