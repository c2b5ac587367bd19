//! Locks of what was read.

use super::*;

/// Returns the hashes of three keys with the same two candidate sets. The first key is stored in the first set, the second
/// key in the other set, and the third key is absent.
fn crossing_keys(table: &Words, [first, other]: [usize; 2]) -> [u64; 3] {
    let mut between = hashes_for(table, [first, other]);
    let [at_first, new] = [between.next().expect("a hash"), between.next().expect("a hash")];
    let at_other = hashes_for(table, [other, first]).next().expect("a hash");
    put(table, at_first, 1, 1000);
    put(table, at_other, 1, 1000);
    [at_first, at_other, new]
}

#[test]
fn lock_fails_if_anything_has_changed_since_the_reading() {
    let table = table_of(4);
    // Both orders of the two sets, because sets are locked in the order of their indices.
    for [first, other] in [[0, 2], [3, 1]] {
        let [at_first, at_other, new] = crossing_keys(&table, [first, other]);
        for changed in [at_first, at_other] {
            let locations = [at_first, at_other, new].map(|key| location(&table, key));
            assert!(locations.iter().all(|location| table.is_current(location)));
            put(&table, changed, 1, 2000);
            let current = locations.map(|location| table.is_current(&location));
            assert_eq!(current, [changed != at_first, changed != at_other, false]);
            let locked = locations.map(|location| table.lock(&location));
            let is_locked = locked.each_ref().map(Option::is_some);
            assert_eq!(is_locked, current, "a lock succeeds if the location is current");
            let held = usize::from(changed == at_first);
            let (held, token) = (&locations[held], locked[held].as_ref().expect("the location is current"));
            table.unlock_unchanged(held, token);
            assert!(table.is_current(held), "nothing has changed");
        }
        check_structure(&table);
    }
}

#[test]
fn lock_of_an_absent_key_locks_both_sets() {
    let table = table_of(4);
    for [first, other] in [[0, 2], [3, 1]] {
        let [at_first, at_other, new] = crossing_keys(&table, [first, other]);
        let [at_first, at_other, new] = [at_first, at_other, new].map(|key| location(&table, key));
        let token = table.lock(&new).expect("nothing has changed");
        assert!([&at_first, &at_other, &new].iter().all(|location| table.lock(location).is_none()));
        assert!(!table.is_current(&at_first) && !table.is_current(&at_other) && !table.is_current(&new));
        table.unlock_unchanged(&new, &token);
        assert!(table.is_current(&at_first) && table.is_current(&at_other) && table.is_current(&new));
        // If one of the two sets is locked, the lock of both fails and leaves the other one unlocked.
        for locked in [at_first, at_other] {
            let token = table.lock(&locked).expect("nothing has changed");
            assert!(table.lock(&new).is_none());
            table.unlock_unchanged(&locked, &token);
            assert!(table.is_current(&at_first) && table.is_current(&at_other));
        }
        let token = table.lock(&new).expect("nothing has changed");
        table.unlock(&new, &token);
        assert!(!table.is_current(&at_first) && !table.is_current(&at_other) && !table.is_current(&new));
    }
}

#[test]
fn slot_of_a_locked_location_can_be_edited() {
    let table = table_of(2);
    put(&table, 5, 1, 10);
    let location = location(&table, 5);
    let token = table.lock(&location).expect("nothing has changed");
    let slot = table.ensure_slot(&location, 1, &ByIdleTime, &token).expect("the key is present");
    assert_eq!(table.idle_at(slot), 10);
    assert_eq!(std::mem::replace(&mut *table.edit(slot, &token), [20, 5]), [10, 5]);
    assert_eq!(table.idle_at(slot), 20);
    table.unlock(&location, &token);
    assert_eq!(get(&table, 5), Ok(20));
}
