//! Requests and holds with ids: clients send them again, settle them late and elsewhere, or die before they do.

use std::collections::BTreeMap;
use std::time::Duration;

use super::callers::{Answer, Observed};
use super::laws::Broken;
use super::model::{Part, Run, Store, Verdict};
use super::random::Random;
use super::scenario::{Call, Kind, LeaseEnd, Scenario};
use super::sessions::Session;
use super::wire::{BatchReply, CONFLICT, Input, REPEATED, Step, Template, UNKNOWN_ID, to_f64};
use crate::AcquireOptions;

/// What the server remembers of an id.
#[derive(Clone)]
pub(super) struct Record {
    forgotten_at: u64,
    /// The repeats of a request that pass; of a hold the id of its group.
    word: f64,
    is_settled: bool,
    costs: Vec<u64>,
}

impl Record {
    /// Returns a time as Redis rounds it up, and its step.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of some seconds")]
    fn round(now: u64, lifetime: f64) -> (u64, u64) {
        let (mut step, lifetime) = (1000, lifetime as u64);
        while step * 16 < lifetime {
            step *= 2;
        }
        ((now + lifetime).next_multiple_of(step), lifetime.next_multiple_of(step))
    }
}

/// The name of the record that a template names.
fn record_of<'a>(template: &Template, limits: usize, run: &Run<'a>) -> &'a str {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the number of a key")]
    let number = template.ids[limits] as usize;
    run.id_keys[number - 1]
}

impl Store {
    fn remembered(&mut self, name: &str, now: u64) -> Option<&mut Record> {
        self.records.get_mut(name).filter(|record| record.forgotten_at > now)
    }

    /// Returns the results of a decision whose id is remembered, unless it must be made.
    pub(super) fn find_id(&mut self, template: &Template, parts: &[Part], run: &Run<'_>) -> Option<Vec<f64>> {
        let limits = parts.len();
        let name = record_of(template, limits, run);
        let failed = Some(vec![CONFLICT; limits + 1]);
        let record = self.remembered(name, run.now);
        if template.operation == Input::RESERVE {
            let record = record?;
            if parts.iter().zip(&record.costs).any(|(part, cost)| part.cost != *cost) {
                return failed;
            }
            return Some([vec![0.0; limits], vec![REPEATED + 1.0]].concat());
        }
        let credits = &template.ids[limits + 5..];
        let record = record.filter(|record| record.word > 0.0);
        match record {
            None if credits[0] < 0.0 => None,
            None => failed,
            Some(record) => {
                let charged: Vec<f64> = record.costs.iter().copied().map(to_f64).collect();
                if credits[0] < 0.0 {
                    return Some([charged, vec![REPEATED + 1.0]].concat());
                }
                if charged == credits { None } else { failed }
            }
        }
    }

    /// Records an allowed decision with an id: holds its costs, or counts it.
    pub(super) fn record_id(&mut self, template: &Template, parts: &[Part], run: &Run<'_>) {
        let limits = parts.len();
        let name = record_of(template, limits, run);
        let (until, span) = Record::round(run.now, template.ids[limits + 2]);
        if template.operation == Input::ONCE {
            let repeats = template.ids[limits + 4];
            match self.remembered(name, run.now) {
                None => {
                    let costs = parts.iter().map(|part| part.cost).collect();
                    let record = Record { forgotten_at: until, word: repeats, is_settled: true, costs };
                    self.records.insert(name.to_owned(), record);
                }
                Some(record) if record.word > 0.0 => {
                    record.word -= 1.0;
                    record.costs.iter_mut().zip(parts).for_each(|(cost, part)| *cost += part.cost);
                }
                Some(_) => {}
            }
            return;
        }
        let group = to_f64(until) + 0.5;
        for part in parts {
            let key = &mut self.keys[part.key];
            if key.session(group).is_none() {
                key.sessions.push(Session::of_group(group, key.number, until));
            }
            key.session(group).expect("added").held += part.cost;
        }
        let costs = parts.iter().map(|part| part.cost).collect();
        let record = Record { forgotten_at: until + span, word: group, is_settled: false, costs };
        self.records.insert(name.to_owned(), record);
    }

    /// Settles a hold by its id.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small cost")]
    pub(super) fn settle_id(&mut self, template: &Template, step: &Step, run: &Run<'_>, reply: &mut BatchReply) {
        let indices: Vec<usize> = step.keys.iter().flatten().copied().collect();
        let limits = indices.len();
        if indices.iter().any(|index| self.keys[run.keys[*index]].is_foreign) {
            reply.results.extend(vec![super::wire::INVALID_STATE; 2 * limits]);
            return;
        }
        indices.iter().for_each(|index| self.prepare(run, *index, reply));
        let name = record_of(template, limits, run);
        let Some(record) = self.remembered(name, run.now) else {
            reply.results.extend(vec![UNKNOWN_ID; 2 * limits]);
            return;
        };
        let known = record.clone();
        record.is_settled = true;
        for (limit, index) in indices.iter().enumerate() {
            let (key, held, mut actual) = (run.keys[*index], known.costs[limit], template.ids[limit] as u64);
            if known.is_settled {
                reply.results.extend([0.0, 0.0]);
                continue;
            }
            let mut released = 0;
            if let Some(group) = self.keys[key].session(known.word) {
                released = held.min(group.held);
                group.held -= released;
                self.keys[key].sessions.retain(|session| !session.is_empty_group());
            } else {
                actual = actual.saturating_sub(held);
            }
            if actual > 0 {
                let quota = &run.quotas[self.keys[key].limit];
                self.keys[key].usage.charge(quota, run.now, actual);
                self.count_charge(key, actual);
            }
            reply.results.extend([to_f64(released), to_f64(actual)]);
        }
    }

    /// Counts what is charged on the keys of the first limit.
    pub(super) fn count_charge(&mut self, key: usize, cost: u64) {
        if self.keys[key].limit == 0 {
            *self.charged.entry(self.keys[key].number).or_default() += cost;
        }
    }
}

/// For how long the ids of requests are remembered, and how many repeats pass: all of a scenario.
const REMEMBER: Duration = Duration::from_secs(60 * 60);
const REPEATS: u16 = 100;

pub(super) fn request(cost: u64, id: u64) -> AcquireOptions {
    AcquireOptions::cost(cost).once(&id.to_string(), REPEATS, REMEMBER)
}

/// The time until a hold expires. A simulation goes on for longer after its last call.
const LIFETIME: Duration = Duration::from_millis(150);

pub(super) fn reservation(cost: u64, id: u64) -> AcquireOptions {
    AcquireOptions::cost(cost).id(&id.to_string()).expires_in(LIFETIME).hold()
}

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
                scenario.calls.push(Call {
                    at: random.below(span + 1),
                    client: random.index(scenario.clients),
                    key,
                    cost,
                    kind,
                    leaves_after: random.percent(10).then(|| random.below(scenario.deadline)),
                    yields: random.below(3),
                    is_after_recovery: false,
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
            if charged > most && !(holds_again && self.outlives_ids()) {
                self.report("no id is charged twice", || format!("key {key}: {charged} charged of at most {most}"));
            }
            let least: u64 = of_key().map(|bounds| bounds.least).sum();
            if charged < least {
                self.report("ids are charged", || format!("key {key}: {charged} charged of at least {least}"));
            }
        }
    }

    /// Whether the calls last longer than the ids of holds are remembered.
    fn outlives_ids(&self) -> bool {
        let calls = self.run.observed.iter().filter(|call| matches!(call.call.kind, Kind::Reserve(_)));
        let (first, last) =
            calls.fold((u64::MAX, 0), |(first, last), call| (first.min(call.asked_at), last.max(call.ended_at)));
        last.saturating_sub(first) > 2 * LIFETIME.as_micros() as u64
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
            unknown += usize::from(matches!(&call.answer, Answer::Failed(error) if error.contains("id")));
            lost += usize::from(matches!(&call.answer, Answer::Failed(error) if error.contains("deadline")));
        }
    }
    println!("{repeats} repeats, {holds} holds, {settled} settlements, {unknown} unknown ids, {lost} without a reply");
    assert!(repeats > 300 && holds > 100 && settled > 100 && unknown > 20 && lost > 100);
}
