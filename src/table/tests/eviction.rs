//! Relocation and eviction.

use std::collections::{BTreeMap, HashMap};

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
