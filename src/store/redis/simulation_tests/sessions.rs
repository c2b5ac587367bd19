//! The costs that processes hold on keys, as the documentation of holds and of leases says it.

use super::model::{Key, Part, Run, Store};
use super::quota::Quota;
use super::wire::{BatchReply, EXPIRED, INVALID_STATE, Step, Template, to_f64};

/// The costs that one process holds on a key: its holds, or its lease.
#[derive(Clone)]
pub(super) struct Session {
    id: u64,
    client: usize,
    /// The key's number at the first limit.
    number: u64,
    pub(super) held: u64,
    /// The sum of the released costs. Of a lease: that of the spent units.
    released: u64,
    /// The sum of the charged costs. Of a lease: the number of the last report.
    charged: u64,
    expires_at: u64,
    is_lease: bool,
}

impl Session {
    /// The held costs of ids that expire together.
    pub(super) fn of_group(id: f64, number: u64, expires_at: u64) -> Self {
        let (held, released, charged, is_lease) = (0, 0, 0, false);
        Self { id: id.to_bits(), client: 0, number, held, released, charged, expires_at, is_lease }
    }

    pub(super) fn is_empty_group(&self) -> bool {
        self.held == 0 && f64::from_bits(self.id).fract() != 0.0
    }
}

/// What a key stores about costs that its leases never serve: see docs/leases.md.
#[derive(Clone, Copy, Default)]
pub(super) struct LargeCosts {
    /// The units that all leases together hold at most, and their duration, as of the last report.
    most: u64,
    duration: u64,
    /// Until then the leases yield; 0 for no such time.
    yields_until: u64,
}

/// For so many durations the leases on a key yield.
const YIELD_DURATIONS: u64 = 32;

impl LargeCosts {
    fn yield_at(&self, now: u64, duration: u64) -> bool {
        self.yields_until > now && self.yields_until <= now + YIELD_DURATIONS * duration
    }
}

impl Key {
    /// Whether the key's value has more than the usage.
    pub(super) fn has_holds(&self) -> bool {
        !self.sessions.is_empty() || self.large_costs.yields_until > 0
    }

    fn leased(&self) -> u64 {
        self.sessions.iter().filter(|session| session.is_lease).map(|session| session.held).sum()
    }

    pub(super) fn held(&self) -> u64 {
        self.sessions.iter().map(|session| session.held).sum()
    }

    pub(super) fn session(&mut self, id: f64) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| session.id == id.to_bits())
    }

    /// Whether so many held units are allowed beside the usage.
    fn has_room(&self, quota: &Quota, now: u64, held: u64) -> bool {
        held == 0 || self.usage.decide(quota, now, held - 1, 1) == 0
    }
}

impl Store {
    /// Holds the costs. If the server does not know a session, it holds nothing, and returns which are unknown.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of some seconds")]
    pub(super) fn hold(&mut self, template: &Template, parts: &[Part], run: &Run<'_>) -> Result<(), Vec<bool>> {
        // A negative id creates the session.
        let is_unknown = |(part, id): (&Part, &f64)| *id > 0.0 && self.keys[part.key].session(*id).is_none();
        let unknown: Vec<bool> = parts.iter().zip(&template.ids).map(is_unknown).collect();
        if unknown.contains(&true) {
            return Err(unknown);
        }
        let (number, expires_at) = (self.keys[parts[0].key].number, run.now + template.arg2 as u64);
        for (part, id) in parts.iter().zip(&template.ids) {
            let key = &mut self.keys[part.key];
            if key.session(id.abs()).is_none() {
                let (id, client) = (id.abs().to_bits(), run.client);
                let (held, released, charged, is_lease) = (0, 0, 0, false);
                key.sessions.push(Session { id, client, number, held, released, charged, expires_at, is_lease });
            }
            let session = key.session(id.abs()).expect("added");
            session.held += part.cost;
            session.expires_at = expires_at;
        }
        Ok(())
    }

    /// Lets the leases on a key yield to a cost that they never serve, if only they deny it, or would deny it if they held
    /// as much as they may.
    pub(super) fn mark_large_costs(&mut self, parts: &[Part], verdicts: &[i64], run: &Run<'_>) {
        let allows = |key: &Key, cost: u64, leased: u64| {
            key.usage.decide(&run.quotas[key.limit], run.now, key.held() - key.leased() + leased, cost) == 0
        };
        let denying = || parts.iter().zip(verdicts).filter(|(_, verdict)| **verdict != 0).map(|(part, _)| part);
        let only_leases_deny = |part: &Part| {
            let key = &self.keys[part.key];
            key.leased() > 0 && allows(key, part.cost, 0)
        };
        let is_by_leases = denying().next().is_some() && denying().all(only_leases_deny);
        for (part, verdict) in parts.iter().zip(verdicts) {
            let key = &self.keys[part.key];
            let LargeCosts { most, duration, yields_until } = key.large_costs;
            let is_large = most > 0 && part.cost > (most / 8).max(1);
            let is_kept = yields_until > run.now && !allows(key, part.cost, most);
            let until = run.now + YIELD_DURATIONS * duration;
            if is_large && (is_by_leases && *verdict > 0 || is_kept) && yields_until + duration < until {
                self.keys[part.key].large_costs.yields_until = until;
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sum of some costs")]
    pub(super) fn update(&mut self, template: &Template, step: &Step, run: &Run<'_>, reply: &mut BatchReply) {
        let Some(index) = self.prepared(template, step, run, reply, 2) else { return };
        let &[id, released, charged, ends, _] = &template.ids[..] else { panic!("an update has five numbers") };
        let key = &mut self.keys[index];
        let (limit, now) = (key.limit, run.now);
        let Some(session) = key.session(id) else { return reply.results.extend([EXPIRED, 0.0]) };
        let mut newly_released = (released as u64).saturating_sub(session.released).min(session.held);
        let newly_charged = (charged as u64).saturating_sub(session.charged);
        session.released = session.released.max(released as u64);
        session.charged = session.charged.max(charged as u64);
        let owner = (session.client, session.number);
        if ends > 0.0 {
            newly_released = session.held;
        }
        session.held -= newly_released;
        session.expires_at = now + template.arg1;
        if ends > 0.0 {
            key.sessions.retain(|session| session.id != id.to_bits());
        }
        if newly_charged > 0 {
            key.usage.charge(&run.quotas[limit], now, newly_charged);
            self.record_settled(owner, newly_charged, limit);
        }
        reply.results.extend([to_f64(newly_released), to_f64(newly_charged)]);
    }

    /// A charge that belongs to no session: that of a surcharge after the session has ended.
    pub(super) fn charge(&mut self, template: &Template, step: &Step, run: &Run<'_>, reply: &mut BatchReply) {
        let Some(index) = self.prepared(template, step, run, reply, 1) else { return };
        let key = &mut self.keys[index];
        let cost = template.costs[key.limit].expect("a cost");
        key.usage.charge(&run.quotas[key.limit], run.now, cost);
        let (owner, limit) = ((run.client, key.number), key.limit);
        self.record_settled(owner, cost, limit);
        reply.results.push(0.0);
    }

    /// Applies the report of a lease, and grants units: see docs/leases.md.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole numbers of at most 2^53")]
    pub(super) fn renew(&mut self, template: &Template, step: &Step, run: &Run<'_>, reply: &mut BatchReply) {
        /// Redis grants no fewer units.
        const MIN_GRANT: u64 = 2;
        let Some(index) = self.prepared(template, step, run, reply, 4) else { return };
        let (id, now) = (template.ids[0], run.now);
        let &[sequence, spent, unconfirmed, keep, want, named_expiry] =
            &template.ids[1..].iter().map(|number| *number as u64).collect::<Vec<_>>()[..]
        else {
            panic!("a report has seven numbers")
        };
        let key = &mut self.keys[index];
        let quota = &run.quotas[key.limit];
        let total = key.held();
        let known = key.session(id).cloned();
        let mut answer = |held: f64, expiry: u64, charged: u64, total: u64| {
            reply.results.extend([held, to_f64(expiry), to_f64(charged), to_f64(total)]);
        };
        match &known {
            Some(lease) if sequence < lease.charged => return answer(EXPIRED, lease.expires_at, 0, total),
            Some(lease) if sequence == lease.charged => {
                return answer(to_f64(lease.held), lease.expires_at, 0, total);
            }
            None if named_expiry > 0 && named_expiry <= now => return answer(EXPIRED, 0, 0, total),
            _ => {}
        }
        let charged = known.as_ref().map_or(unconfirmed, |lease| spent.saturating_sub(lease.released));
        if charged > 0 {
            key.usage.charge(quota, now, charged);
        }
        let kept = total - known.as_ref().map_or(0, |lease| lease.held) + keep;
        let yields = key.large_costs.yield_at(now, template.arg1);
        let must_stop = keep > 0 && (yields || !key.has_room(quota, now, kept));
        let most = template.arg2.max(0.0) as u64;
        let mut granted = if must_stop || yields { 0 } else { (want - keep).min(most.saturating_sub(kept)) };
        // A grant is at most half of the room.
        while granted >= MIN_GRANT && !key.has_room(quota, now, kept + 2 * granted) {
            granted /= 2;
        }
        if granted < MIN_GRANT {
            granted = 0;
        }
        let held = keep + granted;
        let (client, number, limit) = (run.client, key.number, key.limit);
        let log = self.leases.entry((client, limit, number)).or_default();
        log.charged += charged;
        log.was_stopped |= must_stop;
        let stays = known.as_ref().map_or(named_expiry, |lease| lease.expires_at);
        if known.is_none() && held == 0 {
            return answer(0.0, 0, charged, total);
        }
        let expires_at = if must_stop { stays } else { now + template.arg1 };
        log.terms.push((now, expires_at));
        (key.large_costs.most, key.large_costs.duration) = (most, template.arg1);
        key.sessions.retain(|session| session.id != id.to_bits());
        let (id, released, charged_sum) = (id.to_bits(), spent, sequence);
        let lease = Session { id, client, number, held, released, charged: charged_sum, expires_at, is_lease: true };
        key.sessions.push(lease);
        answer(to_f64(held), expires_at, charged, kept + granted);
    }

    /// Returns the key of an operation on one limit, after expired costs were charged. `None` if its value is foreign:
    /// then the operation has so many results.
    fn prepared(
        &mut self,
        template: &Template,
        step: &Step,
        run: &Run<'_>,
        reply: &mut BatchReply,
        results: usize,
    ) -> Option<usize> {
        let limit = template.limit.expect("an operation on one limit");
        let index = step.keys[limit].expect("a key");
        if self.keys[run.keys[index]].is_foreign {
            reply.results.push(INVALID_STATE);
            reply.results.extend(std::iter::repeat_n(0.0, results - 1));
            return None;
        }
        self.prepare(run, index, reply);
        Some(run.keys[index])
    }

    /// Charges the costs that have expired on the call's key, and stores the state for the reply.
    pub(super) fn prepare(&mut self, run: &Run<'_>, index: usize, reply: &mut BatchReply) {
        let key = run.keys[index];
        if reply.values[index].is_some() {
            return;
        }
        let quota = &run.quotas[self.keys[key].limit];
        reply.expired += self.expire_key(key, quota, run.now);
        let key = &self.keys[key];
        let mut value = key.usage.pack(quota);
        if key.has_holds() {
            value = [&to_f64(key.held()).to_le_bytes()[..], &value, &[0]].concat();
        }
        reply.values[index] = Some(value);
    }

    /// Charges all costs that have expired by now: the next operations on their keys would.
    pub(super) fn expire(&mut self, quotas: &[Quota], now: u64) {
        for index in 0..self.keys.len() {
            let quota = &quotas[self.keys[index].limit];
            self.expire_key(index, quota, now);
        }
    }

    /// Charges each expired cost as of its expiry. Returns the number of them.
    fn expire_key(&mut self, index: usize, quota: &Quota, now: u64) -> u16 {
        let key = &mut self.keys[index];
        if key.large_costs.yields_until <= now {
            key.large_costs.yields_until = 0;
        }
        if !key.has_holds() {
            key.large_costs = LargeCosts::default();
        }
        if key.sessions.iter().all(|session| session.expires_at > now) {
            return 0;
        }
        let mut expired: Vec<Session> = Vec::new();
        key.sessions.retain(|session| {
            let lasts = session.expires_at > now;
            if !lasts {
                expired.push(session.clone());
            }
            lasts
        });
        expired.sort_by_key(|session| session.expires_at);
        let (limit, mut count) = (key.limit, 0);
        for session in &expired {
            if session.held > 0 {
                self.keys[index].usage.charge(quota, session.expires_at, session.held);
                count += 1;
                self.count_charge(index, session.held);
            }
            if session.is_lease {
                let log = self.leases.entry((session.client, limit, session.number)).or_default();
                log.charged += session.held;
                log.has_expired |= session.held > 0;
            } else {
                *self.expired.entry((session.client, limit, session.number)).or_default() += 1;
                self.record_settled((session.client, session.number), session.held, limit);
            }
        }
        count
    }

    /// The costs that are held now.
    pub(super) fn held(&self) -> u64 {
        self.keys.iter().map(Key::held).sum()
    }

    /// The units that the leases of a client hold now.
    pub(super) fn leased_by(&self, client: usize, now: u64) -> u64 {
        let leases = self.keys.iter().flat_map(|key| &key.sessions).filter(|session| session.is_lease);
        let live = leases.filter(|session| session.client == client && session.expires_at > now);
        live.map(|session| session.held).sum()
    }

    pub(super) fn sessions(&self) -> usize {
        self.keys.iter().map(|key| key.sessions.len()).sum()
    }
}
