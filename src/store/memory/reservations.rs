//! The holds with an id: which limits hold how much for each id, and until when.
//!
//! A hold that nobody settles is charged as of its expiry. There is no background thread: a decision that finds a held
//! cost on its key, and every operation with an id, first ends the holds that are due. A key without held costs is
//! decided on the fast path, which reads nothing here.
//!
//! # Memory
//!
//! A key has at most `max_ids` remembered ids. All keys together have [`MAX_TOTAL`](Reservations::MAX_TOTAL): then the id
//! is forgotten that would be forgotten first of those whose hold has ended. If no hold has ended, a further one is denied.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::transaction_limit::HeldLimit;
use super::usage::KeyId;
use crate::clock::Timestamp;
use crate::decision::{Costs, ReservationId};
use crate::store::inner::Reserve;

/// The holds with an id of one limiter.
pub(super) struct Reservations {
    max_ids: usize,
    /// The earliest expiry of a hold in microseconds, `u64::MAX` if there is none.
    next_due: AtomicU64,
    records: Mutex<Records>,
    hasher: RandomState,
}

#[derive(Default)]
pub(super) struct Records {
    by_id: HashMap<RecordKey, Record>,
    /// For each key the number of its remembered ids.
    counts: HashMap<u64, usize>,
    /// The holds by their expiry. The number makes each time unique.
    held: BTreeMap<(u64, u64), RecordKey>,
    /// The ended holds by the time at which they are forgotten.
    ended: BTreeMap<(u64, u64), RecordKey>,
    last_number: u64,
}

/// A key of the limiter (a hash of its sub-keys in all limits), and an id.
pub(super) type RecordKey = (u64, ReservationId);

struct Record {
    costs: Costs,
    limits: Vec<HeldLimit>,
    phase: Phase,
    expires_at: u64,
    forgotten_at: u64,
    number: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Held,
    /// The whole held cost was charged.
    Expired,
    Settled,
}

/// What a settlement must do.
pub(super) enum Settlement {
    Unknown,
    Nothing,
    /// End the hold on these limits, and charge the actual costs.
    End(Vec<HeldLimit>),
    /// Charge what exceeds the held costs.
    Excess(Vec<HeldLimit>),
}

impl Reservations {
    /// The maximum number of remembered ids of all keys.
    pub(super) const MAX_TOTAL: usize = 1_000_000;

    pub(super) fn new(max_ids: usize) -> Self {
        Self { max_ids, next_due: AtomicU64::new(u64::MAX), records: Mutex::default(), hasher: RandomState::new() }
    }

    /// Returns whether a hold has expired.
    #[inline]
    pub(super) fn is_due(&self, now: impl FnOnce() -> Timestamp) -> bool {
        let next = self.next_due.load(Ordering::Relaxed);
        next != u64::MAX && next <= now().as_micros()
    }

    /// Returns the hash of a key's parts in all limits.
    pub(super) fn hash(&self, parts: &[(u64, KeyId)]) -> u64 {
        self.hasher.hash_one(parts)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the earliest expiry, after a change of the records.
    pub(super) fn publish(&self, records: &Records) {
        let next = records.held.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
        self.next_due.store(next, Ordering::Relaxed);
    }

    /// Returns whether a key has as many ids as it may have, or all keys together have.
    pub(super) fn is_full(&self, records: &mut Records, key: u64) -> bool {
        if records.by_id.len() >= Self::MAX_TOTAL
            && let Some((_, first)) = records.ended.pop_first()
        {
            records.forget(first);
        }
        records.by_id.len() >= Self::MAX_TOTAL || records.counts.get(&key).is_some_and(|count| *count >= self.max_ids)
    }
}

impl Records {
    /// Returns the limits of the next hold that has expired. They must be charged.
    pub(super) fn take_expired(&mut self, now: Timestamp) -> Option<&[HeldLimit]> {
        let first = self.held.first_entry().filter(|first| first.key().0 <= now.as_micros())?;
        let (at, key) = (first.key().0, first.remove());
        let record = self.by_id.get_mut(&key)?;
        record.phase = Phase::Expired;
        self.ended.insert((record.forgotten_at, record.number), key);
        record.limits.iter_mut().for_each(|limit| limit.expired_at = Some(Timestamp::from_micros(at)));
        Some(&record.limits)
    }

    /// Forgets the ids that need not be remembered any longer.
    pub(super) fn forget_old(&mut self, now: Timestamp) {
        while let Some(first) = self.ended.first_entry().filter(|first| first.key().0 <= now.as_micros()) {
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

    /// Returns the costs of the hold with an id.
    pub(super) fn costs(&self, key: RecordKey) -> Option<Costs> {
        self.by_id.get(&key).map(|record| record.costs)
    }

    /// Records a hold.
    pub(super) fn insert(
        &mut self,
        key: RecordKey,
        reserve: Reserve,
        now: Timestamp,
        costs: Costs,
        limits: Vec<HeldLimit>,
    ) {
        self.last_number += 1;
        let number = self.last_number;
        let expires_at = now.as_micros().saturating_add(reserve.expires_in);
        let forgotten_at = expires_at.saturating_add(reserve.expires_in);
        self.held.insert((expires_at, number), key);
        *self.counts.entry(key.0).or_default() += 1;
        self.by_id.insert(key, Record { costs, limits, phase: Phase::Held, expires_at, forgotten_at, number });
    }

    /// Ends the hold with an id, unless it has ended.
    pub(super) fn settle(&mut self, key: RecordKey) -> Settlement {
        let Some(record) = self.by_id.get_mut(&key) else { return Settlement::Unknown };
        let before = std::mem::replace(&mut record.phase, Phase::Settled);
        match before {
            Phase::Settled => Settlement::Nothing,
            Phase::Expired => Settlement::Excess(std::mem::take(&mut record.limits)),
            Phase::Held => {
                self.held.remove(&(record.expires_at, record.number));
                self.ended.insert((record.forgotten_at, record.number), key);
                Settlement::End(std::mem::take(&mut record.limits))
            }
        }
    }
}
