//! The laws that every simulation must obey.

use std::collections::{BTreeMap, HashSet};

use super::Run;
use super::callers::{Answer, Observed};
use super::model::{Execution, Verdict};
use super::scenario::{Fault, FaultKind, HoldEnd, Kind, LeaseEnd};
use super::server::CallRecord;
use super::world::World;

/// The calls that look the same in the server's log: client, key, kind and cost.
type Class = (usize, u64, &'static str, u64);

/// The broken laws.
pub(super) struct Broken<'a> {
    pub(super) run: &'a Run,
    found: Vec<String>,
}

/// Returns the broken laws.
pub(super) fn check(run: &Run) -> Vec<String> {
    let mut broken = Broken { run, found: Vec::new() };
    if let Some(wrong) = &run.wrong {
        broken.report("each call has the parameters and keys of its limits", || wrong.clone());
    }
    broken.every_call_ends_by_its_deadline();
    let mut classes: BTreeMap<Class, (Vec<&Observed>, Vec<&Execution>)> = BTreeMap::new();
    for observed in &run.observed {
        let call = observed.call;
        classes.entry((call.client, call.key, call.kind.name(), call.cost)).or_default().0.push(observed);
    }
    for execution in &run.executions {
        let class = (execution.client, execution.key, execution.kind, execution.cost);
        classes.entry(class).or_default().1.push(execution);
    }
    for (class, (observed, executions)) in &classes {
        broken.at_most_once(*class, observed, executions);
        broken.answers_are_those_of_the_server(*class, observed, executions);
        broken.timely_replies_are_answers(*class, observed, executions);
        broken.nothing_is_sent_without_a_caller(*class, observed, executions);
    }
    broken.lost_charges_are_under_way_at_a_fault();
    broken.only_calls_at_a_cut_fail();
    broken.holds_are_charged_once();
    broken.held_costs_have_guards();
    broken.leases_keep_the_limits();
    broken.leases_are_charged_once();
    broken.closed_limiters_hold_no_leases();
    broken.undisturbed_leases_are_released();
    broken.decisions_are_answered_after_recovery();
    broken.circuit_breakers_close();
    broken.attempts_to_connect_have_pauses();
    broken.nothing_leaks();
    broken.found
}

/// Returns the broken laws of calls with ids.
pub(super) fn check_ids(run: &Run) -> Vec<String> {
    let mut broken = Broken { run, found: Vec::new() };
    if let Some(wrong) = &run.wrong {
        broken.report("each call has the parameters and keys of its limits", || wrong.clone());
    }
    broken.every_call_ends_by_its_deadline();
    broken.ids_are_charged_once();
    broken.remembered_holds_can_be_settled();
    broken.nothing_leaks();
    broken.found
}

impl Broken<'_> {
    pub(super) fn report(&mut self, law: &str, detail: impl FnOnce() -> String) {
        self.found.push(format!("{law}: {}", detail()));
    }

    /// A caller is answered by its deadline, or when its thread runs again.
    fn every_call_ends_by_its_deadline(&mut self) {
        let run = self.run;
        let deadline = run.scenario.deadline * 1000;
        let allowed = |from: u64| {
            let due = from + deadline;
            run.stalls
                .iter()
                .filter(|(from, until)| (*from..*until).contains(&due))
                .map(|stall| stall.1)
                .fold(due, u64::max)
        };
        for observed in &run.observed {
            let settled = observed.settled.iter().map(|&(from, until)| ("settlement", from, until));
            for (what, from, until) in settled.chain([("call", observed.asked_at, observed.ended_at)]) {
                if until > allowed(from) {
                    self.report("every call ends by its deadline", || {
                        format!("{what} {} took {} us of {deadline} us", observed.index, until - from)
                    });
                }
            }
            if let Answer::Failed(error) = &observed.answer
                && (error.contains("worker task ended") || error.contains("panicked"))
            {
                self.report("no task ends while the limiter lives", || error.clone());
            }
        }
        if run.observed.len() != run.scenario.calls.len() {
            self.report("every call ends", || format!("{} of {}", run.observed.len(), run.scenario.calls.len()));
        }
    }

    /// The server runs each decision at most once, and none that failed with a promise that nothing is charged.
    fn at_most_once(&mut self, class: Class, observed: &[&Observed], executions: &[&Execution]) {
        // A hold is sent again in a new session, and a decision that was late by the server's clock once more.
        let runs = executions.iter().filter(|done| !matches!(done.verdict, Verdict::Expired | Verdict::Late)).count();
        let count = |verdict| executions.iter().filter(|done| done.verdict == verdict).count();
        // A hold in a new session is another decision: it may be late, too.
        let (late, asked) = (count(Verdict::Late), observed.len() + count(Verdict::Expired));
        if late > asked {
            self.report("a decision is asked once more at most", || format!("{class:?}: {late} of {asked}"));
        }
        if runs > observed.len() {
            self.report("no decision runs twice", || format!("{class:?}: {} calls, {runs} runs", observed.len()));
        }
        let charged = charged(executions).count();
        let uncharged = observed.iter().filter(|call| promises_no_charge(call)).count();
        if charged + uncharged > observed.len() {
            self.report("a failure that promises no charge charges nothing", || {
                format!("{class:?}: {} calls, {charged} charges, {uncharged} promises", observed.len())
            });
        }
    }

    /// Each answer is one that the server gave.
    fn answers_are_those_of_the_server(&mut self, class: Class, observed: &[&Observed], executions: &[&Execution]) {
        let with_remaining = self.run.scenario.quotas.len() == 1;
        let answer = |verdict, remaining| (verdict, if with_remaining { remaining } else { 0 });
        let mut given: Vec<_> =
            executions.iter().map(|execution| answer(execution.verdict, execution.remaining)).collect();
        for call in observed {
            let Answer::Decided(verdict, remaining) = call.answer else { continue };
            let own = answer(verdict, remaining);
            match given.iter().position(|given| *given == own) {
                Some(index) => drop(given.swap_remove(index)),
                None => self.report("each answer is one of the server", || {
                    format!("{class:?}: call {} got {own:?}; the server's are {given:?}", call.index)
                }),
            }
        }
    }

    /// If the whole reply reaches the client before the caller's deadline, the caller gets it.
    fn timely_replies_are_answers(&mut self, class: Class, observed: &[&Observed], executions: &[&Execution]) {
        let ([call], true) = (observed, self.run.scenario.has_unique_costs) else { return };
        let Some(execution) = executions.iter().find(|execution| is_decided(execution)) else { return };
        let Some(answered_at) = self.run.calls[execution.call].answered_at else { return };
        let due = call.asked_at + self.run.scenario.deadline * 1000;
        if answered_at < due && matches!(call.answer, Answer::Failed(_)) {
            self.report("a reply before the deadline is an answer", || {
                format!("{class:?}: the reply came at {answered_at} us: {call:?}")
            });
        }
    }

    /// A decision is sent while its caller waits, and runs while a reply can still reach its caller.
    fn nothing_is_sent_without_a_caller(&mut self, class: Class, observed: &[&Observed], executions: &[&Execution]) {
        let ([caller], true) = (observed, self.run.scenario.has_unique_costs) else { return };
        for execution in executions {
            let call = self.run.calls[execution.call];
            if call.sent_at > caller.ended_at && !call.is_repeated {
                self.report("nothing is sent after its caller has gone", || format!("{class:?}: {call:?}, {caller:?}"));
            }
            if execution.verdict == Verdict::Allowed
                && call.ran_at > caller.asked_at + self.run.scenario.deadline * 1000
                && self.knows_the_clock(call)
                && executions.iter().all(|other| other.verdict != Verdict::Late)
                // The latest time is that of the first sending, when the link may not have been known.
                && !call.is_repeated
                && call.ran_at > self.latest_due(execution.call)
            {
                self.report("nothing runs after its caller's deadline", || format!("{class:?}: {call:?}, {caller:?}"));
            }
        }
    }

    /// Whether an earlier call on the connection had been answered shortly before this one was sent, so that the client knows
    /// how long a reply takes, and the server's clock; and no other decision was asked once more, perhaps in the same call.
    fn knows_the_clock(&self, call: CallRecord) -> bool {
        let is_recent = |at: u64| at < call.sent_at && at + 3 * self.run.scenario.deadline * 1000 > call.sent_at;
        let is_earlier =
            |other: &CallRecord| other.connection == call.connection && other.answered_at.is_some_and(is_recent);
        !self.run.scenario.has_clock_fault() && self.run.calls.iter().any(is_earlier)
    }

    /// The latest deadline of a call's decisions.
    fn latest_due(&self, call: usize) -> u64 {
        let decisions = self.run.executions.iter().filter(|done| done.call == call);
        let asked = decisions.filter_map(|done| {
            let is_same = |observed: &&Observed| {
                let call = observed.call;
                (call.client, call.key, call.cost, call.kind.name()) == (done.client, done.key, done.cost, done.kind)
            };
            Some(self.run.observed.iter().find(is_same)?.asked_at)
        });
        asked.max().unwrap_or(0) + self.run.scenario.deadline * 1000
    }

    /// If connections are cut and nothing else happens, only the calls of one deadline around the cut fail.
    fn only_calls_at_a_cut_fail(&mut self) {
        let run = self.run;
        if !self.has_only_cuts() {
            return;
        }
        let deadline = run.scenario.deadline * 1000;
        let is_near = |call: &Observed, cut: u64| call.asked_at <= cut + deadline && call.ended_at >= cut;
        for call in run.observed.iter().filter(|call| matches!(call.answer, Answer::Failed(_))) {
            if !run.cuts.iter().any(|cut| is_near(call, *cut)) {
                self.report("only calls at a cut fail", || format!("cuts {:?}: {call:?}", run.cuts));
            }
        }
    }

    /// Whether connections are cut and nothing else happens, on a fast link to a fast server.
    fn has_only_cuts(&self) -> bool {
        let is_cut = |fault: &Fault| {
            matches!(
                fault.kind,
                FaultKind::Cut(_) | FaultKind::CutInRequest(_) | FaultKind::CutInReply(_) | FaultKind::FlushScripts
            )
        };
        self.run.scenario.faults.iter().all(is_cut) && self.run.scenario.is_fast()
    }

    /// Charges without an answer were under way at a fault: on each connection they were sent within one deadline.
    fn lost_charges_are_under_way_at_a_fault(&mut self) {
        let run = self.run;
        let deadline = run.scenario.deadline * 1000;
        let mut lost: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        // In the order of the calls.
        for done in run.executions.iter().filter(|done| done.verdict == Verdict::Allowed) {
            let call = run.calls[done.call];
            // A call that was sent again has had a reply: that the server lacks the script.
            if call.answered_at.is_none() && !call.is_repeated {
                lost.entry(call.connection).or_default().push(done.call);
            }
        }
        for (connection, calls) in lost {
            let sent = |call: &usize| run.calls[*call].sent_at;
            let (first, last) = (sent(&calls[0]), sent(&calls[calls.len() - 1]));
            let stalled: u64 = run.stalls.iter().map(|(from, until)| until - from).sum();
            if last - first > deadline + stalled {
                self.report("lost charges were sent within one deadline", || {
                    format!("connection {connection}: from {first} us to {last} us, deadline {deadline} us")
                });
            }
        }
        if run.scenario.faults.iter().all(|fault| fault.kind.is_of_clock()) && run.scenario.is_fast() {
            for call in run.observed.iter().filter(|call| matches!(call.answer, Answer::Failed(_))) {
                self.report("without a fault all decisions are answered", || format!("{call:?}"));
            }
        }
    }

    /// A hold charges its actual cost, once. If its session expires, Redis charges the held cost, and the process only
    /// what exceeds it.
    fn holds_are_charged_once(&mut self) {
        let run = self.run;
        let (mut bounds, mut exact) = (BTreeMap::new(), BTreeMap::new());
        if !run.scenario.has_unique_costs {
            return;
        }
        let granted = run.executions.iter().filter(|done| done.kind == "hold" && done.verdict == Verdict::Allowed);
        for hold in granted {
            let call = run.observed.iter().find(|call| {
                (call.call.client, call.call.key, call.call.cost) == (hold.client, hold.key, hold.cost)
                    && matches!(call.call.kind, Kind::Hold(..))
            });
            let Some(call) = call else { continue };
            let Kind::Hold(_, end) = call.call.kind else { continue };
            let actual = match (call.settled, end) {
                (None, _) | (_, HoldEnd::Release) => 0,
                (_, HoldEnd::Settle(actual) | HoldEnd::SettleAndLeave(actual)) => actual,
                (_, HoldEnd::DropGuard) => hold.cost,
            };
            let owner = (hold.client, hold.key);
            let (least, most) = bounds.entry(owner).or_insert((0, 0));
            *least += actual.min(hold.cost);
            *most += actual.max(hold.cost);
            *exact.entry(owner).or_insert(0) += actual;
        }
        for (owner, charged) in &run.store.settled {
            let most = bounds.get(owner).map_or(0, |bounds| bounds.1);
            if *charged > most {
                self.report("no hold is charged twice", || format!("{owner:?}: {charged} charged of at most {most}"));
            }
        }
        if run.has_lost_data {
            return;
        }
        for (owner, (least, _)) in bounds {
            let charged = run.store.settled.get(&owner).copied().unwrap_or(0);
            let has_expired = run.store.expired.contains_key(&(owner.0, 0, owner.1));
            let actual = exact[&owner];
            if !has_expired && charged != actual || charged < least {
                self.report("settlements are charged", || {
                    format!("{owner:?}: {charged} charged of {actual}, expired: {has_expired}")
                });
            }
        }
        // A limiter that is dropped while a caller leaves does not get the grant.
        if self.has_only_cuts() && run.scenario.lease_end != LeaseEnd::Dropped {
            for expired in run.store.expired.keys() {
                self.report("a cut lets no hold expire", || format!("{expired:?}"));
            }
        }
    }

    /// Once all clients reach the server, it holds what the guards hold, whatever replies were lost.
    fn held_costs_have_guards(&mut self) {
        let run = self.run;
        let (Some(held), Some(until)) = (run.held, run.scenario.guards_until) else { return };
        let live = run.observed.iter().filter(|call| call.settled.is_some_and(|(from, _)| from > until * 1000));
        let costs: u64 = live.map(|call| call.call.cost).sum::<u64>() * run.scenario.quotas.len() as u64;
        let is_whole = !run.has_lost_data && run.store.expired.is_empty();
        if held > costs || is_whole && held < costs {
            self.report("held costs have guards", || format!("{held} held, {costs} of guards"));
        }
    }

    /// A client that cannot connect pauses before the next attempt.
    fn attempts_to_connect_have_pauses(&mut self) {
        if self.run.connects > World::MAX_CONNECTS {
            self.report("attempts to connect have pauses", || format!("{} attempts", self.run.connects));
        }
    }

    /// Some time after the last fault all decisions are answered, if the server is fast enough: in the same deadline it
    /// may have another decision to make, and settlements of two clients, which are two operations each.
    fn decisions_are_answered_after_recovery(&mut self) {
        let scenario = &self.run.scenario;
        if 6 * scenario.link.per_operation > scenario.deadline * 1000 {
            return;
        }
        // The first decision of a client may need a connection: two round trips to open it, and its own.
        let opens_in_time = 6 * (scenario.link.delay + scenario.link.jitter) <= scenario.deadline * 1000;
        let mut clients = HashSet::new();
        for call in self.run.observed.iter().filter(|call| call.call.is_after_recovery) {
            let is_first = clients.insert(call.call.client);
            if is_first && !opens_in_time {
                continue;
            }
            if !matches!(call.answer, Answer::Decided(..) | Answer::Leased) {
                self.report("decisions are answered after the recovery", || format!("{call:?}"));
            }
        }
    }

    /// A circuit breaker opens after three failures in succession, not after one cut or one fail-over, and closes again.
    fn circuit_breakers_close(&mut self) {
        let run = self.run;
        let faults = &run.scenario.faults;
        let is_fail_over = matches!(faults[..], [Fault { kind: FaultKind::FailOver(_), .. }]) && run.scenario.is_fast();
        if (is_fail_over || faults.len() < 3 && self.has_only_cuts()) && !run.breakers.is_empty() {
            self.report("one cut or fail-over opens no circuit breaker", || format!("{:?}", run.breakers));
        }
        for client in 0..run.scenario.clients {
            let events = run.breakers.iter().filter(|event| event.0 == client).map(|event| event.1);
            let mut is_open = false;
            for opens in events {
                if opens == is_open {
                    self.report("a circuit breaker opens and closes in turn", || format!("client {client}"));
                }
                is_open = opens;
            }
            // A dropped limiter may have no time to find the server available again.
            if is_open && run.scenario.lease_end != LeaseEnd::Dropped {
                self.report("circuit breakers close", || format!("the breaker of client {client} is open"));
            }
        }
    }

    /// A limiter without calls has its worker, and the tasks of two connections. A dropped one has nothing.
    fn nothing_leaks(&mut self) {
        let run = self.run;
        let left = run.leftovers.clone();
        let clients = run.scenario.clients;
        if left.idle_tasks > 3 * clients || left.idle_connections > 2 * clients {
            self.report("an idle limiter has no tasks but its own", || format!("{left:?}"));
        }
        let holds_foreign = run.scenario.faults.iter().any(|fault| matches!(fault.kind, FaultKind::Foreign(_)));
        if left.tasks > 0 || left.connections > 0 || left.observers > 0 {
            self.report("a dropped limiter leaves nothing", || format!("{left:?}"));
        }
        if left.held > 0 && !holds_foreign {
            self.report("settled holds end", || format!("{left:?}"));
        }
    }
}

fn charged<'a>(executions: &'a [&Execution]) -> impl Iterator<Item = &'a &'a Execution> {
    executions.iter().filter(|execution| execution.verdict == Verdict::Allowed)
}

fn is_decided(execution: &Execution) -> bool {
    matches!(execution.verdict, Verdict::Allowed | Verdict::Denied(_) | Verdict::ExceedsLimit)
}

/// Whether the caller's error says that nothing is charged.
fn promises_no_charge(call: &Observed) -> bool {
    let Answer::Failed(error) = &call.answer else { return false };
    let promises = [
        "nothing is charged",
        "circuit breaker open",
        "connecting to Redis",
        "loading its data",
        "out of memory",
        "read-only replica",
        "busy running another script",
    ];
    promises.iter().any(|promise| error.contains(promise))
}
