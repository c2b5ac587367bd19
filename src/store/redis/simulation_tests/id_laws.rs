//! Requests and holds with ids: clients send them again, settle them late and elsewhere, or die before they do.

use std::collections::BTreeMap;
use std::time::Duration;

use super::callers::{Answer, Observed};
use super::laws::Broken;
use super::model::Verdict;
use super::scenario::{Call, Kind, LeaseEnd, Scenario};
use crate::AcquireOptions;
use crate::random::Random;

/// For how long the ids of requests are remembered, and how many repeats pass or hold: all of a scenario.
const REMEMBER: Duration = Duration::from_secs(60 * 60);
const REPEATS: u16 = 100;

pub(super) fn text(id: u64) -> String {
    mistake!(IdsAreOne, 0, id).to_string()
}

pub(super) fn request(cost: u64, id: u64) -> AcquireOptions {
    AcquireOptions::cost(cost).once(&text(id), REPEATS, REMEMBER)
}

/// The time until a hold expires. A simulation goes on for longer after its last call.
const LIFETIME: Duration = Duration::from_millis(150);

pub(super) fn reservation(cost: u64, id: u64) -> AcquireOptions {
    AcquireOptions::cost(cost).id(&text(id)).repeats(REPEATS).expires_in(LIFETIME).hold()
}

/// In the error of a settlement whose id is not remembered.
const UNKNOWN: &str = "unknown id";

impl Scenario {
    /// The faults of a seed, with calls that have ids. Any client sends a call again, or settles it.
    pub(super) fn with_ids(seed: u64) -> Self {
        let (mut scenario, mut random) = (Self::new(seed), Random::new(seed ^ 0x1d5));
        (scenario.lease, scenario.lease_end) = (None, LeaseEnd::Idle);
        let span = scenario.calls.last().map_or(100, |call| call.at).min(3_000);
        scenario.calls.clear();
        // On a key of their own.
        scenario.add_calls_after_faults(span, &mut random);
        for id in 0..random.between(4, 20) {
            let (cost, key, is_hold) = (random.between(1, 6), random.below(Self::KEYS), random.percent(40));
            let (greater, actual) = (cost + random.below(3), random.below(2 * cost));
            for _ in 0..random.between(1, 6) {
                let kind = match (is_hold, random.percent(60)) {
                    (false, _) => Kind::Once(id),
                    (true, true) => Kind::Reserve(id),
                    (true, false) => Kind::SettleId(id, actual),
                };
                let cost = if !is_hold && random.percent(30) { greater } else { cost };
                let at = random.below(span + 1);
                scenario.calls.push(Call {
                    client: random.index(scenario.clients),
                    key,
                    kind,
                    leaves_after: random.percent(10).then(|| random.below(scenario.deadline)),
                    yields: random.below(3),
                    ..Call::decision(at, cost)
                });
            }
        }
        scenario.calls.sort_by_key(|call| call.at);
        scenario
    }
}

/// An id: its key, and how much it may be charged at most and at least.
#[derive(Default)]
struct Bounds {
    key: u64,
    most: u64,
    least: u64,
    is_held: bool,
    is_settled: bool,
}

impl Bounds {
    fn add(&mut self, call: &Observed) {
        let is_allowed = matches!(call.answer, Answer::Decided(Verdict::Allowed, _));
        match call.call.kind {
            Kind::Once(_) => {
                self.most = self.most.max(call.call.cost);
                if is_allowed {
                    self.least = self.least.max(call.call.cost);
                }
            }
            Kind::Reserve(_) => {
                self.most = self.most.max(call.call.cost);
                self.is_held |= is_allowed;
            }
            Kind::SettleId(_, actual) => {
                self.most = self.most.max(actual);
                self.is_settled |= matches!(call.answer, Answer::Settled);
                self.least = if self.is_settled { actual.min(self.least.max(actual)) } else { 0 };
            }
            _ => unreachable!("a call with an id"),
        }
    }
}

impl Broken<'_> {
    /// While an id is remembered and no data is lost, nothing is charged twice for it. A request that passed is charged.
    pub(super) fn ids_are_charged_once(&mut self) {
        let run = self.run;
        if run.has_lost_data {
            return;
        }
        let mut ids: BTreeMap<u64, Bounds> = BTreeMap::new();
        for call in &run.observed {
            if let Kind::Once(id) | Kind::Reserve(id) | Kind::SettleId(id, _) = call.call.kind {
                let bounds = ids.entry(id).or_default();
                bounds.key = call.call.key;
                bounds.add(call);
            }
        }
        for key in 0..Scenario::KEYS {
            let of_key = || ids.values().filter(|bounds| bounds.key == key);
            let charged = run.store.charged.get(&key).copied().unwrap_or(0);
            // A hold whose id is forgotten can be held again, and charged again.
            let holds_again = of_key().any(|bounds| bounds.is_held || bounds.is_settled);
            let most: u64 = of_key().map(|bounds| bounds.most).sum();
            if charged > most && !(holds_again && self.forgets_ids()) {
                self.report("no id is charged twice", || format!("key {key}: {charged} charged of at most {most}"));
            }
            let least: u64 = of_key().map(|bounds| bounds.least).sum();
            if charged < least {
                self.report("ids are charged", || format!("key {key}: {charged} charged of at least {least}"));
            }
        }
    }

    /// While a hold is remembered, and no data is lost, any client can settle it.
    pub(super) fn remembered_holds_can_be_settled(&mut self) {
        let run = self.run;
        let is_unknown = |call: &&Observed| matches!(&call.answer, Answer::Failed(error) if error.contains(UNKNOWN));
        for settlement in run.observed.iter().filter(is_unknown).filter(|_| !run.has_lost_data) {
            let Kind::SettleId(id, _) = settlement.call.kind else { continue };
            let holds = || run.observed.iter().filter(|call| call.call.kind == Kind::Reserve(id));
            let first = holds().map(|call| call.asked_at).min().unwrap_or(0);
            let was_held = holds().any(|call| {
                matches!(call.answer, Answer::Decided(Verdict::Allowed, _)) && call.ended_at < settlement.asked_at
            });
            if was_held && !self.outlives_ids(first, settlement.ended_at) {
                self.report("a remembered hold can be settled", || format!("{settlement:?}"));
            }
        }
    }

    /// Whether the calls last longer than the ids of holds are remembered.
    fn forgets_ids(&self) -> bool {
        let calls = self.run.observed.iter().filter(|call| matches!(call.call.kind, Kind::Reserve(_)));
        let (first, last) =
            calls.fold((u64::MAX, 0), |(first, last), call| (first.min(call.asked_at), last.max(call.ended_at)));
        self.outlives_ids(first, last)
    }

    /// Whether more time passes on the server's clock than the ids of holds are remembered.
    fn outlives_ids(&self, from: u64, until: u64) -> bool {
        let [from, until] = [from, until].map(|at| self.run.scenario.server_time(at));
        u128::from(until.saturating_sub(from)) >= 2 * LIFETIME.as_micros()
    }
}

/// A law about what never happens proves nothing.
#[test]
fn idempotency_and_reservation_id_seeds_reach_repeats_and_late_settlements() {
    let (mut repeats, mut holds, mut settled, mut unknown, mut lost) = (0, 0, 0, 0, 0);
    for seed in 0..150 {
        let run = super::run_scenario(Scenario::with_ids(seed), false);
        repeats += run.executions.iter().filter(|done| done.kind == "once" && done.cost == 0).count();
        holds +=
            run.executions.iter().filter(|done| done.kind == "reserve" && done.verdict == Verdict::Allowed).count();
        for call in &run.observed {
            settled += usize::from(matches!(call.answer, Answer::Settled));
            unknown += usize::from(matches!(&call.answer, Answer::Failed(error) if error.contains(UNKNOWN)));
            lost += usize::from(matches!(&call.answer, Answer::Failed(error) if error.contains("deadline")));
        }
    }
    println!("{repeats} repeats, {holds} holds, {settled} settlements, {unknown} unknown ids, {lost} without a reply");
    assert!(repeats > 300 && holds > 100 && settled > 100 && unknown > 20 && lost > 100);
}
