//! What is remembered by an id: of a hold which limits hold how much and until when, of a request what was charged.
//!
//! A hold that nobody settles is charged as of its expiry. There is no background thread: a decision that finds a held
//! cost on its key, and every operation with an id, first ends the holds that are due. A key without held costs is
//! decided on the fast path, which reads nothing here.
//!
//! # Memory
//!
//! A key has at most `max_ids` remembered ids of holds, and as many of requests that are charged once. All keys together
//! have [`MAX_TOTAL`](Reservations::MAX_TOTAL). Then an id makes room that would be forgotten first: of a charged request,
//! else of a hold that has ended. If no hold has ended, a further one is denied. An id of a request displaces no hold: if
//! there is no other one, it is not remembered.

use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;

use crate::clock::Timestamp;
use crate::decision::{Costs, ReservationId};
use crate::error::Error;
use crate::store::inner::{CallId, HeldEntry, latest_end, micros_floor};

/// The holds with an id of one limiter.
pub(super) struct Reservations {
    max_ids: usize,
    max_total: usize,
    /// The earliest expiry of a hold in microseconds, `u64::MAX` if there is none.
    next_due: AtomicU64,
    /// [`Records::newest`].
    newest: AtomicU64,
    records: Mutex<Records>,
    hasher: RandomState,
}

#[derive(Default)]
pub(super) struct Records {
    by_id: HashMap<RecordKey, Record, RandomState>,
    /// For each key the number of its remembered ids.
    counts: HashMap<u64, usize, RandomState>,
    /// The holds by their expiry.
    held: Queue,
    /// The ended holds by the time at which they are forgotten.
    ended: Queue,
    /// The requests that are charged once, by the time at which they are forgotten.
    requests: Queue,
    last_number: u64,
    /// The latest time of a record since the clock stepped back.
    newest: u64,
}

/// Ids by a time, which a number makes unique.
type Queue = BTreeMap<(u64, u64), RecordKey>;

/// Returns whether the clock has stepped back by more than the shortest time for which an id is remembered.
fn is_behind(now: u64, newest: u64) -> bool {
    now.saturating_add(micros_floor(CallId::MIN)) < newest
}

/// A key of the limiter (a hash of its sub-keys in all limits, and of the kind of the id), and an id.
pub(super) type RecordKey = (u64, ReservationId);

struct Record {
    costs: Costs,
    limits: Vec<HeldEntry>,
    phase: Phase,
    /// When a hold expires, or when a charged request is forgotten.
    expires_at: u64,
    /// For how long it lasts until then.
    lifetime: u64,
    number: u64,
}

impl Record {
    /// For as long again after the expiry, a late settlement finds the record and charges only the excess.
    fn forgotten_at(&self) -> u64 {
        if let Phase::Charged { .. } = self.phase {
            self.expires_at
        } else {
            self.expires_at.saturating_add(self.lifetime)
        }
    }

    /// Returns the place of the id in the queue of its phase.
    fn due(&self) -> (u64, u64) {
        (if let Phase::Held { .. } = self.phase { self.expires_at } else { self.forgotten_at() }, self.number)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// So many repeats are allowed.
    Held {
        repeats: u16,
    },
    /// The whole held cost was charged.
    Expired,
    Settled,
    /// A request is charged. So many repeats pass without a charge.
    Charged {
        repeats: u16,
    },
}

/// What a hold with a remembered id is.
pub(super) enum Repeat {
    Allowed,
    /// No repeats are left. The id is remembered until this time.
    Denied(Timestamp),
}

/// What a settlement must do.
pub(super) enum Settlement {
    Unknown,
    Nothing,
    /// End the hold on these limits, and charge the actual costs.
    End(Vec<HeldEntry>),
    /// Charge what exceeds the held costs.
    Excess(Vec<HeldEntry>),
}

impl Reservations {
    /// The maximum number of remembered ids of all keys.
    pub(super) const MAX_TOTAL: usize = 1_000_000;

    pub(super) fn new(max_ids: usize) -> Self {
        Self {
            max_ids,
            max_total: Self::MAX_TOTAL,
            next_due: AtomicU64::new(u64::MAX),
            newest: AtomicU64::new(0),
            records: Mutex::default(),
            hasher: RandomState::default(),
        }
    }

    /// Returns whether there are holds.
    // Relaxed: a thread that misses the new time leaves due holds to the next call. Records are read under their lock.
    #[inline]
    pub(super) fn has_holds(&self) -> bool {
        self.next_due.load(Ordering::Relaxed) != u64::MAX
    }

    /// Returns whether a hold has expired, or the clock has stepped back.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        let (next, now) = (self.next_due.load(Ordering::Relaxed), now.as_micros());
        next != u64::MAX && (next <= now || is_behind(now, self.newest.load(Ordering::Relaxed)))
    }

    /// Returns the hash of a key's parts in all limits, which `visit_parts` visits: a limit, and the hash of the sub-key.
    /// `None` if there are none.
    pub(super) fn hash(&self, is_hold: bool, visit_parts: impl FnOnce(&mut dyn FnMut(u64, u64))) -> Option<u64> {
        let (mut hasher, mut is_empty) = (self.hasher.build_hasher(), true);
        is_hold.hash(&mut hasher);
        visit_parts(&mut |limit, sub_key| {
            (limit, sub_key).hash(&mut hasher);
            is_empty = false;
        });
        (!is_empty).then(|| hasher.finish())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the earliest expiry, after a change of the records.
    pub(super) fn publish(&self, records: &Records) {
        let next = records.held.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
        self.next_due.store(next, Ordering::Relaxed);
        self.newest.store(records.newest, Ordering::Relaxed);
    }

    /// Returns whether [`make_room`](Self::make_room) can.
    pub(super) fn has_room(&self, records: &Records, key: u64, is_hold: bool) -> bool {
        let can_forget = !records.requests.is_empty() || is_hold && !records.ended.is_empty();
        records.counts.get(&key).is_none_or(|count| *count < self.max_ids)
            && (records.by_id.len() < self.max_total || can_forget)
    }

    /// Makes room for an id of a key, as "Memory" describes. Returns `false` if there is none.
    pub(super) fn make_room(&self, records: &mut Records, key: u64, is_hold: bool) -> bool {
        if !self.has_room(records, key, is_hold) {
            return false;
        }
        if records.by_id.len() >= self.max_total
            && let Some((_, first)) = records.requests.pop_first().or_else(|| records.ended.pop_first())
        {
            records.forget(first);
        }
        true
    }
}

impl Records {
    /// Returns the limits of the next hold that has expired. They must be charged.
    pub(super) fn take_expired(&mut self, now: Timestamp) -> Option<&[HeldEntry]> {
        let first = self.held.first_entry().filter(|first| first.key().0 <= now.as_micros())?;
        let (at, key) = (first.key().0, first.remove());
        // Always present: a record is forgotten only after its hold has ended.
        let record = self.by_id.get_mut(&key)?;
        record.phase = Phase::Expired;
        self.ended.insert(record.due(), key);
        record.limits.iter_mut().filter(|entry| !entry.is_until_end()).for_each(|entry| entry.at = at);
        Some(&record.limits)
    }

    /// After a step of the clock back, forgets the ids that do not count (see [`latest_end`]). Returns the limits of those
    /// that are held, which must be released.
    pub(super) fn take_stale(&mut self, now: Timestamp) -> Vec<Vec<HeldEntry>> {
        if !is_behind(now.as_micros(), self.newest) {
            return Vec::new();
        }
        // Later times make no further record stale, so each step is searched for once.
        self.newest = now.as_micros();
        let is_stale = |record: &Record| record.expires_at > latest_end(now, record.lifetime).as_micros();
        let stale: Vec<_> = self.by_id.iter().filter(|(_, record)| is_stale(record)).map(|(key, _)| *key).collect();
        let mut held = Vec::new();
        for key in stale {
            let Some(record) = self.by_id.get_mut(&key) else { continue };
            let (phase, due) = (record.phase, record.due());
            if let Phase::Held { .. } = phase {
                held.push(std::mem::take(&mut record.limits));
            }
            self.queue_of(phase).remove(&due);
            self.forget(key);
        }
        held
    }

    /// Forgets the ids that need not be remembered any longer.
    pub(super) fn forget_old(&mut self, now: Timestamp) {
        let is_old = |first: &OccupiedEntry<'_, (u64, u64), RecordKey>| first.key().0 <= now.as_micros();
        while let Some(first) =
            self.ended.first_entry().filter(is_old).or_else(|| self.requests.first_entry().filter(is_old))
        {
            let key = first.remove();
            self.forget(key);
        }
    }

    fn forget(&mut self, key: RecordKey) {
        self.by_id.remove(&key);
        if let Some(count) = self.counts.get_mut(&key.0) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key.0);
            }
        }
    }

    /// Returns what a hold of these costs is if its id is remembered, and counts an allowed repeat.
    pub(super) fn repeat(&mut self, key: RecordKey, costs: Costs) -> Option<Result<Repeat, Error>> {
        let record = self.by_id.get_mut(&key)?;
        Some(match record.phase {
            _ if record.costs != costs => Err(Error::id_conflict()),
            Phase::Held { repeats: 0 } => Ok(Repeat::Denied(Timestamp::from_micros(record.forgotten_at()))),
            Phase::Held { repeats } => {
                record.phase = Phase::Held { repeats: repeats - 1 };
                Ok(Repeat::Allowed)
            }
            _ => Err(Error::already_settled()),
        })
    }

    fn queue_of(&mut self, phase: Phase) -> &mut Queue {
        match phase {
            Phase::Held { .. } => &mut self.held,
            Phase::Charged { .. } => &mut self.requests,
            Phase::Expired | Phase::Settled => &mut self.ended,
        }
    }

    /// Records a hold.
    pub(super) fn insert(
        &mut self,
        key: RecordKey,
        reserve: CallId,
        now: Timestamp,
        costs: Costs,
        mut limits: Vec<HeldEntry>,
    ) {
        // A collected list has space for four: see `constraints: ids`.
        limits.shrink_to_fit();
        self.add(key, reserve, now, costs, limits, Phase::Held { repeats: reserve.repeats });
    }

    fn add(&mut self, key: RecordKey, id: CallId, now: Timestamp, costs: Costs, limits: Vec<HeldEntry>, phase: Phase) {
        self.last_number += 1;
        self.newest = self.newest.max(now.as_micros());
        let (number, lifetime) = (self.last_number, id.micros());
        let expires_at = now.as_micros().saturating_add(lifetime);
        let record = Record { costs, limits, phase, expires_at, lifetime, number };
        self.queue_of(phase).insert(record.due(), key);
        *self.counts.entry(key.0).or_default() += 1;
        self.by_id.insert(key, record);
    }

    /// Ends the hold with an id, unless it has ended.
    pub(super) fn settle(&mut self, key: RecordKey) -> Settlement {
        let Some(record) = self.by_id.get_mut(&key) else { return Settlement::Unknown };
        let due = record.due();
        match std::mem::replace(&mut record.phase, Phase::Settled) {
            Phase::Settled | Phase::Charged { .. } => Settlement::Nothing,
            Phase::Expired => Settlement::Excess(std::mem::take(&mut record.limits)),
            Phase::Held { .. } => {
                self.held.remove(&due);
                self.ended.insert(record.due(), key);
                Settlement::End(std::mem::take(&mut record.limits))
            }
        }
    }

    /// Returns whether an id is remembered, even if no repeat passes any more.
    pub(super) fn is_remembered(&self, key: RecordKey) -> bool {
        self.by_id.contains_key(&key)
    }

    /// Returns what the request with an id was charged, if a repeat passes without a charge.
    pub(super) fn repeatable(&self, key: RecordKey) -> Option<Costs> {
        let record = self.by_id.get(&key)?;
        if let Phase::Charged { repeats: 1.. } = record.phase { Some(record.costs) } else { None }
    }

    /// Counts a repeat that has passed.
    pub(super) fn repeated(&mut self, key: RecordKey) {
        if let Some(record) = self.by_id.get_mut(&key)
            && let Phase::Charged { repeats } = &mut record.phase
        {
            *repeats = repeats.saturating_sub(1);
        }
    }

    /// Adds what a repeat was charged, if the id is still remembered.
    pub(super) fn add_charge(&mut self, key: RecordKey, costs: Costs) {
        if let Some(record) = self.by_id.get_mut(&key) {
            record.costs = record.costs.plus(costs);
        }
    }
}

impl Reservations {
    /// Records what the request with an id is charged, unless the key has too many ids.
    pub(super) fn record(&self, records: &mut Records, key: RecordKey, once: CallId, now: Timestamp, costs: Costs) {
        if let Some(record) = records.by_id.get_mut(&key) {
            record.costs = record.costs.max(costs);
            return;
        }
        if self.make_room(records, key.0, false) {
            records.add(key, once, now, costs, Vec::new(), Phase::Charged { repeats: once.repeats });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn id(number: u64) -> ReservationId {
        ReservationId::new(number.to_be_bytes())
    }

    /// Records requests and holds of many keys, each of which has one id.
    fn filled(requests: u64, holds: u64) -> Reservations {
        let reservations = Reservations { max_total: 8, ..Reservations::new(4) };
        let mut records = reservations.lock();
        for number in 0..requests {
            let once = CallId::request(id(number), 1, Duration::from_secs(60 + number));
            reservations.record(&mut records, (number, id(number)), once, NOW, Costs::from(1));
        }
        for number in 0..holds {
            let key = (100 + number, id(number));
            if reservations.make_room(&mut records, key.0, true) {
                records.insert(key, CallId::hold(id(number)), NOW, Costs::from(1), Vec::new());
            }
        }
        drop(records);
        reservations
    }

    fn remembered(reservations: &Reservations) -> (Vec<u64>, usize) {
        let records = reservations.lock();
        let requests = (0..20).filter(|number| records.is_remembered((*number, id(*number)))).collect();
        let holds = (0..20).filter(|number| records.is_remembered((100 + *number, id(*number)))).count();
        (requests, holds)
    }

    #[test]
    fn idempotency_id_makes_room_that_would_be_forgotten_first() {
        assert_eq!(remembered(&filled(10, 0)), ((2..10).collect(), 0));
        assert_eq!(remembered(&filled(10, 3)), ((5..10).collect(), 3), "a hold displaces a request");
    }

    #[test]
    fn idempotency_id_displaces_no_reservation_id() {
        let reservations = filled(0, 10);
        assert_eq!(remembered(&reservations), (vec![], 8), "no hold has ended, so further ones are denied");
        let settle = |number| drop(reservations.lock().settle((100 + number, id(number))));
        settle(3);
        let record = |number| {
            let once = CallId::request(id(number), 1, Duration::from_secs(60));
            reservations.record(&mut reservations.lock(), (number, id(number)), once, NOW, Costs::from(1));
        };
        record(15);
        assert_eq!(remembered(&reservations), (vec![], 8), "a request displaces no hold, not even a settled one");
        assert!(reservations.make_room(&mut reservations.lock(), 200, true), "a hold displaces a settled one");
        assert_eq!(remembered(&reservations).1, 7);
        record(15);
        assert_eq!(remembered(&reservations), (vec![15], 7));
        assert!(reservations.make_room(&mut reservations.lock(), 200, true));
        assert_eq!(remembered(&reservations), (vec![], 7), "a request makes room for a hold");
    }
}
