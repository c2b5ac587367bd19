//! Stored states, free slots and horizons.

use super::*;

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
    let token = table.lock(&new).expect("no other thread writes");
    let slot = table.ensure_slot(&new, 1, &ByIdleTime, &token).expect("a free slot");
    *table.edit(slot, &token) = [9, 9];
    table.unlock(&new, &token);
    assert!(!location(&table, 0).is_absent());
    let mut state = Cell::empty();
    table.read(0, &mut { Location::EMPTY }, &mut state);
    assert_eq!(*state, [9, 9]);
    assert_eq!(table.count_live(1), 1);
    table.remove(0);
    assert_eq!(table.count_live(1), 0);
    check_structure(&table);
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
fn key_that_becomes_idle_is_not_live() {
    let (table, keys) = full_pair();
    let live = |now| {
        let mut live = Vec::new();
        table.for_each_live(now, |fingerprint, until, _| live.push((until, fingerprint)));
        live.sort_unstable();
        live
    };
    let all: Vec<_> = (100..).zip(keys).collect();
    assert_eq!((live(99), table.count_live(99)), (all.clone(), 6));
    assert_eq!((live(100), table.count_live(100)), (all[1..].to_vec(), 5));
    assert_eq!((live(105), table.count_live(105)), (Vec::new(), 0));
}

/// A set takes two cache lines, and 64 sets share a horizon.
#[test]
fn bytes_are_those_of_sets_and_horizons() {
    let bytes = |sets| table_of(sets).bytes();
    assert_eq!(bytes(65) - bytes(64), 128 + 8);
    assert_eq!(bytes(640) - bytes(64), 576 * 128 + 9 * 8);
}
