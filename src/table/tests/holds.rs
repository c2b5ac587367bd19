//! Held amounts.

use super::*;

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
    assert_eq!(full, Err(TableFull { until: 100, all_held: true }), "all keys are held");
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
    let mut state = Cell::empty();
    let seen = table.read(keys[0], &mut location, &mut state);
    assert_eq!((*state, seen.held, location.is_absent()), ([0, 0], 5, false));
    assert!(!try_put(&table, 9, 1, 1000), "no free slot");
    end_hold(&table, keys[0], 5);
    assert!(try_put(&table, 9, 1, 1000));
    check_structure(&table);
}

/// A map has a power of two of buckets, of which it uses seven eighths. A bucket takes a fingerprint, an amount and a
/// byte.
#[test]
fn held_amounts_are_counted_in_bytes() {
    /// Sixteen shards of 4096 buckets: between 1793 and 3584 amounts each, far from both.
    const HOLDS: usize = if cfg!(miri) { 0 } else { 16 * 2_700 };
    const BYTES: usize = if cfg!(miri) { 0 } else { 16 * 4_096 * (8 + 8 + 1) };
    let table = Words::with_capacity(HOLDS, 2, WhenFull::Evict);
    let empty = table.bytes();
    for hash in Hashes(5).take(HOLDS) {
        hold(&table, hash, 1, 1);
    }
    let added = table.bytes() - empty;
    assert!(added.abs_diff(BYTES) <= BYTES / 100, "{added} bytes, and {BYTES} are expected");
}
