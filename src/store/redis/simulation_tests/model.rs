//! What the script does, as the documentation of fixed windows and of holds says it: an independent implementation.

use std::collections::BTreeMap;

use super::wire::{Input, Params, Step, Template};

/// The results of decisions that were not made: see `driver.lua`.
const INVALID_STATE: f64 = -9_007_199_254_740_992.0;
const EXPIRED: f64 = INVALID_STATE + 1.0;
const LATE: f64 = INVALID_STATE + 4.0;

/// The keys of the server, and what was charged on them.
#[derive(Clone, Default)]
pub(super) struct Store {
    keys: BTreeMap<Vec<u8>, Key>,
    /// What settlements and expiries have charged, by client and key.
    pub(super) settled: BTreeMap<(usize, u64), u64>,
    /// The sessions that have expired, by client and key.
    pub(super) expired: BTreeMap<(usize, u64), u64>,
}

#[derive(Clone, Default)]
struct Key {
    window: Window,
    sessions: Vec<Session>,
    is_foreign: bool,
}

#[derive(Clone, Copy, Default)]
struct Window {
    start: u64,
    end: u64,
    used: u64,
    charged_at: u64,
}

/// The costs that one process holds on a key.
#[derive(Clone)]
struct Session {
    id: u64,
    client: usize,
    key: u64,
    held: u64,
    released: u64,
    charged: u64,
    expires_at: u64,
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
    pub(super) names: Vec<&'a [u8]>,
    /// What the decisions' log receives.
    pub(super) executions: &'a mut Vec<Execution>,
}

/// The parts of a reply.
struct Reply {
    results: Vec<f64>,
    /// The states before the batch, of keys with held costs once they are used.
    values: Vec<Option<Vec<u8>>>,
    expired: u16,
}

impl Store {
    /// Runs a batch. Returns the script's reply.
    pub(super) fn run(&mut self, input: &Input, mut run: Run<'_>) -> Vec<u8> {
        let is_late = input.latest_start > 0.0 && to_f64(run.now) > input.latest_start;
        let with_holds =
            |name: &&[u8]| self.keys.get(*name).is_some_and(|key| !key.sessions.is_empty() || key.is_foreign);
        let is_fast = input.is_fast && !is_late && !run.names.iter().any(with_holds);
        let value = |name: &&[u8]| match self.keys.get(*name) {
            Some(key) if !key.sessions.is_empty() => None,
            Some(key) if !key.is_foreign => Some(key.window.pack()),
            _ => Some(Vec::new()),
        };
        let values = run.names.iter().map(value).collect();
        let mut reply = Reply { results: Vec::new(), values, expired: 0 };
        for step in &input.steps {
            let template = &input.templates[step.template];
            for _ in 0..step.repeats {
                match template.operation {
                    Input::ACQUIRE | Input::PEEK | Input::HOLD => {
                        self.decide(template, step, (is_late, is_fast), &mut run, &mut reply);
                    }
                    Input::UPDATE => self.update(template, step, &run, &mut reply),
                    _ => self.charge(template, step, &run, &mut reply),
                }
            }
        }
        reply.pack(run.now, is_fast)
    }

    /// Makes a key's value foreign, or deletes it.
    pub(super) fn set_foreign(&mut self, number: u64, is_foreign: bool) {
        let suffix = format!(":{number}").into_bytes();
        for (_, key) in self.keys.iter_mut().filter(|(name, _)| name.ends_with(&suffix)) {
            *key = Key { is_foreign, ..Key::default() };
        }
    }

    /// Charges all sessions that have expired by now: the next operations on their keys would.
    pub(super) fn expire(&mut self, now: u64) {
        let mut expired = Vec::new();
        for (name, key) in &mut self.keys {
            let limit = limit_of(name);
            let sessions = key.sessions.iter().filter(|session| session.expires_at <= now);
            expired.extend(sessions.map(|session| (session.clone(), limit)));
            key.sessions.retain(|session| session.expires_at > now);
        }
        for (session, limit) in expired {
            self.record_expired(&session, limit);
        }
    }

    fn record_expired(&mut self, session: &Session, limit: usize) {
        let owner = (session.client, session.key);
        *self.expired.entry(owner).or_default() += 1;
        self.record_settled(owner, session.held, limit);
    }

    /// The costs that are held now.
    pub(super) fn held(&self) -> u64 {
        self.keys.values().flat_map(|key| &key.sessions).map(|session| session.held).sum()
    }

    pub(super) fn sessions(&self) -> usize {
        self.keys.values().map(|key| key.sessions.len()).sum()
    }

    fn decide(
        &mut self,
        template: &Template,
        step: &Step,
        (is_late, is_fast): (bool, bool),
        run: &mut Run<'_>,
        reply: &mut Reply,
    ) {
        let parts: Vec<(usize, Params)> =
            step.keys.iter().zip(&template.params).filter_map(|(key, params)| Some(((*key)?, (*params)?))).collect();
        let (number, cost) = (key_number(run.names[parts[0].0]), parts[0].1.cost);
        let kind = match template.operation {
            Input::ACQUIRE => "decide",
            Input::PEEK => "peek",
            _ => "hold",
        };
        let mut execution = Execution {
            client: run.client,
            key: number,
            cost,
            kind,
            verdict: Verdict::Late,
            remaining: 0,
            call: run.call,
        };
        let failed = if is_late {
            Some((Verdict::Late, LATE))
        } else if parts.iter().any(|&(key, _)| self.key(run, key).is_foreign) {
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
        for &(key, params) in &parts {
            self.prepare(run, key, params.period, reply);
        }
        let verdicts: Vec<i64> = parts.iter().map(|&(key, params)| self.peek(run, key, params)).collect();
        let is_allowed = verdicts.iter().all(|verdict| *verdict == 0);
        if is_allowed && template.operation == Input::HOLD {
            let is_unknown = |(&(key, _), id): (&(usize, Params), &f64)| {
                *id > 0.0 && !self.keys[run.names[key]].sessions.iter().any(|session| session.id == id.to_bits())
            };
            let unknown: Vec<bool> = parts.iter().zip(&template.ids).map(is_unknown).collect();
            if unknown.contains(&true) {
                reply.results.extend(unknown.iter().map(|unknown| if *unknown { EXPIRED } else { 0.0 }));
                reply.results.push(0.0);
                execution.verdict = Verdict::Expired;
                run.executions.push(execution);
                return;
            }
            for (&(key, params), id) in parts.iter().zip(&template.ids) {
                self.hold(run, key, params.cost, (id.abs().to_bits(), number), template.arg2);
            }
        } else if is_allowed && template.operation == Input::ACQUIRE {
            for &(key, params) in &parts {
                let now = run.now;
                self.key(run, key).window.charge(now, params.cost, params.period);
            }
        }
        #[allow(clippy::cast_precision_loss, reason = "a short time")]
        reply.results.extend(verdicts.iter().map(|verdict| *verdict as f64));
        if !is_fast {
            // Fixed windows schedule no later start.
            reply.results.push(1.0);
        }
        execution.verdict = if verdicts.contains(&-1) {
            Verdict::ExceedsLimit
        } else {
            match verdicts.iter().max().copied().unwrap_or(0) {
                0 => Verdict::Allowed,
                wait => Verdict::Denied(wait.unsigned_abs()),
            }
        };
        let (key, params) = parts[0];
        let now = run.now;
        let held = self.key(run, key).held();
        execution.remaining = params.limit.saturating_sub(self.key(run, key).window.used_at(now) + held);
        run.executions.push(execution);
    }

    /// Returns 0 if a cost is allowed, -1 if it never is, otherwise the wait in microseconds.
    fn peek(&mut self, run: &Run<'_>, key: usize, params: Params) -> i64 {
        let key = self.key(run, key);
        let mut window = key.window;
        if key.held() > 0 {
            window.charge(run.now, key.held(), params.period);
        }
        if params.cost > params.limit {
            -1
        } else if window.used_at(run.now) + params.cost > params.limit {
            i64::try_from(window.end - run.now).expect("a short time")
        } else {
            0
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of some seconds")]
    fn hold(&mut self, run: &Run<'_>, key: usize, cost: u64, (id, number): (u64, u64), expiry: f64) {
        let (client, expires_at) = (run.client, run.now + expiry as u64);
        let key = self.key(run, key);
        let known = key.sessions.iter().position(|session| session.id == id);
        let index = known.unwrap_or_else(|| {
            key.sessions.push(Session { id, client, key: number, held: 0, released: 0, charged: 0, expires_at });
            key.sessions.len() - 1
        });
        let session = &mut key.sessions[index];
        session.held += cost;
        session.expires_at = expires_at;
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sum of some costs")]
    fn update(&mut self, template: &Template, step: &Step, run: &Run<'_>, reply: &mut Reply) {
        let limit = template.limit.expect("an update concerns one limit");
        let (index, params) = (step.keys[limit].expect("a key"), template.params[limit].expect("parameters"));
        if self.key(run, index).is_foreign {
            return reply.results.extend([INVALID_STATE, 0.0]);
        }
        self.prepare(run, index, params.period, reply);
        let &[id, released, charged, ends, _] = &template.ids[..] else { panic!("an update has five numbers") };
        let now = run.now;
        let key = self.key(run, index);
        let Some(position) = key.sessions.iter().position(|session| session.id == id.to_bits()) else {
            return reply.results.extend([EXPIRED, 0.0]);
        };
        let session = &mut key.sessions[position];
        let mut newly_released = (released as u64).saturating_sub(session.released).min(session.held);
        let newly_charged = (charged as u64).saturating_sub(session.charged);
        session.released = session.released.max(released as u64);
        session.charged = session.charged.max(charged as u64);
        let owner = (session.client, session.key);
        if ends > 0.0 {
            newly_released = session.held;
        }
        session.held -= newly_released;
        session.expires_at = now + template.arg1;
        if ends > 0.0 {
            key.sessions.remove(position);
        }
        if newly_charged > 0 {
            key.window.charge(now, newly_charged, params.period);
            self.record_settled(owner, newly_charged, limit);
        }
        reply.results.extend([to_f64(newly_released), to_f64(newly_charged)]);
    }

    /// A charge that belongs to no session: that of a surcharge after the session has ended.
    fn charge(&mut self, template: &Template, step: &Step, run: &Run<'_>, reply: &mut Reply) {
        let limit = template.limit.expect("a charge concerns one limit");
        let (index, params) = (step.keys[limit].expect("a key"), template.params[limit].expect("parameters"));
        if self.key(run, index).is_foreign {
            return reply.results.push(INVALID_STATE);
        }
        self.prepare(run, index, params.period, reply);
        let now = run.now;
        self.key(run, index).window.charge(now, params.cost, params.period);
        self.record_settled((run.client, key_number(run.names[index])), params.cost, limit);
        reply.results.push(0.0);
    }

    /// Charges expired sessions, and stores the state for the reply.
    fn prepare(&mut self, run: &Run<'_>, index: usize, period: u64, reply: &mut Reply) {
        let key = self.key(run, index);
        if key.sessions.is_empty() || reply.values[index].is_some() {
            return;
        }
        let mut expired: Vec<Session> =
            key.sessions.iter().filter(|session| session.expires_at <= run.now).cloned().collect();
        key.sessions.retain(|session| session.expires_at > run.now);
        expired.sort_by_key(|session| session.expires_at);
        for session in &expired {
            if session.held > 0 {
                key.window.charge(session.expires_at, session.held, period);
                reply.expired += 1;
            }
        }
        let mut value = key.window.pack();
        if !key.sessions.is_empty() {
            value.splice(0..0, to_f64(key.held()).to_le_bytes());
            value.push(0);
        }
        reply.values[index] = Some(value);
        let limit = limit_of(run.names[index]);
        for session in &expired {
            self.record_expired(session, limit);
        }
    }

    /// The limits of a decision are settled alike, so the first one's charges are counted.
    fn record_settled(&mut self, owner: (usize, u64), cost: u64, limit: usize) {
        if limit == 0 {
            *self.settled.entry(owner).or_default() += cost;
        }
    }

    fn key(&mut self, run: &Run<'_>, index: usize) -> &mut Key {
        let name = run.names[index];
        if !self.keys.contains_key(name) {
            self.keys.insert(name.to_vec(), Key::default());
        }
        self.keys.get_mut(name).expect("inserted")
    }
}

impl Key {
    fn held(&self) -> u64 {
        self.sessions.iter().map(|session| session.held).sum()
    }
}

impl Window {
    fn used_at(&self, now: u64) -> u64 {
        if now < self.end { self.used } else { 0 }
    }

    fn charge(&mut self, now: u64, cost: u64, period: u64) {
        if now < self.end {
            self.used += cost;
        } else {
            (self.start, self.end, self.used) = (now, now + period, cost);
        }
        self.charged_at = self.charged_at.max(now);
    }

    /// The four words of `fixed_window.lua`, and the key's expiry.
    fn pack(&self) -> Vec<u8> {
        let words = [self.end, self.used, self.charged_at, self.start, self.end];
        words.into_iter().flat_map(|word| to_f64(word).to_le_bytes()).collect()
    }
}

impl Reply {
    fn pack(self, now: u64, is_fast: bool) -> Vec<u8> {
        let mut bytes = to_f64(now).to_le_bytes().to_vec();
        let count = |number: usize| u16::try_from(number).expect("a small batch");
        let flags = if is_fast { 1 } else { self.expired * 2 };
        for number in [flags, count(self.results.len()), count(self.values.len())] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.results.iter().flat_map(|result| result.to_le_bytes()));
        let values: Vec<_> = self.values.into_iter().map(Option::unwrap_or_default).collect();
        bytes.extend(values.iter().flat_map(|value| count(value.len()).to_le_bytes()));
        bytes.extend(values.into_iter().flatten());
        bytes
    }
}

/// The number at the end of a key's name.
fn key_number(name: &[u8]) -> u64 {
    let name = std::str::from_utf8(name).expect("text");
    name.rsplit(':').next().and_then(|number| number.parse().ok()).expect("keys are numbers")
}

/// The index of the limit in a key's name.
fn limit_of(name: &[u8]) -> usize {
    usize::from(name.windows(5).any(|part| part == b":all:"))
}

#[allow(clippy::cast_precision_loss, reason = "at most 2^53")]
pub(super) fn to_f64(number: u64) -> f64 {
    number as f64
}
