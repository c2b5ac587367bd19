//! The costs that processes hold on keys, as the documentation of holds and of leases says it.

use super::model::{Key, Part, Run, Store};
use super::quota::{Quota, Usage};
use super::server_model::{Entry, KeyUsage, LeaseAnswer, LeaseTerms};
use super::wire::{BatchReply, EXPIRED, INVALID_STATE, Step, Template, to_f64};

/// What a key stores about costs that its leases never serve: see docs/leases.md.
#[derive(Clone, Copy, Default)]
pub(super) struct LargeCosts {
    /// The units that all leases together hold at most, and their duration, as of the last report.
    most: u64,
    pub(super) duration: u64,
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
        !self.costs.entries.is_empty() || self.large_costs.yields_until > 0
    }

    pub(super) fn leased(&self) -> u64 {
        self.costs.entries.iter().filter(|(id, _)| is_lease(**id)).map(|(_, entry)| entry.held).sum()
    }
}

/// Whether these are the bits of the id of a lease. The ids of sessions and groups are below 2^52.
fn is_lease(id: u64) -> bool {
    f64::from_bits(id) >= to_f64(1 << 52)
}

impl KeyUsage for (&Quota, &mut Usage) {
    fn charge(&mut self, at: u64, units: u64) {
        if units > 0 {
            self.1.charge(self.0, at, units);
        }
    }

    fn has_room(&self, now: u64, units: u64) -> bool {
        units == 0 || self.1.decide(self.0, now, units - 1, 1) == 0
    }

    fn is_idle(&self, now: u64) -> bool {
        self.1.remaining(self.0, now, 0) == self.0.capacity()
    }
}

impl Store {
    /// Holds the costs. If the server does not know a session, it holds nothing, and returns which are unknown.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of some seconds")]
    pub(super) fn hold(&mut self, template: &Template, parts: &[Part], run: &Run<'_>) -> Result<(), Vec<bool>> {
        // A negative id creates the session.
        let is_known = |(part, id): (&Part, &f64)| self.keys[part.key].costs.entries.contains_key(&id.to_bits());
        let unknown: Vec<bool> = parts.iter().zip(&template.ids).map(|one| *one.1 > 0.0 && !is_known(one)).collect();
        if unknown.contains(&true) {
            return Err(unknown);
        }
        for (part, id) in parts.iter().zip(&template.ids) {
            let id = id.abs().to_bits();
            self.clients.insert(id, run.client);
            let expiry = template.arg2 as u64 / mistake!(SessionsAreNotRenewed, 9, 1);
            self.keys[part.key].costs.extend(id, run.now, expiry).held += part.cost;
        }
        Ok(())
    }

    /// Lets the leases on a key yield to a cost that they never serve, if only they deny it, or would deny it if they held
    /// as much as they may.
    pub(super) fn mark_large_costs(&mut self, parts: &[Part], verdicts: &[i64], run: &Run<'_>) {
        let allows = |key: &Key, cost: u64, leased: u64| {
            key.usage.decide(&run.quotas[key.limit], run.now, key.costs.total() - key.leased() + leased, cost) == 0
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
        let &[id, released, charged, ends, held] = &template.ids[..] else { panic!("an update has five numbers") };
        let key = &mut self.keys[index];
        let (limit, owner) = (key.limit, (run.client, key.number));
        let (ends, released, charged, held) = (ends as u64, released as u64, charged as u64, held as u64);
        let (mut id, mut is_trimmed) = (id.to_bits(), ends == 1);
        let (is_renamed, renamed) = (!key.costs.entries.contains_key(&id), (f64::from_bits(id) + 1.0).to_bits());
        if ends == 2
            && let Some(entry) = key.costs.entries.remove(&id)
        {
            key.costs.entries.insert(renamed, entry);
            self.clients.insert(renamed, run.client);
            // What the process does not know to be held, because the replies are lost.
            is_trimmed = !mistake!(HoldsWithoutReplyStay);
        }
        if ends == 2 || ends == 1 && is_renamed {
            id = renamed;
        }
        if !key.costs.entries.contains_key(&id) {
            return reply.results.extend([EXPIRED, 0.0]);
        }
        let entry = key.costs.extend(id, run.now, template.arg1);
        let unknown = if is_trimmed { entry.held.saturating_sub(held) } else { 0 };
        let newly_released = released.saturating_sub(entry.released).min(entry.held).max(unknown);
        let newly_charged = charged.saturating_sub(entry.charged);
        entry.held -= newly_released;
        (entry.released, entry.charged) = (entry.released.max(released), entry.charged.max(charged));
        if ends == 1 {
            key.costs.remove(id);
        }
        if newly_charged > 0 {
            key.usage.charge(&run.quotas[limit], run.now, newly_charged);
            self.record_settled(owner, newly_charged, limit);
            if mistake!(SurchargeIsRepeated) {
                return reply.results.extend([EXPIRED, 0.0]);
            }
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
        let Some(key_index) = self.prepared(template, step, run, reply, 4) else { return };
        let mut numbers = [template.ids[0].to_bits(); 7];
        numbers[1..].iter_mut().zip(&template.ids[1..]).for_each(|(number, sent)| *number = *sent as u64);
        let [id, .., keep, want, _] = numbers;
        if run.ignores_releases && keep + want == 0 {
            reply.results.extend([0.0; 4]);
            return self.push_view(key_index, run, reply);
        }
        let (key, now, duration) = (&mut self.keys[key_index], run.now, template.arg1);
        let most = template.arg2.max(0.0) as u64;
        let terms = LeaseTerms { most, duration, yields: key.large_costs.yield_at(now, duration) };
        let answer = key.costs.renew(numbers, now, terms, &mut (&run.quotas[key.limit], &mut key.usage));
        let (held, expiry, charged) = match answer {
            LeaseAnswer::Applied { held, expiry, charged } => (to_f64(held), expiry, charged),
            LeaseAnswer::Repeated { held, expiry } => (to_f64(held), expiry, 0),
            LeaseAnswer::Late { expiry } => (EXPIRED, expiry, 0),
        };
        reply.results.extend([held, to_f64(expiry), to_f64(charged), to_f64(key.costs.total())]);
        if matches!(answer, LeaseAnswer::Applied { .. }) {
            let log = self.leases.entry((run.client, key.limit, key.number)).or_default();
            log.charged += charged;
            if expiry > 0 {
                log.was_stopped |= keep > 0 && expiry != now + duration;
                log.terms.push((now, expiry));
                (key.large_costs.most, key.large_costs.duration) = (most, duration);
                self.clients.insert(id, run.client);
            }
        }
        if !matches!(answer, LeaseAnswer::Late { .. }) {
            self.push_view(key_index, run, reply);
        }
    }

    /// Adds the figures of a key of a log.
    pub(super) fn push_view(&self, key: usize, run: &Run<'_>, reply: &mut BatchReply) {
        let key = &self.keys[key];
        let view = key.usage.view(&run.quotas[key.limit], run.now, key.costs.total());
        reply.results.extend(view.into_iter().flatten().map(to_f64));
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
            value = [&to_f64(key.costs.total()).to_le_bytes()[..], &value, &[0]].concat();
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
        let expired = key.costs.expire(now, &mut (quota, &mut key.usage));
        let (limit, number, mut count) = (key.limit, key.number, 0);
        for (id, Entry { held, .. }) in expired {
            if held > 0 {
                count += 1;
                self.count_charge(index, held);
            }
            let client = self.clients.get(&id).copied().unwrap_or(0);
            if is_lease(id) {
                let log = self.leases.entry((client, limit, number)).or_default();
                log.charged += held;
                log.has_expired |= held > 0;
            } else {
                *self.expired.entry((client, limit, number)).or_default() += 1;
                self.record_settled((client, number), held, limit);
            }
        }
        count
    }

    /// The costs that are held now.
    pub(super) fn held(&self) -> u64 {
        self.keys.iter().map(|key| key.costs.total()).sum()
    }

    /// The units that the leases of a client hold now.
    pub(super) fn leased_by(&self, client: usize, now: u64) -> u64 {
        let entries = self.keys.iter().flat_map(|key| &key.costs.entries);
        let is_live = |id: &u64, entry: &Entry| self.clients.get(id) == Some(&client) && entry.expiry > now;
        entries.filter(|(id, entry)| is_lease(**id) && is_live(id, entry)).map(|(_, entry)| entry.held).sum()
    }

    pub(super) fn sessions(&self) -> usize {
        self.keys.iter().map(|key| key.costs.entries.len()).sum()
    }
}
