//! Tests of the table on one thread.
//!
//! - A stored state is found until the key is removed or idle.
//! - An idle slot is used again, and raises the horizon.
//! - The table stores as many live keys as its capacity, for any hashes.
//! - With more keys than slots, the key that is idle first is evicted, and the table does not grow.
//!
//! The loom models of the memory store cover concurrent threads.

mod capacity;
mod eviction;
mod holds;
mod locks;
mod model;
mod slots;

use std::collections::HashMap;

use super::set::{SLOTS, all_slots};
use super::table::bounded_index;
use super::*;
use crate::algorithm::AtomicState;
use crate::sync::AtomicU64;
// Its numbers are like hashes of a good hasher.
use crate::random::Random as Hashes;

/// A state is the time at which the key is idle, and the hash of the key.
type Words = Table<Cell>;
type Cell = [AtomicU64; 2];

/// Returns the size of a test: `all`, or the smaller `under_miri`, as Miri is about a thousand times slower.
const fn size(all: usize, under_miri: usize) -> usize {
    if cfg!(miri) { under_miri } else { all }
}

fn table_of(sets: usize) -> Words {
    Table::with_sets(sets, 2, WhenFull::Evict)
}

/// Reads the key, and returns its location.
fn location(table: &Words, hash: u64) -> Location {
    let mut location = Location::EMPTY;
    table.read(hash, &mut location, &mut Cell::empty());
    location
}

/// Returns hashes with these two candidate sets, in this order.
///
/// The upper half of a hash determines the first set, the lower half the second one. Independent halves need fewer tries
/// than whole hashes. The table is used only for the last check, because Miri takes time for each slot of it.
fn hashes_for(table: &Words, candidate_sets: [usize; 2]) -> impl Iterator<Item = u64> + use<'_> {
    let [first, second] = candidate_sets;
    let sets = table.sets.len();
    let step = (second + sets - first) % sets;
    let uppers = Hashes(7).map(|hash| hash & !0 << 32).filter(move |&upper| bounded_index(upper, sets) == first);
    let hashes = uppers.filter_map(move |upper| {
        let mut lowers = Hashes(upper).take(20 * sets).map(|hash| hash >> 32);
        let lower = lowers.find(|lower| 1 + bounded_index(lower << 32, sets - 1) == step)?;
        Some(upper | lower)
    });
    hashes.filter(move |&hash| table.candidate_sets(hash) == candidate_sets)
}

/// Stores the key with the idle time `until`, as a decision at `now` does. Returns `false`, with nothing written, if
/// that would evict a live key.
fn try_put(table: &Words, hash: u64, now: u64, until: u64) -> bool {
    loop {
        let location = location(table, hash);
        let token = table.lock(&location).expect("no other thread writes");
        let slot = table.ensure_slot(&location, now, &ByIdleTime, &token);
        if let Some(slot) = slot {
            *table.edit(slot, &token) = [until, hash];
        }
        table.unlock(&location, &token);
        if slot.is_some() {
            return true;
        }
        if !table.relocate(location.candidate_sets, now) {
            return false;
        }
    }
}

/// Does the same as `try_put`, and evicts if that is necessary.
fn put(table: &Words, hash: u64, now: u64, until: u64) {
    while !try_put(table, hash, now, until) {
        table.make_space(&location(table, hash), now, &ByIdleTime).expect("the policy evicts");
    }
}

/// Holds `amount` on the key. Inserts an absent key.
fn hold(table: &Words, hash: u64, now: u64, amount: u64) {
    loop {
        let location = location(table, hash);
        let token = table.lock(&location).expect("no other thread writes");
        let slot = table.ensure_slot(&location, now, &ByIdleTime, &token);
        if let Some(slot) = slot {
            if location.is_absent() {
                *table.edit(slot, &token) = [0, hash];
            }
            table.hold(slot, amount, &token);
        }
        table.unlock(&location, &token);
        if slot.is_some() {
            return;
        }
        assert!(table.relocate(location.candidate_sets, now), "a slot can be freed");
    }
}

/// Stores an idle state with the hash of the key.
fn put_idle(table: &Words, hash: u64) {
    table
        .update(hash, 0, None::<&ByIdleTime>, |table, slot, _, token| *table.edit(slot, token) = [0, hash])
        .expect("the key is present");
}

fn end_hold(table: &Words, hash: u64, amount: u64) {
    let end = |table: &Words, slot: SlotIndex, _, token: &LockToken| table.end_hold(slot, amount, token);
    table.update(hash, 0, None::<&ByIdleTime>, end).expect("the key is present");
}

fn held(table: &Words, hash: u64) -> u64 {
    table.read(hash, &mut { Location::EMPTY }, &mut Cell::empty()).held
}

/// Returns the idle time of a present key, or the horizon of an absent key as an error.
fn get(table: &Words, hash: u64) -> Result<u64, u64> {
    let mut location = Location::EMPTY;
    let mut state = Cell::empty();
    let seen = table.read(hash, &mut location, &mut state);
    let [until, owner] = *state;
    if location.is_absent() {
        assert_eq!([until, owner], [0, 0], "an absent key is idle");
        Err(seen.horizon)
    } else {
        assert_eq!((owner, seen.horizon), (hash, 0), "the state of another key");
        Ok(until)
    }
}

/// Checks the invariants of a table that no thread is using.
fn check_structure(table: &Words) {
    let mut seen = HashMap::new();
    for (index, set) in table.sets.iter().enumerate() {
        assert!(set.validate(set.version()), "a set is locked");
        for slot in all_slots() {
            let fingerprint = set.fingerprint(slot);
            if fingerprint == 0 {
                assert_eq!(*set.cell(slot).snapshot(), [0, 0], "an empty slot has a state");
            } else {
                assert!(table.candidate_sets(fingerprint).contains(&index), "a key is in no candidate set of its own");
                assert_eq!(seen.insert(fingerprint, (index, slot)), None, "a key has two slots");
            }
        }
    }
}

/// Builds two full sets of keys that are idle at 100, 101, .. 105.
fn full_pair() -> (Words, Vec<u64>) {
    let table = table_of(2);
    let keys: Vec<u64> = Hashes(3).take(2 * SLOTS).collect();
    for (&key, until) in keys.iter().zip(100..) {
        assert!(try_put(&table, key, 1, until));
    }
    (table, keys)
}
