//! A key is absent only if both of its sets say so at one moment.

use super::*;

type Words = Table<[AtomicU64; 2]>;

/// A table in which the key lies in its second set, and its first one is empty.
fn in_second_set(sets: u64, [first, other]: [u64; 2]) -> (Words, u64) {
    let max_keys = [1, 3][usize::try_from(sets - 2).expect("two or three")];
    let table = Words::with_capacity(max_keys, 2, WhenFull::Evict);
    let (first, k) = (key(sets, [first, other], 1), key(sets, [first, other], 0));
    put(&table, 100, first);
    put(&table, 100, k);
    table.remove(first);
    (table, k)
}

/// What was read of the key, if it is absent.
fn absent(table: &Words, k: u64) -> Option<Location> {
    let mut location = Location::EMPTY;
    drop(table.read(k, &mut location));
    location.is_absent().then_some(location)
}

/// The reader looks at the first set before the key is moved there, and at the second one after that.
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

/// The only change is to the second set. A reading that found the key absent was made after it, of both sets: so what the
/// location vouches for still holds, and the key can be inserted there.
#[test]
fn reading_of_an_absent_key_is_valid_for_both_sets() {
    for between in [[0, 1], [1, 0]] {
        model(3, move || {
            let (table, k) = in_second_set(2, between);
            let ((), absent) =
                race(&table, move |table: &Words| table.remove(k), move |table: &Words| absent(table, k));
            if let Some(location) = absent {
                assert!(table.is_current(&location), "absent by a set that was being changed");
                assert!(table.lock(&location));
                table.unlock_unchanged(&location);
            }
        });
    }
}

/// As above, where the key is idle, and a newcomer whose other set is a third one takes its slot.
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
                assert!(table.is_current(&location), "absent by a set that was being changed");
                assert_eq!(table.read(k, &mut { location }).horizon, 200, "the moment at which it was idle");
            }
        });
    }
}
