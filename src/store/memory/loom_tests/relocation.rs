//! Keys that are relocated while another thread reads or charges them.

use super::*;

type Moving<S> = (Model<u64, Burst<S>>, [u64; 3]);

/// Builds a limiter with two keys in three slots, in which the insertion of a new key relocates the first one. Returns
/// the key that moves, the key that stays, and the new key. `moving` is the set before the move and the set after it.
fn before_a_move<S: TestState>(tokens: u64, moving: [u64; 2]) -> Moving<S> {
    let limiter = sets(3, Burst(tokens, PhantomData));
    let [from, to] = moving;
    let between = 3 - from - to;
    let (k, stays, new) = (key(3, [from, to], 0), key(3, [between, from], 1), key(3, [from, between], 2));
    assert!(admits(&limiter, &k) && admits(&limiter, &stays));
    (limiter, [k, stays, new])
}

/// Does the same as [`before_a_move`], with a key that moves from its second set to its first set: a reader of the
/// first set and then of the second set may find it in neither.
fn before_a_move_to_the_first_set<S: TestState>(tokens: u64) -> Moving<S> {
    let limiter = sets(3, Burst(tokens, PhantomData));
    let (first, k) = (key(3, [2, 0], 3), key(3, [2, 0], 0));
    assert!(admits(&limiter, &first) && admits(&limiter, &k));
    reset(&limiter, &first);
    let (stays, new) = (key(3, [1, 0], 1), key(3, [0, 1], 2));
    assert!(admits(&limiter, &stays));
    (limiter, [k, stays, new])
}

/// Returns all cases: a move to a set with a higher index, to a set with a lower index, and to the first set.
fn moves<S: TestState>(tokens: u64) -> [Box<dyn Fn() -> Moving<S> + Send + Sync>; 3] {
    [
        Box::new(move || before_a_move(tokens, [0, 2])),
        Box::new(move || before_a_move(tokens, [2, 0])),
        Box::new(move || before_a_move_to_the_first_set(tokens)),
    ]
}

#[test]
fn reader_finds_a_key_relocated_meanwhile() {
    for start in moves::<[u64; 2]>(1) {
        model(3, move || {
            let (limiter, [k, stays, new]) = start();
            let (charged, seen) =
                race(&limiter, move |limiter| admits(limiter, &new), move |limiter| resets(limiter, &k));
            assert!(charged);
            assert_eq!(seen, [50]);
            assert_eq!([k, stays, new].map(|key| resets(&limiter, &key)), [[50]; 3]);
        });
    }
}

#[test]
fn key_relocated_meanwhile_is_limited() {
    for start in moves::<[u64; 2]>(1) {
        model(2, move || {
            let (limiter, [k, stays, new]) = start();
            let charged = race(&limiter, move |limiter| admits(limiter, &new), move |limiter| admits(limiter, &k));
            assert_eq!(charged, (true, false));
            assert_eq!([k, stays, new].map(|key| resets(&limiter, &key)), [[50]; 3]);
        });
    }
}

fn move_against_charge<S: TestState>(preemptions: usize) {
    for start in moves::<S>(2) {
        model(preemptions, move || {
            let (limiter, [k, stays, new]) = start();
            let charged = race(&limiter, move |limiter| admits(limiter, &new), move |limiter| admits(limiter, &k));
            assert_eq!(charged, (true, true));
            assert_eq!([k, stays, new].map(|key| resets(&limiter, &key)), [[100], [50], [50]]);
        });
    }
}

#[test]
fn charge_of_a_key_relocated_meanwhile_is_kept() {
    move_against_charge::<[u64; 2]>(2);
    move_against_charge::<Counters>(1);
    move_against_charge::<HitLog>(1);
}

/// Another key is relocated to the slot of an idle key. A thread with an earlier clock reads the state of the idle key,
/// or finds it absent, and reads no part of the state of the other key.
#[test]
fn reader_finds_an_overwritten_key_whole_or_absent() {
    model(3, || {
        let limiter = sets(3, burst(4));
        let (idle, moves) = (key(3, [2, 1], 0), key(3, [0, 2], 1));
        let (stays, new) = (key(3, [1, 0], 2), key(3, [0, 1], 3));
        let four = AcquireOptions::cost(4);
        assert!([moves, stays].iter().all(|key| limiter.check(key, four).is_allowed()));
        assert!(admits(&limiter, &idle) && admits(&limiter, &idle));
        let insert = move |limiter: &Model<u64, Burst>| {
            at(200);
            admits(limiter, &new)
        };
        let (charged, seen) = race(&limiter, insert, move |limiter| resets(limiter, &idle));
        assert!(charged);
        assert!(seen == [100] || seen == [0], "{seen:?}");
        at(200);
        assert_eq!([idle, moves, stays, new].map(|key| resets(&limiter, &key)), [[0], [100], [100], [50]]);
    });
}
