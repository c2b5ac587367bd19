//! A key is absent only if neither of its sets contains it at one moment.

use super::*;

type Words = Table<[AtomicU64; 2]>;

/// Builds a table in which the key is in its second set, and the first set is empty.
fn in_second_set(sets: u64, [first, other]: [u64; 2]) -> (Words, u64) {
    let max_keys = [1, 3][usize::try_from(sets - 2).expect("two or three")];
    let table = Words::with_capacity(max_keys, 2, WhenFull::Evict);
    let (first, k) = (key(sets, [first, other], 1), key(sets, [first, other], 0));
    put(&table, 100, first);
    put(&table, 100, k);
    table.remove(first);
    (table, k)
}

/// Reads the key, and returns the location if the key is absent.
fn absent(table: &Words, k: u64) -> Option<Location> {
    let mut location = Location::EMPTY;
    table.read(k, &mut location, &mut <[AtomicU64; 2]>::empty());
    location.is_absent().then_some(location)
}

/// In some orders, the reader reads the first set before the key moves there, and the second set after the move.
#[test]
fn key_relocated_to_its_first_set_is_never_absent() {
    for between in [[0, 1], [1, 0]] {
        model(3, move || {
            let (table, k) = in_second_set(2, between);
            let [first, other] = between.map(|set| usize::try_from(set).expect("a few sets"));
            let (moved, absent) = race(
                &table,
                move |table: &Words| table.move_key(k, other, first, 100),
                move |table: &Words| absent(table, k).is_some(),
            );
            assert!(moved && !absent);
        });
    }
}

#[test]
fn key_relocated_from_its_first_set_is_never_absent() {
    for between in [[0, 1], [1, 0]] {
        model(3, move || {
            let table = Words::with_capacity(1, 2, WhenFull::Evict);
            let k = key(2, between, 0);
            put(&table, 100, k);
            let [first, other] = between.map(|set| usize::try_from(set).expect("a few sets"));
            let (moved, absent) = race(
                &table,
                move |table: &Words| table.move_key(k, first, other, 100),
                move |table: &Words| absent(table, k).is_some(),
            );
            assert!(moved && !absent);
        });
    }
}

/// Only the second set changes. A reading that found the key absent was made after the change, so its versions are
/// current and the key can be inserted.
#[test]
fn reading_of_an_absent_key_is_valid_for_both_sets() {
    for between in [[0, 1], [1, 0]] {
        model(3, move || {
            let (table, k) = in_second_set(2, between);
            let ((), absent) =
                race(&table, move |table: &Words| table.remove(k), move |table: &Words| absent(table, k));
            if let Some(location) = absent {
                assert!(table.is_current(&location), "absent in a set with a pending change");
                let token = table.lock(&location).expect("the reading is current");
                table.unlock_unchanged(&location, &token);
            }
        });
    }
}

/// The key is idle, and another key takes over its slot. The other candidate set of that key is a third set.
#[test]
fn reading_of_a_replaced_idle_key_is_valid_for_both_sets() {
    for between in [[0, 1], [1, 0], [2, 1], [1, 2]] {
        model(2, move || {
            let (table, k) = in_second_set(3, between);
            let [first, other] = between;
            let new = key(3, [other, 3 - first - other], 2);
            let ((), absent) =
                race(&table, move |table: &Words| put(table, 200, new), move |table: &Words| absent(table, k));
            if let Some(location) = absent {
                assert!(table.is_current(&location), "absent in a set with a pending change");
                let seen = table.read(k, &mut { location }, &mut <[AtomicU64; 2]>::empty());
                assert_eq!(seen.horizon, 200, "the time at which the key was idle");
            }
        });
    }
}
