//! Random operations of some processes, and their encoding: see `read.lua`.

use super::quota::{Form, Quota};
use super::wire::{Input, Step, Template, to_f64};
use super::{Keys, are_buckets, whole};
use crate::random::Random;

/// An operation of the script, with the indices of its keys in the call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operation {
    pub(super) code: u16,
    /// The limit of an operation on one limit.
    pub(super) limit: Option<usize>,
    pub(super) arg1: u64,
    pub(super) arg2: f64,
    /// By limit.
    pub(super) costs: Vec<Option<u64>>,
    pub(super) ids: Vec<f64>,
    keys: Vec<Option<usize>>,
}

impl Operation {
    /// Whether the client lets the fast path decide: see `LuaAlgorithm::uses_fast_path`.
    pub(super) fn can_be_fast(&self, quotas: &[Quota]) -> bool {
        let has_fast_path = matches!(quotas, [Quota { form: Form::FixedWindow, .. }]) || are_buckets(quotas);
        has_fast_path && self.code == Input::ACQUIRE && self.is_possible(quotas)
    }

    fn is_possible(&self, quotas: &[Quota]) -> bool {
        quotas.iter().zip(&self.costs).all(|(quota, cost)| cost.is_none_or(|cost| cost <= quota.capacity()))
    }

    pub(super) fn is_decision(&self) -> bool {
        self.code <= Input::HOLD
    }

    /// Returns the limits, and the indices of their keys in the store.
    pub(super) fn parts(&self, indices: &[usize]) -> Vec<(usize, usize)> {
        let parts = self.keys.iter().enumerate();
        parts.filter_map(|(limit, key)| Some((limit, indices[(*key)?]))).collect()
    }

    pub(super) fn result_count(&self, limits: usize, is_fast: bool) -> usize {
        match self.code {
            Input::UPDATE => 2,
            Input::LEASE => 4,
            Input::CHARGE => 1,
            _ => limits + usize::from(!is_fast),
        }
    }
}

/// A process's hold or lease on a key.
#[derive(Clone, Debug, Default)]
struct Session {
    id: f64,
    limit: usize,
    number: u64,
    /// The sums that it has released and charged. Of a lease: the spent units, and the number of the last report.
    sums: [u64; 2],
    /// Of a lease, by the last reply that was received: the held units, their expiry, and the spent units.
    held: u64,
    expires_at: u64,
    confirmed: u64,
}

/// What the processes know.
#[derive(Default)]
pub(super) struct Clients {
    holds: Vec<Session>,
    leases: Vec<Session>,
    last_id: u64,
    /// Reports and updates that may arrive again.
    sent: Vec<(u64, Operation)>,
}

/// Returns the time until the next call.
pub(super) fn pause(quotas: &[Quota], random: &mut Random) -> u64 {
    let period = quotas[random.index(quotas.len())].period;
    match random.below(10) {
        0..=2 => 0,
        3 => 1,
        4..=8 => random.below(period / 8),
        _ => random.below(2 * period),
    }
}

impl Clients {
    /// Returns the keys of a call, and its operations.
    pub(super) fn call(
        &mut self,
        quotas: &[Quota],
        has_leases: bool,
        now: u64,
        random: &mut Random,
    ) -> (Keys, Vec<Operation>) {
        let (first, count) = (random.below(3), random.between(1, 3));
        let mut keys: Keys = (first..first + count).map(|number| (0, number % 3)).collect();
        if quotas.len() > 1 {
            keys.push((1, 0));
        }
        let (only_acquires, only_holds) = (random.percent(30), random.percent(30));
        let mut operations = Vec::new();
        for _ in 0..random.between(1, 5) {
            let operation = match random.below(20) {
                _ if only_acquires => Some(decision(Input::ACQUIRE, quotas, &keys, random)),
                0..=10 if only_holds => self.hold(quotas, &keys, random),
                _ if only_holds => self.update(quotas, &keys, random),
                0..=6 => Some(decision(Input::ACQUIRE, quotas, &keys, random)),
                7 => Some(decision(Input::PEEK, quotas, &keys, random)),
                8..=10 => self.hold(quotas, &keys, random),
                11 => Some(charge(quotas, &keys, random)),
                12..=14 => self.update(quotas, &keys, random),
                15 => self.send_again(&keys, random),
                _ if has_leases => self.report(quotas, &keys, now, random),
                _ => None,
            };
            let repeats = if random.percent(20) { random.between(2, 4) } else { 1 };
            operations.extend((0..repeats).filter_map(|_| operation.clone()));
        }
        if operations.is_empty() {
            operations.push(decision(Input::ACQUIRE, quotas, &keys, random));
        }
        // A call has the keys of its operations only.
        let is_used = |index: &usize| operations.iter().any(|operation| operation.keys.contains(&Some(*index)));
        let used: Vec<usize> = (0..keys.len()).filter(is_used).collect();
        for key in operations.iter_mut().flat_map(|operation| operation.keys.iter_mut().flatten()) {
            *key = used.iter().position(|index| index == key).expect("a used key");
        }
        (used.into_iter().map(|index| keys[index]).collect(), operations)
    }

    fn next_id(&mut self) -> u64 {
        // A session may be renamed.
        self.last_id += 100;
        self.last_id
    }

    /// Holds costs on all limits: of known sessions, new ones, or ones that the server does not know.
    fn hold(&mut self, quotas: &[Quota], keys: &Keys, random: &mut Random) -> Option<Operation> {
        let mut hold = decision(Input::HOLD, quotas, keys, random);
        #[allow(clippy::cast_precision_loss, reason = "a short time")]
        let expiry = random.between(1, 2 * quotas[0].period) as f64;
        hold.arg2 = expiry;
        for limit in 0..quotas.len() {
            let number = keys[hold.keys[limit]?].1;
            let known = self.holds.iter().find(|hold| hold.limit == limit && hold.number == number);
            let id = match known {
                Some(known) if random.percent(60) => known.id,
                _ => {
                    let id = to_f64(self.next_id());
                    self.holds.insert(0, Session { id, limit, number, ..Session::default() });
                    if random.percent(90) { -id } else { id }
                }
            };
            hold.ids.push(id);
        }
        self.holds.truncate(12);
        Some(hold)
    }

    fn update(&mut self, quotas: &[Quota], keys: &Keys, random: &mut Random) -> Option<Operation> {
        let index = random.index(self.holds.len());
        let session = self.holds.get_mut(index)?;
        session.sums[0] += random.below(4);
        session.sums[1] += if random.percent(50) { 0 } else { random.below(4) };
        let ends = [0, 0, 1, 2][random.index(4)];
        let held = if ends == 2 { random.below(6) } else { 0 };
        let numbers = [session.sums[0], session.sums[1], ends, held].map(to_f64);
        let before = session.clone();
        if ends == 2 && random.percent(70) {
            // The reply arrives.
            session.id += 1.0;
        }
        if ends == 1 {
            self.holds.remove(index);
        }
        let session = before;
        let ids = [&[session.id], &numbers[..]].concat();
        let expiry = random.between(1, 2 * quotas[session.limit].period);
        self.send((Input::UPDATE, session.limit, session.number), (expiry, 0.0), ids, keys, quotas)
    }

    /// A report of a lease: of a known one, or of a new one.
    fn report(&mut self, quotas: &[Quota], keys: &Keys, now: u64, random: &mut Random) -> Option<Operation> {
        if self.leases.is_empty() || random.percent(20) {
            let (limit, number) = keys[random.index(keys.len())];
            let id = 4_503_599_627_370_496.0 + to_f64(self.next_id());
            self.leases.insert(0, Session { id, limit, number, ..Session::default() });
            self.leases.truncate(5);
        }
        let index = random.index(self.leases.len());
        let lease = &mut self.leases[index];
        if lease.expires_at <= now {
            // The process spends nothing after the expiry that it knows.
            lease.held = 0;
        }
        let spent = random.below(lease.held + 1);
        lease.held -= spent;
        lease.sums[0] += spent;
        lease.sums[1] += 1;
        let keep = random.below(lease.held + 1);
        let quota = &quotas[lease.limit];
        let want = keep + if random.percent(20) { 0 } else { random.below(quota.capacity() * 2) };
        let numbers = [lease.sums[1], lease.sums[0], lease.sums[0] - lease.confirmed, keep, want, lease.expires_at];
        let ids = [&[lease.id], &numbers.map(to_f64)[..]].concat();
        // Until the reply, the process spends what it keeps.
        lease.held = keep;
        #[allow(clippy::cast_precision_loss, reason = "a small number")]
        let most = random.below(quota.capacity() * 3) as f64 / 2.0;
        let (limit, number, expiry) = (lease.limit, lease.number, random.between(1, 2 * quota.period));
        self.send((Input::LEASE, limit, number), (expiry, most), ids, keys, quotas)
    }

    /// Returns an operation on one limit. It is lost if the call does not have its key.
    fn send(
        &mut self,
        (code, limit, number): (u16, usize, u64),
        (arg1, arg2): (u64, f64),
        ids: Vec<f64>,
        keys: &Keys,
        quotas: &[Quota],
    ) -> Option<Operation> {
        let mut costs = vec![None; quotas.len()];
        costs[limit] = Some(1);
        let operation =
            Operation { code, limit: Some(limit), arg1, arg2, costs, ids, keys: one_key(limit, number, keys, quotas) };
        self.sent.insert(0, (number, operation.clone()));
        self.sent.truncate(8);
        operation.keys[limit].is_some().then_some(operation)
    }

    /// Repeats an earlier report or update.
    fn send_again(&self, keys: &Keys, random: &mut Random) -> Option<Operation> {
        let (number, mut operation) = self.sent.get(random.index(self.sent.len()))?.clone();
        let limit = operation.limit?;
        operation.keys[limit] = keys.iter().position(|key| *key == (limit, number));
        operation.keys[limit].is_some().then_some(operation)
    }

    /// The process receives the reply to a report.
    pub(super) fn receive(&mut self, operation: &Operation, results: &[f64]) {
        if operation.code != Input::LEASE {
            return;
        }
        let place = self.leases.iter().position(|lease| lease.id.to_bits() == operation.ids[0].to_bits());
        let Some(place) = place else { return };
        let lease = &mut self.leases[place];
        // Of two reports, the earlier one's reply says nothing new.
        if results[0] < 0.0 || results[1] == 0.0 {
            self.leases.remove(place);
        } else if whole(operation.ids[1]) == lease.sums[1] && lease.sums[1] % 5 != 3 {
            // Every fifth reply is lost.
            (lease.held, lease.expires_at) = (whole(results[0]), whole(results[1]));
            lease.confirmed = lease.sums[0];
        }
    }
}

fn one_key(limit: usize, number: u64, keys: &Keys, quotas: &[Quota]) -> Vec<Option<usize>> {
    let of = |index: usize| keys.iter().position(|key| index == limit && *key == (limit, number));
    (0..quotas.len()).map(of).collect()
}

/// A decision on one key of each limit.
fn decision(code: u16, quotas: &[Quota], keys: &Keys, random: &mut Random) -> Operation {
    let first = random.index(keys.iter().filter(|(limit, _)| *limit == 0).count());
    let keys = (0..quotas.len()).map(|limit| Some(if limit == 0 { first } else { keys.len() - 1 })).collect();
    // Up to one more than is possible.
    let costs = quotas.iter().map(|quota| {
        let most = if random.percent(80) { 3 } else { quota.capacity() + 1 };
        Some(random.between(1, most))
    });
    let costs = costs.collect();
    let arg2 = if random.percent(50) { 0.0 } else { -1.0 };
    Operation { code, limit: None, arg1: 0, arg2, costs, ids: Vec::new(), keys }
}

fn charge(quotas: &[Quota], keys: &Keys, random: &mut Random) -> Operation {
    let (limit, number) = keys[random.index(keys.len())];
    let mut costs = vec![None; quotas.len()];
    costs[limit] = Some(random.between(1, quotas[limit].capacity()));
    let keys = one_key(limit, number, keys, quotas);
    Operation { code: Input::CHARGE, limit: Some(limit), arg1: 0, arg2: 0.0, costs, ids: Vec::new(), keys }
}

/// Returns the operations as the model reads them.
pub(super) fn input(
    operations: &[Operation],
    quotas: &[Quota],
    keys: &Keys,
    (latest_start, is_fast): (f64, bool),
) -> Input {
    let templates = operations.iter().map(|operation| {
        let Operation { code, limit, arg1, arg2, costs, ids, .. } = operation.clone();
        Template { operation: code, limit, arg1, arg2, costs, ids }
    });
    let steps = operations.iter().enumerate();
    let steps = steps.map(|(template, operation)| Step { template, keys: operation.keys.clone(), repeats: 1 });
    let key_count = |limit| keys.iter().filter(|key| key.0 == limit).count();
    Input {
        latest_start,
        is_fast,
        key_counts: (0..quotas.len()).map(key_count).collect(),
        templates: templates.collect(),
        steps: steps.collect(),
        wrong: None,
    }
}

/// Returns the operations as the script reads them. Equal consecutive ones are one with a repeat count.
pub(super) fn encode(
    operations: &[Operation],
    quotas: &[Quota],
    input: &Input,
    (now, has_leases): (u64, bool),
) -> Vec<u8> {
    let mut groups: Vec<(&Operation, u16)> = Vec::new();
    for operation in operations {
        match groups.last_mut() {
            Some((last, repeats)) if *last == operation => *repeats += 1,
            _ => groups.push((operation, 1)),
        }
    }
    let mut bytes = Vec::new();
    let short = |number: usize, bytes: &mut Vec<u8>| {
        bytes.extend(u16::try_from(number).expect("a small number").to_le_bytes());
    };
    let doubles = |numbers: &[f64], bytes: &mut Vec<u8>| {
        for number in numbers {
            bytes.extend(number.to_le_bytes());
        }
    };
    doubles(&[to_f64(now), input.latest_start], &mut bytes);
    let is_hold = |operation: &Operation| match operation.code {
        Input::HOLD => operation.is_possible(quotas),
        code => code == Input::UPDATE,
    };
    let is_bucket = matches!(quotas, [Quota { form: Form::TokenBucket { .. }, .. }]);
    let holds = is_bucket && !has_leases && operations.iter().all(is_hold) && now % 5 > 0;
    let is_plain = quotas.len() == 1 && operations.iter().all(|operation| operation.code == Input::ACQUIRE);
    let fast_path = match () {
        () if holds => 2,
        () if input.is_fast => 1,
        () if is_plain && now % 5 > 0 => 3,
        () => 0,
    };
    for number in [fast_path, groups.len(), groups.len()] {
        short(number, &mut bytes);
    }
    input.key_counts.iter().for_each(|count| short(*count, &mut bytes));
    for (operation, _) in &groups {
        short(usize::from(operation.code), &mut bytes);
        short(operation.limit.map_or(0, |limit| limit + 1), &mut bytes);
        doubles(&[to_f64(operation.arg1), operation.arg2], &mut bytes);
        for (quota, cost) in quotas.iter().zip(&operation.costs) {
            let Some(cost) = *cost else { continue };
            let parameters = quota.parameters(cost);
            // No shadow limit.
            let numbers: Vec<_> = parameters.into_iter().chain([0, cost]).map(to_f64).collect();
            doubles(&numbers, &mut bytes);
        }
    }
    for (index, (operation, repeats)) in groups.iter().enumerate() {
        short(index + 1, &mut bytes);
        operation.keys.iter().for_each(|key| short(key.map_or(0, |key| key + 1), &mut bytes));
        short(usize::from(*repeats), &mut bytes);
        doubles(&operation.ids, &mut bytes);
    }
    bytes
}
