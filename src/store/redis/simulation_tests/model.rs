//! What the script decides, as the documentation of the algorithms says it: an independent implementation.

use std::collections::{BTreeMap, HashMap};

use super::ids::Record;
use super::quota::{Quota, Usage};
use super::server_model::HeldCosts;
use super::sessions::LargeCosts;
use super::wire::{BatchReply, EXPIRED, INVALID_STATE, Input, LATE, REPEATED, Step, Template, to_f64};

/// The keys of the server, and what was charged on them.
#[derive(Clone, Default)]
pub(super) struct Store {
    pub(super) keys: Vec<Key>,
    /// The indices of the keys, by limit and number.
    indices: HashMap<(usize, u64), usize>,
    /// What settlements and expiries have charged on the first limit, by client and key.
    pub(super) settled: BTreeMap<(usize, u64), u64>,
    /// The clients of sessions and leases, by their ids.
    pub(super) clients: BTreeMap<u64, usize>,
    /// The sessions that have expired, by client, limit and key.
    pub(super) expired: BTreeMap<(usize, usize, u64), u64>,
    /// By client, limit and key.
    pub(super) leases: BTreeMap<(usize, usize, u64), LeaseLog>,
    /// What is remembered of ids, by the name of the key in Redis.
    pub(super) records: BTreeMap<String, Record>,
    /// What was charged on the first limit, by key.
    pub(super) charged: HashMap<u64, u64>,
}

/// What happened to the leases of a client on a key.
#[derive(Clone, Default)]
pub(super) struct LeaseLog {
    /// What reports and expiries have charged.
    pub(super) charged: u64,
    pub(super) has_expired: bool,
    /// A report found no room for the kept units, so its expiry stayed.
    pub(super) was_stopped: bool,
    /// The times in which units were held: from the report to the expiry.
    pub(super) terms: Vec<(u64, u64)>,
}

/// The key of one limit with a number.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) limit: usize,
    pub(super) number: u64,
    pub(super) usage: Usage,
    pub(super) costs: HeldCosts,
    pub(super) large_costs: LargeCosts,
    pub(super) is_foreign: bool,
}

/// A decision that the script has made, or has not made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Execution {
    pub(super) client: usize,
    pub(super) key: u64,
    pub(super) cost: u64,
    pub(super) kind: &'static str,
    pub(super) verdict: Verdict,
    /// What remains of the first limit's quota.
    pub(super) remaining: u64,
    /// The index of the call of the script.
    pub(super) call: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    Allowed,
    /// The wait in microseconds.
    Denied(u64),
    ExceedsLimit,
    Late,
    /// A key holds a foreign value.
    Invalid,
    /// The session is unknown.
    Expired,
}

/// One call of the script.
pub(super) struct Run<'a> {
    pub(super) client: usize,
    pub(super) call: usize,
    /// The server's time in microseconds.
    pub(super) now: u64,
    pub(super) quotas: &'a [Quota],
    /// The indices in the store of the call's keys.
    pub(super) keys: Vec<usize>,
    /// The names of the keys of ids.
    pub(super) id_keys: Vec<&'a str>,
    pub(super) ignores_releases: bool,
    /// What the decisions' log receives.
    pub(super) executions: &'a mut Vec<Execution>,
}

/// The key and the cost of one limit in a decision: the index of the key in the call, and in the store.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) index: usize,
    pub(super) key: usize,
    pub(super) cost: u64,
}

impl Store {
    /// Returns the index of a key, which is added if it is new.
    pub(super) fn index_of(&mut self, limit: usize, number: u64) -> usize {
        *self.indices.entry((limit, number)).or_insert_with(|| {
            let (usage, costs, large_costs) = (Usage::default(), HeldCosts::default(), LargeCosts::default());
            self.keys.push(Key { limit, number, usage, costs, large_costs, is_foreign: false });
            self.keys.len() - 1
        })
    }

    /// Runs a batch. Returns the script's reply.
    pub(super) fn run(&mut self, input: &Input, mut run: Run<'_>) -> Vec<u8> {
        let is_late = input.latest_start > 0.0 && to_f64(run.now) > input.latest_start;
        let keys = || run.keys.iter().map(|key| &self.keys[*key]);
        // The fast path of several limits decides only what all of them allow, and the driver replies the same.
        let is_fast =
            input.is_fast && run.quotas.len() == 1 && !is_late && !keys().any(|key| key.has_holds() || key.is_foreign);
        let value = |key: &Key| match key {
            Key { is_foreign: true, .. } => Some(Vec::new()),
            key if !key.has_holds() => Some(key.usage.pack(&run.quotas[key.limit])),
            _ => None,
        };
        let mut reply = BatchReply { results: Vec::new(), values: keys().map(value).collect(), expired: 0 };
        for step in &input.steps {
            let template = &input.templates[step.template];
            for _ in 0..step.repeats {
                match template.operation {
                    Input::ACQUIRE | Input::PEEK | Input::HOLD | Input::RESERVE | Input::ONCE => {
                        self.decide(template, step, (is_late, is_fast), &mut run, &mut reply);
                    }
                    Input::UPDATE => self.update(template, step, &run, &mut reply),
                    Input::LEASE => self.renew(template, step, &run, &mut reply),
                    Input::SETTLE => self.settle_id(template, step, &run, &mut reply),
                    _ => self.charge(template, step, &run, &mut reply),
                }
            }
        }
        reply.pack(run.now, is_fast)
    }

    /// Makes a key's value foreign, or deletes it.
    pub(super) fn set_foreign(&mut self, number: u64, is_foreign: bool) {
        for key in self.keys.iter_mut().filter(|key| key.number == number) {
            (key.usage, key.is_foreign) = (Usage::default(), is_foreign);
            key.costs = HeldCosts::default();
            key.large_costs = LargeCosts::default();
        }
    }

    fn decide(
        &mut self,
        template: &Template,
        step: &Step,
        (is_late, is_fast): (bool, bool),
        run: &mut Run<'_>,
        reply: &mut BatchReply,
    ) {
        let parts = step.keys.iter().zip(&template.costs);
        let parts: Vec<Part> = parts
            .enumerate()
            .map(|(limit, (index, cost))| {
                let index = index.expect("a key of each limit");
                let cost = cost.expect("a cost for each limit")
                    + mistake!(RepeatIsChargedWhole, template.charge_before(limit), 0);
                Part { index, key: run.keys[index], cost }
            })
            .collect();
        let (first, now) = (parts[0], run.now);
        let kind = match template.operation {
            Input::ACQUIRE => "decide",
            Input::PEEK => "peek",
            Input::RESERVE => "reserve",
            Input::ONCE => "once",
            _ => "hold",
        };
        let mut execution = Execution {
            client: run.client,
            key: self.keys[first.key].number,
            cost: first.cost,
            kind,
            verdict: Verdict::Late,
            remaining: 0,
            call: run.call,
        };
        let failed = if is_late {
            Some((Verdict::Late, mistake!(LateDecisionIsNotAskedAgain, INVALID_STATE, LATE)))
        } else if parts.iter().any(|part| self.keys[part.key].is_foreign) {
            Some((Verdict::Invalid, INVALID_STATE))
        } else {
            None
        };
        if let Some((verdict, result)) = failed {
            execution.verdict = verdict;
            reply.results.extend(std::iter::repeat_n(result, parts.len() + 1));
            run.executions.push(execution);
            return;
        }
        for part in &parts {
            self.prepare(run, part.index, reply);
        }
        let has_id = matches!(template.operation, Input::RESERVE | Input::ONCE);
        if has_id && let Some(results) = self.find_id(template, &parts, run) {
            let is_repeat = results[parts.len()] >= REPEATED;
            reply.results.extend(results);
            return parts.iter().filter(|_| is_repeat).for_each(|part| self.push_view(part.key, run, reply));
        }
        let verdict_of = |part: &Part| {
            let key = &self.keys[part.key];
            key.usage.decide(&run.quotas[key.limit], now, key.costs.total(), part.cost)
        };
        let verdicts: Vec<i64> = parts.iter().map(verdict_of).collect();
        let is_allowed = verdicts.iter().all(|verdict| *verdict == 0);
        if template.operation != Input::PEEK {
            self.mark_large_costs(&parts, &verdicts, run);
        }
        if is_allowed && template.operation == Input::HOLD {
            if let Err(unknown) = self.hold(template, &parts, run) {
                reply.results.extend(unknown.iter().map(|unknown| if *unknown { EXPIRED } else { 0.0 }));
                reply.results.push(0.0);
                execution.verdict = Verdict::Expired;
                run.executions.push(execution);
                return;
            }
        } else if is_allowed && matches!(template.operation, Input::ACQUIRE | Input::ONCE) {
            for part in &parts {
                let key = &mut self.keys[part.key];
                key.usage.charge(&run.quotas[key.limit], now, part.cost);
                self.count_charge(part.key, part.cost);
            }
        }
        if is_allowed && has_id {
            self.record_id(template, &parts, run);
        }
        #[allow(clippy::cast_precision_loss, reason = "a short time")]
        reply.results.extend(verdicts.iter().map(|verdict| *verdict as f64));
        if !is_fast {
            // The client reads whether the limits can schedule a later start, and uses it for limits with delays only.
            reply.results.push(1.0);
        }
        for part in parts {
            self.push_view(part.key, run, reply);
        }
        execution.verdict = if verdicts.contains(&-1) {
            Verdict::ExceedsLimit
        } else {
            match verdicts.iter().max().copied().unwrap_or(0) {
                0 => Verdict::Allowed,
                wait => Verdict::Denied(wait.unsigned_abs()),
            }
        };
        let key = &self.keys[first.key];
        execution.remaining = key.usage.remaining(&run.quotas[key.limit], now, key.costs.total());
        run.executions.push(execution);
    }

    /// The limits of a decision are settled alike, so the first one's charges are counted.
    pub(super) fn record_settled(&mut self, owner: (usize, u64), cost: u64, limit: usize) {
        if limit == 0 {
            *self.settled.entry(owner).or_default() += cost;
        }
    }
}
