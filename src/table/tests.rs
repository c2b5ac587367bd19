//! Tests of the table on one thread.
//!
//! - A stored state is found until the key is removed or idle.
//! - An idle slot is used again, and raises the horizon.
//! - The table stores as many live keys as its capacity, for any hashes.
//! - With more keys than slots, the key that is idle first is evicted, and the table does not grow.
//!
//! The loom models of the memory store cover concurrent threads.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::set::{SLOTS, all_slots};
use super::*;
use crate::algorithm::AtomicState;
use crate::sync::AtomicU64;

/// A state is the time at which the key is idle, and the hash of the key.
type Words = Table<[AtomicU64; 2]>;

/// Hashes like those of a good hasher (splitmix64). They are the same in each run.
struct Hashes(u64);

impl Iterator for Hashes {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ mixed >> 31)
    }
}

/// Measures the usage of a key by the time at which it is idle.
struct ByIdleTime;

impl EvictionPolicy<[u64; 2]> for ByIdleTime {
    fn usage_rank(&self, &[idle_at, _]: &[u64; 2]) -> (u64, u64) {
        (0, idle_at)
    }

    fn carry_over(&self, state: &mut [u64; 2], from: &[u64; 2]) {
        state[0] = state[0].max(from[0]);
    }

    fn when_full(&self) -> WhenFull {
        WhenFull::Evict
    }
}

fn table_of(sets: usize) -> Words {
    Table::with_sets(sets, 2, WhenFull::Evict)
}

/// Reads the key, and returns its location.
fn location(table: &Words, hash: u64) -> Location {
    let mut location = Location::EMPTY;
    let _ = table.read(hash, &mut location);
    location
}

/// Returns hashes with these two candidate sets, in this order.
fn hashes_for(table: &Words, candidate_sets: [usize; 2]) -> impl Iterator<Item = u64> + use<'_> {
    Hashes(7).filter(move |&hash| table.candidate_sets(hash) == candidate_sets)
}

/// Stores the key with the idle time `until`, as a decision at `now` does. Returns `false`, with nothing written, if
/// that would evict a live key.
fn try_put(table: &Words, hash: u64, now: u64, until: u64) -> bool {
    loop {
        let location = location(table, hash);
        assert!(table.lock(&location), "no other thread writes");
        let slot = table.ensure_slot(&location, now, &ByIdleTime);
        if let Some(slot) = slot {
            *table.edit(slot) = [until, hash];
        }
        table.unlock(&location);
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
        assert!(table.lock(&location), "no other thread writes");
        let slot = table.ensure_slot(&location, now, &ByIdleTime);
        if let Some(slot) = slot {
            if location.is_absent() {
                *table.edit(slot) = [0, hash];
            }
            table.hold(&location, amount);
        }
        table.unlock(&location);
        if slot.is_some() {
            return;
        }
        assert!(table.relocate(location.candidate_sets, now), "a slot can be freed");
    }
}

/// Stores an idle state with the hash of the key.
fn put_idle(table: &Words, hash: u64) {
    table
        .update(hash, 0, None::<&ByIdleTime>, |table, slot, _| *table.edit(slot) = [0, hash])
        .expect("the key is present");
}

fn end_hold(table: &Words, hash: u64, amount: u64) {
    let end = |table: &Words, _: SlotIndex, _| table.end_hold(hash, amount);
    table.update(hash, 0, None::<&ByIdleTime>, end).expect("the key is present");
}

fn held(table: &Words, hash: u64) -> u64 {
    table.read(hash, &mut { Location::EMPTY }).held
}

/// Returns the idle time of a present key, or the horizon of an absent key as an error.
fn get(table: &Words, hash: u64) -> Result<u64, u64> {
    let mut location = Location::EMPTY;
    let seen = table.read(hash, &mut location);
    let [until, owner] = *seen.state;
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

#[test]
fn key_is_found_until_it_is_removed() {
    let table = Words::with_capacity(100, 2, WhenFull::Evict);
    let keys: Vec<u64> = Hashes(1).take(100).collect();
    assert!(keys.iter().all(|&key| get(&table, key) == Err(0)));
    for (&key, until) in keys.iter().zip(1000..) {
        put(&table, key, 1, until);
    }
    for (&key, until) in keys.iter().zip(1000..) {
        assert_eq!(get(&table, key), Ok(until));
    }
    assert_eq!(table.count_live(1), 100);
    let (removed, kept) = keys.split_at(50);
    for &key in removed {
        table.remove(key);
        // The removal of an absent key changes nothing.
        table.remove(key);
        assert_eq!(get(&table, key), Err(0), "a removal raises no horizon");
    }
    for (&key, until) in kept.iter().zip(1050..) {
        assert_eq!(get(&table, key), Ok(until));
    }
    assert_eq!(table.count_live(1), 50);
    check_structure(&table);
}

#[test]
fn edit_changes_the_state_of_a_present_key() {
    let table = table_of(3);
    put(&table, 5, 1, 10);
    put(&table, 5, 2, 20);
    assert_eq!(get(&table, 5), Ok(20));
    assert_eq!(table.count_live(2), 1);
    // An idle key is found with its state, because the algorithm interprets it.
    put(&table, 5, 30, 25);
    assert_eq!(get(&table, 5), Ok(25));
    assert_eq!(table.count_live(30), 0);
}

#[test]
fn hash_zero_is_a_key_and_not_an_empty_slot() {
    let table = table_of(2);
    let new = location(&table, 0);
    assert!(new.is_absent());
    assert!(table.lock(&new));
    let slot = table.ensure_slot(&new, 1, &ByIdleTime).expect("a free slot");
    *table.edit(slot) = [9, 9];
    table.unlock(&new);
    assert!(!location(&table, 0).is_absent());
    assert_eq!(*table.read(0, &mut { Location::EMPTY }).state, [9, 9]);
    assert_eq!(table.count_live(1), 1);
    table.remove(0);
    assert_eq!(table.count_live(1), 0);
    check_structure(&table);
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

#[test]
fn slot_is_free_as_soon_as_its_state_is_idle() {
    let (table, keys) = full_pair();
    assert!(!try_put(&table, 9, 99, 1000), "at 99 all keys are live");
    assert!(keys.iter().all(|&key| get(&table, key).is_ok()));
    assert!(try_put(&table, 9, 100, 1000));
    assert_eq!(get(&table, 9), Ok(1000));
    assert_eq!(get(&table, keys[0]), Err(100), "the first key is idle at 100, and was overwritten then");
    assert!(keys[1..].iter().zip(101..).all(|(&key, until)| get(&table, key) == Ok(until)));
    check_structure(&table);
}

#[test]
fn horizon_is_the_latest_idle_time_of_the_dropped_states() {
    // No two of these sets share a horizon.
    let [here, other, far, farther] = [0, 64, 128, 192];
    let table = table_of(200);
    let keys: Vec<u64> = hashes_for(&table, [here, other]).take(3).collect();
    let (crossing, elsewhere) = (hashes_for(&table, [far, here]).next(), hashes_for(&table, [far, farther]).next());
    let (crossing, elsewhere) = (crossing.expect("a hash"), elsewhere.expect("a hash"));
    put(&table, keys[0], 1, 300);
    put(&table, keys[1], 300, 500);
    let horizons = || [get(&table, keys[0]), get(&table, crossing), get(&table, elsewhere)];
    assert_eq!(horizons(), [Err(300), Err(300), Err(0)], "of either set, and of no other set");
    put(&table, keys[2], 900, 1000);
    assert_eq!(get(&table, keys[1]), Err(500));
    // A state that was idle earlier is overwritten later: the horizon does not decrease.
    put(&table, keys[2], 900, 400);
    put(&table, keys[0], 900, 1000);
    assert_eq!(get(&table, keys[2]), Err(500));
    // An insertion into an empty slot raises no horizon.
    table.remove(keys[0]);
    put(&table, keys[0], 2000, 3000);
    assert_eq!(get(&table, keys[2]), Err(500));
}

#[test]
fn relocation_onto_an_idle_key_raises_the_horizon() {
    // The two sets do not share a horizon.
    let (from, to) = (0, 64);
    let table = table_of(70);
    let moves = hashes_for(&table, [from, to]).next().expect("a hash");
    put(&table, moves, 1, 1000);
    let idle: Vec<u64> = hashes_for(&table, [to, 65]).take(SLOTS).collect();
    idle.iter().zip(200..).for_each(|(&key, until)| put(&table, key, 1, until));
    assert!(!table.move_key(moves, from, to, 199), "no slot is idle before 200");
    assert!(table.move_key(moves, from, to, 200));
    assert!(!table.move_key(moves, from, to, 200), "the key has moved already");
    assert_eq!(get(&table, moves), Ok(1000));
    assert_eq!(get(&table, idle[0]), Err(200));
    assert_eq!([from, to].map(|set| table.horizons.of(set)), [0, 200]);
    check_structure(&table);
}

#[test]
fn held_key_keeps_its_slot_when_idle() {
    let (table, keys) = full_pair();
    hold(&table, keys[0], 1, 3);
    hold(&table, keys[0], 1, 2);
    assert_eq!((held(&table, keys[0]), table.holds()), (5, (1, 5)));
    // At 101 the first two keys are idle, and one of them is held.
    assert!(try_put(&table, 9, 101, 1000));
    assert_eq!((get(&table, keys[0]), get(&table, keys[1])), (Ok(100), Err(101)));
    end_hold(&table, keys[0], 3);
    assert!(!try_put(&table, 10, 101, 1000), "two are still held");
    end_hold(&table, keys[0], 2);
    assert_eq!((held(&table, keys[0]), table.holds()), (0, (0, 0)));
    assert!(try_put(&table, 10, 101, 1000));
    assert_eq!(get(&table, keys[0]), Err(101), "the key is idle, and its slot was free");
    check_structure(&table);
}

#[test]
fn eviction_skips_held_keys() {
    let (table, keys) = full_pair();
    // These keys are idle first.
    for &key in &keys[..4] {
        hold(&table, key, 1, 1);
    }
    put(&table, 9, 1, 1000);
    assert_eq!(get(&table, keys[4]), Err(0), "the first of the other keys to be idle");
    put(&table, 10, 1, 2000);
    assert_eq!(get(&table, keys[5]), Err(0));
    for key in [9, 10] {
        hold(&table, key, 1, 1);
    }
    let full = table.make_space(&location(&table, 11), 1, &ByIdleTime);
    assert_eq!(full, Err(TableFull { until: 100 }), "all keys are held");
    assert_eq!(table.evicted(), 2);
    assert!(keys[..4].iter().zip(100..).all(|(&key, until)| get(&table, key) == Ok(until)));
    check_structure(&table);
}

#[test]
fn held_amount_moves_with_a_relocated_key() {
    let table = table_of(70);
    let moves = hashes_for(&table, [0, 64]).next().expect("a hash");
    hold(&table, moves, 1, 7);
    assert!(table.move_key(moves, 0, 64, 1));
    assert_eq!((held(&table, moves), get(&table, moves)), (7, Ok(0)));
    // No key takes over the slot of the held key, also not by a relocation.
    let others: Vec<u64> = hashes_for(&table, [64, 1]).take(SLOTS - 1).collect();
    for &key in &others {
        put(&table, key, 1, 1000);
    }
    let late = hashes_for(&table, [2, 64]).next().expect("a hash");
    put(&table, late, 1, 1000);
    assert!(!table.move_key(late, 2, 64, 1), "the only idle key is held");
    end_hold(&table, moves, 7);
    assert!(table.move_key(late, 2, 64, 1));
    check_structure(&table);
}

#[test]
fn removed_key_keeps_its_held_amount_and_its_slot() {
    let (table, keys) = full_pair();
    hold(&table, keys[0], 1, 5);
    table.remove(keys[0]);
    let mut location = Location::EMPTY;
    let seen = table.read(keys[0], &mut location);
    assert_eq!((*seen.state, seen.held, location.is_absent()), ([0, 0], 5, false));
    assert!(!try_put(&table, 9, 1, 1000), "no free slot");
    end_hold(&table, keys[0], 5);
    assert!(try_put(&table, 9, 1, 1000));
    check_structure(&table);
}

#[test]
fn lock_fails_if_anything_has_changed_since_the_reading() {
    let table = table_of(4);
    // Both orders of the two sets, because sets are locked in the order of their indices.
    for [first, other] in [[0, 2], [3, 1]] {
        let mut between = hashes_for(&table, [first, other]);
        let [at_first, new] = [between.next().expect("a hash"), between.next().expect("a hash")];
        let at_other = hashes_for(&table, [other, first]).next().expect("a hash");
        put(&table, at_first, 1, 1000);
        put(&table, at_other, 1, 1000);
        for changed in [at_first, at_other] {
            let locations = [at_first, at_other, new].map(|key| location(&table, key));
            assert!(locations.iter().all(|location| table.is_current(location)));
            put(&table, changed, 1, 2000);
            let current = locations.map(|location| table.is_current(&location));
            assert_eq!(current, [changed != at_first, changed != at_other, false]);
            let locked = locations.map(|location| table.lock(&location));
            assert_eq!(locked, current, "a lock succeeds if the location is current");
            let held = &locations[usize::from(changed == at_first)];
            table.unlock_unchanged(held);
            assert!(table.is_current(held), "nothing has changed");
        }
        check_structure(&table);
    }
}

#[test]
fn lock_of_an_absent_key_locks_both_sets() {
    let table = table_of(4);
    for [first, other] in [[0, 2], [3, 1]] {
        let mut between = hashes_for(&table, [first, other]);
        let [at_first, new] = [between.next().expect("a hash"), between.next().expect("a hash")];
        let at_other = hashes_for(&table, [other, first]).next().expect("a hash");
        put(&table, at_first, 1, 1000);
        put(&table, at_other, 1, 1000);
        let [at_first, at_other, new] = [at_first, at_other, new].map(|key| location(&table, key));
        assert!(table.lock(&new));
        assert!(!table.lock(&at_first) && !table.lock(&at_other) && !table.lock(&new));
        assert!(!table.is_current(&at_first) && !table.is_current(&at_other) && !table.is_current(&new));
        table.unlock_unchanged(&new);
        assert!(table.is_current(&at_first) && table.is_current(&at_other) && table.is_current(&new));
        // If one of the two sets is locked, the lock of both fails and leaves the other one unlocked.
        for locked in [at_first, at_other] {
            assert!(table.lock(&locked));
            assert!(!table.lock(&new));
            table.unlock_unchanged(&locked);
            assert!(table.is_current(&at_first) && table.is_current(&at_other));
        }
        assert!(table.lock(&new));
        table.unlock(&new);
        assert!(!table.is_current(&at_first) && !table.is_current(&at_other) && !table.is_current(&new));
    }
}

#[test]
fn slot_of_a_locked_location_can_be_edited() {
    let table = table_of(2);
    put(&table, 5, 1, 10);
    let location = location(&table, 5);
    assert!(table.lock(&location));
    let slot = table.ensure_slot(&location, 1, &ByIdleTime).expect("the key is present");
    assert_eq!(table.idle_at(slot), 10);
    assert_eq!(std::mem::replace(&mut *table.edit(slot), [20, 5]), [10, 5]);
    assert_eq!(table.idle_at(slot), 20);
    table.unlock(&location);
    assert_eq!(get(&table, 5), Ok(20));
}

#[test]
fn candidate_sets_of_a_key_differ() {
    let edges = [1, 2, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 32, (1 << 32) - 1, u64::MAX << 32];
    for sets in (2..=300).chain([1000, 65_536, 190_481]) {
        let table = table_of(sets);
        for hash in edges.into_iter().chain(Hashes(sets as u64).take(300)) {
            let [first, other] = table.candidate_sets(hash);
            assert!(first < sets && other < sets && first != other, "{hash:#x} among {sets}: {first}, {other}");
            assert_eq!([table.other_candidate(hash, first), table.other_candidate(hash, other)], [other, first]);
        }
    }
}

#[test]
fn every_pair_of_candidate_sets_is_equally_likely() {
    const PAIRS: usize = 7 * 6;
    let table = table_of(7);
    let mut counts = HashMap::new();
    for hash in Hashes(11).take(1000 * PAIRS) {
        *counts.entry(table.candidate_sets(hash)).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), PAIRS);
    // Five standard deviations.
    assert!(counts.values().all(|count| (840..1160).contains(count)), "{counts:?}");
}

/// Checks that a table with a capacity of `keys` stores this number of live keys.
fn check_capacity(keys: usize, seed: u64) {
    let table = Words::with_capacity(keys, 2, WhenFull::Evict);
    let hashes = || Hashes(seed << 32 | keys as u64).take(keys);
    assert!(hashes().all(|hash| try_put(&table, hash, 1, 2)), "{keys} keys, seed {seed}");
    assert!(hashes().all(|hash| get(&table, hash) == Ok(2)), "{keys} keys, seed {seed}");
}

#[test]
fn table_stores_its_capacity_of_a_few_keys() {
    for keys in 1..=60 {
        (0..200).for_each(|seed| check_capacity(keys, seed));
    }
    for keys in 61..=300 {
        (0..10).for_each(|seed| check_capacity(keys, seed));
    }
}

#[test]
fn table_stores_its_capacity_of_some_keys() {
    (301..=3000).for_each(|keys| check_capacity(keys, 0));
}

#[test]
fn table_stores_its_capacity_of_many_keys() {
    check_capacity(100_000, 0);
    check_capacity(1_000_000, 0);
}

#[test]
fn table_stores_its_capacity_of_changing_keys() {
    for keys in [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 1000, 10_000] {
        let table = Words::with_capacity(keys, 2, WhenFull::Evict);
        let lifetime = keys as u64;
        // At any time the last `keys` keys are live.
        for (now, hash) in (1..=5 * lifetime).zip(Hashes(lifetime)) {
            assert!(try_put(&table, hash, now, now + lifetime), "{keys} keys at {now}");
        }
        assert_eq!(table.count_live(5 * lifetime), keys);
        check_structure(&table);
    }
}

/// The probability that the table cannot store as many keys as its capacity, with any relocations, is under 10^-9.
///
/// Keys are the edges of a random graph whose vertices are the sets. By Hall's theorem all keys have a slot unless both
/// candidate sets of some `f = 3 v + 1` keys are among `v` sets. Insert the keys one by one, and take the smallest of
/// the first such groups of sets. Then each set of the group is a candidate of at least four of the `f` keys: otherwise
/// a smaller group would remain without that set. So the probability is at most the sum over `v` of the product of
///
/// - the number of groups of `v` sets;
/// - the probability that `f` of the keys are in the group: for a share of at least the mean,
///   `exp(-keys D(share || p))` by Chernoff's bound;
/// - the probability that each of `v` vertices has at least four of the ends of `f` edges: of the `(v (v - 1))^f`
///   choices at most `(2 f)! [x^(2 f)] g(x)^v`, with `g(x) = exp(x) - 1 - x - x^2/2 - x^3/6`. A coefficient is at most
///   `g(x)^v / x^(2 f)` for any positive `x`. The minimum is near the `x` at which a Poisson variable of at least four
///   has the mean six.
#[test]
#[allow(clippy::cast_precision_loss, reason = "a bound, with orders of magnitude to spare")]
fn probability_that_a_key_has_no_slot_below_the_capacity_is_under_a_billionth() {
    // An upper bound of the logarithm, too large by less than a tenth.
    let ln_factorial =
        |n: f64| if n < 1.0 { 0.0 } else { n * n.ln() - n + 0.5 * (std::f64::consts::TAU * n).ln() + 1.0 / (12.0 * n) };
    let x = 5.071_469_7_f64;
    let ln_g = (x.exp() - 1.0 - x - x.powi(2) / 2.0 - x.powi(3) / 6.0).ln();
    let capacities =
        (1..3_000_u32).chain((0..60).map(|step| 3_000 + 50 * step)).chain((1..18).map(|power| 6_000 << power));
    for keys in capacities {
        let sets = Words::sets_for_keys(keys as usize) as f64;
        let keys = f64::from(keys);
        let mut probability = 0.0;
        let mut v = 2.0;
        while 3.0 * v < keys && v <= sets {
            let f = 3.0 * v + 1.0;
            let choices = ln_factorial(sets) - ln_factorial(v) - ln_factorial(sets - v) + 0.2;
            let (p, share) = (v * (v - 1.0) / (sets * (sets - 1.0)), f / keys);
            assert!(share > p, "Chernoff's bound is for shares above the mean");
            let rest = if share < 1.0 { (1.0 - share) * ((1.0 - share) / (1.0 - p)).ln() } else { 0.0 };
            let fall_there = -keys * (share * (share / p).ln() + rest);
            let all_have_four = ln_factorial(2.0 * f) + v * ln_g - 2.0 * f * x.ln() - f * (v * (v - 1.0)).ln();
            // Adjacent terms are nearly equal if there are many, so one term represents several.
            let step = if v < 1_000.0 { 1.0 } else { (v / 500.0).floor() };
            probability += step * (choices + fall_there + all_have_four.min(0.0)).exp();
            v += step;
        }
        assert!(probability < 1e-9, "{keys} keys in {sets} sets: {probability:e}");
    }
}

/// Measures the fill at which the first insertion must evict, as the documentation of `with_capacity` states it.
#[test]
fn table_fills_almost_to_the_last_slot() {
    for (sets, least) in [(50, 0.9), (1000, 0.93), (20_000, 0.93)] {
        let table = table_of(sets);
        let mut keys = Hashes(sets as u64);
        let mut stored = 0_u32;
        while (stored as usize) < table.capacity() && keys.next().is_some_and(|hash| try_put(&table, hash, 1, 2)) {
            stored += 1;
        }
        let fill = f64::from(stored) / f64::from(u32::try_from(table.capacity()).expect("a small table"));
        println!("{} slots: the first insertion fails when {:.2} % are live", table.capacity(), 100.0 * fill);
        assert!(fill > least, "{sets} sets are full at {fill}");
        assert_eq!(table.count_live(1), stored as usize);
    }
}

#[test]
fn relocation_loses_no_key() {
    for sets in [2, 3, 4, 7, 20, 100] {
        for seed in 0..50 {
            let table = table_of(sets);
            let mut keys = HashMap::new();
            for (hash, until) in Hashes(seed * 1000 + sets as u64).zip(100..) {
                let stored = keys.len() < table.capacity() && try_put(&table, hash, 1, until);
                if !stored {
                    break;
                }
                keys.insert(hash, until);
            }
            assert!(keys.len() > table.capacity() / 2);
            assert!(keys.iter().all(|(&hash, &until)| get(&table, hash) == Ok(until)));
            assert_eq!(table.count_live(1), keys.len());
            check_structure(&table);
        }
    }
}

#[test]
fn full_table_evicts_the_key_that_is_idle_first() {
    // With two sets there is no relocation, so the table contains the six keys that are idle last.
    let (table, keys) = full_pair();
    let mut model: BTreeMap<u64, u64> = (100..).zip(keys).collect();
    for (hash, step) in Hashes(17).zip(0..3000) {
        // Some keys are idle before all others, and the next insertion evicts them.
        let until = 1000 + (step * 7919) % 5003;
        put(&table, hash, 1, until);
        model.pop_first();
        model.insert(until, hash);
        assert!(model.iter().all(|(&until, &hash)| get(&table, hash) == Ok(until)), "at step {step}");
        assert_eq!(table.count_live(1), 2 * SLOTS);
    }
    check_structure(&table);
}

#[test]
fn more_keys_than_slots_evict_no_long_lived_key() {
    for sets in [2, 5, 9, 30] {
        let table = table_of(sets);
        let bytes = table.bytes();
        // As many keys as one set stores, in case all of them have the same candidate sets.
        let lasting: Vec<u64> = Hashes(1).take(SLOTS).collect();
        for &hash in &lasting {
            put(&table, hash, 1, 1_000_000);
        }
        for (step, hash) in Hashes(2).take(3000).enumerate() {
            put(&table, hash, 1, 10 + step as u64 % 1000);
            assert_eq!(get(&table, hash), Ok(10 + step as u64 % 1000), "the new key is stored");
        }
        assert!(lasting.iter().all(|&hash| get(&table, hash) == Ok(1_000_000)));
        assert_eq!(table.count_live(1), table.capacity(), "no slot is empty");
        assert_eq!(table.bytes(), bytes);
        check_structure(&table);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A thread whose clock is `behind` charges a key, which is then idle `span` later.
    Charge {
        key: usize,
        behind: u64,
        span: u64,
    },
    Hold {
        key: usize,
        amount: u64,
    },
    EndHold {
        key: usize,
    },
    Remove {
        key: usize,
    },
    Pass {
        time: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..60_usize;
    let step = prop_oneof![
        8 => (key.clone(), 0..50_u64, 1..200_u64).prop_map(|(key, behind, span)| Step::Charge { key, behind, span }),
        1 => key.clone().prop_map(|key| Step::Remove { key }),
        2 => (key.clone(), 1..9_u64).prop_map(|(key, amount)| Step::Hold { key, amount }),
        2 => key.prop_map(|key| Step::EndHold { key }),
        3 => (0..100_u64).prop_map(|time| Step::Pass { time }),
    ];
    proptest::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// The model is a map that drops no state. Each state that the table has dropped was idle at the horizon.
    #[test]
    fn table_equals_a_map_except_for_idle_keys(seed: u64, steps in steps()) {
        let keys: Vec<u64> = Hashes(seed).take(60).collect();
        let table = Words::with_capacity(keys.len(), 2, WhenFull::Evict);
        let mut model: HashMap<u64, u64> = HashMap::new();
        let mut held_amounts: HashMap<u64, u64> = HashMap::new();
        let (mut time, mut latest) = (1000, 0);
        for step in steps {
            match step {
                Step::Pass { time: passed } => time += passed,
                Step::Hold { key, amount } => {
                    if let Err(horizon) = get(&table, keys[key]) {
                        let dropped = model.remove(&keys[key]);
                        prop_assert!(dropped.is_none_or(|until| until <= horizon), "dropped before it was idle");
                    }
                    latest = latest.max(time);
                    hold(&table, keys[key], time, amount);
                    *held_amounts.entry(keys[key]).or_default() += amount;
                }
                Step::EndHold { key } => {
                    if let Some(amount) = held_amounts.remove(&keys[key]) {
                        end_hold(&table, keys[key], amount);
                    }
                }
                Step::Remove { key } => {
                    table.remove(keys[key]);
                    model.remove(&keys[key]);
                    if held_amounts.contains_key(&keys[key]) {
                        // The held key keeps its slot, with the zero state.
                        put_idle(&table, keys[key]);
                    }
                }
                Step::Charge { key, behind, span } => {
                    let hash = keys[key];
                    let now = match get(&table, hash) {
                        Ok(until) => {
                            prop_assert_eq!(model.get(&hash).copied().unwrap_or(0), until);
                            time - behind
                        }
                        Err(horizon) => {
                            let dropped = model.get(&hash);
                            prop_assert!(dropped.is_none_or(|&until| until <= horizon), "dropped before it was idle");
                            prop_assert!(horizon <= latest, "the horizon is ahead of all clocks");
                            horizon.max(time - behind)
                        }
                    };
                    latest = latest.max(now);
                    let until = now.max(model.get(&hash).copied().unwrap_or(0)) + span;
                    prop_assert!(try_put(&table, hash, now, until), "the capacity suffices for all keys");
                    model.insert(hash, until);
                    prop_assert_eq!(get(&table, hash), Ok(until));
                }
            }
            let live = model.values().filter(|&&until| until > time).count();
            prop_assert_eq!(table.count_live(time), live);
            prop_assert_eq!(table.holds(), (held_amounts.len(), held_amounts.values().sum()));
            for (&hash, &amount) in &held_amounts {
                prop_assert_eq!(held(&table, hash), amount);
                prop_assert!(get(&table, hash).is_ok(), "a held key has lost its slot");
            }
        }
        check_structure(&table);
    }
}
