//! Relocation and eviction.

use std::collections::{BTreeMap, HashMap};

use super::super::eviction::EvictionState;
use super::*;

#[test]
fn relocation_loses_no_key() {
    for &sets in &[2, 3, 4, 7, 20, 100][..size(6, 4)] {
        for seed in 0..size(50, 2) as u64 {
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

/// Fills sets 0 to 3 of a table. A key of the sets 0 and 1 gets a slot only by two moves: from set 2 to set 3, and then
/// from set 1 to set 2. Two keys of set 3 are idle at 20, all others at 100.
fn chain() -> Words {
    let table = table_of(5);
    let fill = |pair, untils: &[u64]| {
        for (hash, &until) in hashes_for(&table, pair).zip(untils) {
            assert!(try_put(&table, hash, 1, until));
        }
    };
    fill([3, 2], &[20, 20, 100]);
    fill([2, 1], &[100, 100]);
    fill([2, 3], &[100]);
    fill([1, 0], &[100, 100]);
    fill([1, 2], &[100]);
    fill([0, 1], &[100, 100, 100]);
    table
}

/// After a failed search, no other search is made until the first of the keys that it has read is idle, for at most
/// ten milliseconds, or until a key is removed.
#[test]
fn search_is_made_again_once_a_key_is_idle_or_removed() {
    let absent = |table: &Words| hashes_for(table, [0, 1]).nth(SLOTS).expect("a hash");
    let in_last_set = |table: &Words| hashes_for(table, [3, 2]).nth(2).expect("a hash");

    let table = chain();
    assert!(!try_put(&table, absent(&table), 10, 100), "no key is idle");
    put(&table, in_last_set(&table), 10, 11);
    assert!(!try_put(&table, absent(&table), 19, 100), "no search is made");
    assert!(try_put(&table, absent(&table), 20, 100), "two moves free a slot");
    let second = hashes_for(&table, [0, 1]).nth(SLOTS + 1).expect("a hash");
    assert!(!try_put(&table, second, 20, 100), "no other key can move to the last set");
    check_structure(&table);

    let table = chain();
    assert!(!try_put(&table, absent(&table), 10, 100), "no key is idle");
    table.remove(in_last_set(&table));
    assert!(try_put(&table, absent(&table), 10, 100), "two moves free a slot");

    let eviction = EvictionState::<Cell>::new(false, 1, 2);
    let is_full = |times: [u64; 4]| times.map(|now| eviction.is_full(now));
    eviction.note_full(1_000_000, u64::MAX);
    assert_eq!(
        is_full([1_000_000, 1_009_999, 1_010_000, 0]),
        [true, true, false, false],
        "also if the clock steps back"
    );
    eviction.note_full(1_000_000, 1_000_005);
    assert_eq!(is_full([1_000_000, 1_000_004, 1_000_005, 0]), [true, true, false, false]);
}

#[test]
fn absent_key_is_denied_only_if_neither_a_slot_is_free_nor_a_key_can_move() {
    let table = chain();
    let absent = hashes_for(&table, [2, 1]).nth(SLOTS).expect("a hash");
    let is_full_for = |hash, now, when_full| table.is_full_for(&location(&table, hash), now, when_full).is_err();
    assert!(is_full_for(absent, 10, WhenFull::Deny));
    assert!(!is_full_for(absent, 20, WhenFull::Deny), "a key can move to set 3");
    assert!(!is_full_for(absent, 10, WhenFull::Evict), "a key can be evicted");
    let elsewhere = hashes_for(&table, [4, 0]).next().expect("a hash");
    hold(&table, elsewhere, 10, 1);
    assert!(!is_full_for(absent, 10, WhenFull::Evict), "a key without a held amount can be evicted");
    for (pair, count) in [([1, 0], 2), ([1, 2], 1), ([2, 1], 2), ([2, 3], 1)] {
        hashes_for(&table, pair).take(count).for_each(|hash| hold(&table, hash, 10, 1));
    }
    assert!(is_full_for(absent, 10, WhenFull::Evict), "all keys of both sets are held");
    assert!(!is_full_for(absent, 20, WhenFull::Evict), "a held key can move");
}

#[test]
fn full_table_evicts_the_key_that_is_idle_first() {
    // With two sets there is no relocation, so the table contains the six keys that are idle last.
    let (table, keys) = full_pair();
    let mut model: BTreeMap<u64, u64> = (100..).zip(keys).collect();
    for (hash, step) in Hashes(17).zip(0..size(3000, 30) as u64) {
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
    for &sets in &[2, 5, 9, 30][..size(4, 3)] {
        let table = table_of(sets);
        let bytes = table.bytes();
        // As many keys as one set stores, in case all of them have the same candidate sets.
        let lasting: Vec<u64> = Hashes(1).take(SLOTS).collect();
        for &hash in &lasting {
            put(&table, hash, 1, 1_000_000);
        }
        for (step, hash) in Hashes(2).take(size(3000, 120)).enumerate() {
            put(&table, hash, 1, 10 + step as u64 % 1000);
            assert_eq!(get(&table, hash), Ok(10 + step as u64 % 1000), "the new key is stored");
        }
        assert!(lasting.iter().all(|&hash| get(&table, hash) == Ok(1_000_000)));
        assert_eq!(table.count_live(1), table.capacity(), "no slot is empty");
        assert_eq!(table.bytes(), bytes);
        check_structure(&table);
    }
}
