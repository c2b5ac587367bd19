//! What the server remembers of ids, as the documentation of holds with an id and of requests that are charged once says it.

use super::model::{Part, Run, Store};
use super::wire::{
    ALREADY_SETTLED, BatchReply, CONFLICT, INVALID_STATE, Input, REPEATED, Step, Template, UNKNOWN_ID, to_f64,
};

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
        let (mut step, lifetime) = (125, lifetime as u64);
        while step * 8 <= lifetime {
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

impl Template {
    /// What a request was charged on a limit before, if the operation repeats an id.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small cost, or -1")]
    pub(super) fn charge_before(&self, limit: usize) -> u64 {
        let is_once = self.operation == Input::ONCE;
        if is_once { self.ids[self.costs.len() + 5 + limit] as u64 } else { 0 }
    }
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
            if record.is_settled || record.word - 0.5 <= to_f64(run.now) {
                return Some(vec![ALREADY_SETTLED; limits + 1]);
            }
            // The calls of a scenario are fewer than the repeats of a hold.
            return Some([vec![0.0; limits], vec![REPEATED + 1.0]].concat());
        }
        let charges_before = &template.ids[limits + 5..];
        let record = record.filter(|record| record.word > 0.0);
        match record {
            None if charges_before[0] < 0.0 => None,
            None => failed,
            Some(record) => {
                let charged: Vec<f64> = record.costs.iter().copied().map(to_f64).collect();
                if charges_before[0] < 0.0 {
                    return Some([charged, vec![REPEATED + 1.0]].concat());
                }
                if charged == charges_before { None } else { failed }
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
            self.keys[part.key].costs.extend(group.to_bits(), run.now, until - run.now).held += part.cost;
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
            reply.results.extend(vec![INVALID_STATE; 2 * limits]);
            return;
        }
        for index in &indices {
            self.prepare(run, *index, reply);
        }
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
            let (id, costs) = (known.word.to_bits(), &mut self.keys[key].costs);
            if let Some(group) = costs.entries.get_mut(&id) {
                released = held.min(group.held);
                group.held -= released;
                if group.held == 0 {
                    costs.remove(id);
                }
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
