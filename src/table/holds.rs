//! The amounts held on keys, stored beside the states.
//!
//! Few keys have a held amount, so the amounts are in a map of their own. States and sets do not grow. A flag in the
//! version of a set says that one of its keys has a held amount: other sets' keys are decided as if there were no holds.
//!
//! # Protocol
//!
//! An amount and the flag change only under the lock of the set with the key's slot. A reader loads the set's version
//! with the flag, then the amount, and then validates the version, as for a state. So the state and the amount are of
//! one moment: a change between the two loads changes the version. A key that moves to its other set takes the flag
//! along.
//!
//! A key with a held amount keeps its slot, also when its state is idle: no insertion, relocation or eviction takes
//! over the slot. Otherwise the settlement could find no slot in a full table, and the actual cost would not be
//! charged.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::BuildHasherDefault;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use super::set::LockToken;
use crate::sync::{Mutex, MutexGuard};

/// The held amounts, by fingerprint.
pub(super) struct Holds {
    shards: [Mutex<Amounts>; SHARDS],
    /// The number of keys with a held amount. It counts a key of a set whose lock the thread holds, as that lock orders the
    /// changes of its keys. Not an atomic of the model checker, as it orders no other access.
    keys: std::sync::atomic::AtomicUsize,
}

/// Fingerprints are hashes, so they are not hashed again.
type Amounts = HashMap<u64, u64, BuildHasherDefault<Fingerprints>>;

#[cfg(not(loom))]
const SHARDS: usize = 16;
#[cfg(loom)]
const SHARDS: usize = 1;

impl Holds {
    pub(super) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::new(Amounts::default())),
            keys: std::sync::atomic::AtomicUsize::new(0),
        }
    }

    /// Returns the amount held on a key.
    #[cold]
    pub(super) fn of(&self, fingerprint: u64) -> u64 {
        self.shard(fingerprint).get(&fingerprint).copied().unwrap_or(0)
    }

    /// Holds `amount` more on a key.
    pub(super) fn add(&self, fingerprint: u64, amount: u64, _: &LockToken) {
        match self.shard(fingerprint).entry(fingerprint) {
            Entry::Occupied(mut held) => *held.get_mut() = held.get().saturating_add(amount),
            Entry::Vacant(vacant) => {
                vacant.insert(amount);
                self.keys.fetch_add(1, Relaxed);
            }
        }
    }

    /// Holds `amount` less on a key. Returns whether an amount is still held on the key.
    pub(super) fn subtract(&self, fingerprint: u64, amount: u64, _: &LockToken) -> bool {
        match self.shard(fingerprint).entry(fingerprint) {
            Entry::Occupied(mut held) if *held.get() > amount => {
                *held.get_mut() -= amount;
                true
            }
            Entry::Occupied(held) => {
                held.remove();
                self.keys.fetch_sub(1, Relaxed);
                false
            }
            // A hold of zero has no entry.
            Entry::Vacant(_) => false,
        }
    }

    /// Returns whether no key has a held amount, except for keys of sets that other threads have locked.
    pub(super) fn is_empty(&self, _: &LockToken) -> bool {
        self.keys.load(Relaxed) == 0
    }

    /// Returns the number of keys with a held amount, and the sum of these amounts.
    pub(super) fn totals(&self) -> (usize, u64) {
        let totals = self.shards.iter().map(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            (shard.len(), shard.values().fold(0, |sum: u64, held| sum.saturating_add(*held)))
        });
        totals.fold((0, 0), |(keys, amount), (more, held)| (keys + more, amount.saturating_add(held)))
    }

    pub(super) fn bytes(&self) -> usize {
        let of = |shard: &Mutex<Amounts>| shard.lock().unwrap_or_else(PoisonError::into_inner).capacity();
        // A map allocates an eighth more than its capacity, and a byte of its own for each entry.
        self.shards.iter().map(of).sum::<usize>() * 8 / 7 * (size_of::<(u64, u64)>() + 1) + size_of::<Self>()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn lock_all(&self) -> impl Sized + '_ {
        self.shards.each_ref().map(Mutex::lock)
    }

    #[allow(clippy::cast_possible_truncation, reason = "only the low bits count")]
    fn shard(&self, fingerprint: u64) -> MutexGuard<'_, Amounts> {
        self.shards[fingerprint as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A hasher that returns a fingerprint unchanged.
#[derive(Default)]
struct Fingerprints(u64);

impl std::hash::Hasher for Fingerprints {
    fn finish(&self) -> u64 {
        self.0
    }

    // The trait demands it. A `u64` is hashed by `write_u64`.
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}
