//! Keys that are moved to their other set while somebody reads or charges them.

use super::*;

type Moving<S> = (Model<Burst<S>>, [u64; 3]);

/// Three keys in three slots, one of which must move for a newcomer to fit: the one that moves, the one that stays, the
/// newcomer. `moving` is the way that it goes.
fn about_to_move<S: Kept>(tokens: u64, moving: [u64; 2]) -> Moving<S> {
    let limiter = sets(3, Burst(tokens, PhantomData));
    let [from, to] = moving;
    let between = 3 - from - to;
    let (k, stays, new) = (key(3, [from, to], 0), key(3, [between, from], 1), key(3, [from, between], 2));
    assert!(admits(&limiter, &k) && admits(&limiter, &stays));
    (limiter, [k, stays, new])
}

/// As `about_to_move`, but the key is in its second set and moves first: a reader who looks there first can see it in
/// neither.
fn about_to_move_home<S: Kept>(tokens: u64) -> Moving<S> {
    let limiter = sets(3, Burst(tokens, PhantomData));
    let (first, k) = (key(3, [2, 0], 3), key(3, [2, 0], 0));
    assert!(admits(&limiter, &first) && admits(&limiter, &k));
    reset(&limiter, &first);
    let (stays, new) = (key(3, [1, 0], 1), key(3, [0, 1], 2));
    assert!(admits(&limiter, &stays));
    (limiter, [k, stays, new])
}

/// The ways to move up and down the table, and first.
fn moves<S: Kept>(tokens: u64) -> [Box<dyn Fn() -> Moving<S> + Send + Sync>; 3] {
    [
        Box::new(move || about_to_move(tokens, [0, 2])),
        Box::new(move || about_to_move(tokens, [2, 0])),
        Box::new(move || about_to_move_home(tokens)),
    ]
}

#[test]
fn reader_finds_a_key_relocated_meanwhile() {
    for start in moves::<[u64; 2]>(1) {
        model(3, move || {
            let (limiter, [k, stays, new]) = start();
            let (charged, seen) =
                race(&limiter, move |limiter| admits(limiter, &new), move |limiter| owed(limiter, &k));
            assert!(charged);
            assert_eq!(seen, [50]);
            assert_eq!([k, stays, new].map(|key| owed(&limiter, &key)), [[50]; 3]);
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
            assert_eq!([k, stays, new].map(|key| owed(&limiter, &key)), [[50]; 3]);
        });
    }
}

fn move_against_commit<S: Kept>(preemptions: usize) {
    for start in moves::<S>(2) {
        model(preemptions, move || {
            let (limiter, [k, stays, new]) = start();
            let charged = race(&limiter, move |limiter| admits(limiter, &new), move |limiter| admits(limiter, &k));
            assert_eq!(charged, (true, true));
            assert_eq!([k, stays, new].map(|key| owed(&limiter, &key)), [[100], [50], [50]]);
        });
    }
}

#[test]
fn charge_of_a_key_relocated_meanwhile_is_kept() {
    move_against_commit::<[u64; 2]>(2);
    move_against_commit::<Counters>(1);
    move_against_commit::<HitLog>(1);
}

/// Of a key in whose idle slot another one lands, a thread with an earlier clock reads what it owes, or that it is gone,
/// and nothing of the other's state.
#[test]
fn reader_finds_an_overwritten_key_whole_or_absent() {
    model(3, || {
        let limiter = sets(3, burst(4));
        let (idle, moves) = (key(3, [2, 1], 0), key(3, [0, 2], 1));
        let (stays, new) = (key(3, [1, 0], 2), key(3, [0, 1], 3));
        let four = AcquireOptions::cost(4);
        assert!([moves, stays].iter().all(|key| limiter.check(key, four).is_allowed()));
        assert!(admits(&limiter, &idle) && admits(&limiter, &idle));
        let newcomer = move |limiter: &Model<Burst>| {
            at(200);
            admits(limiter, &new)
        };
        let (charged, seen) = race(&limiter, newcomer, move |limiter| owed(limiter, &idle));
        assert!(charged);
        assert!(seen == [100] || seen == [0], "{seen:?}");
        at(200);
        assert_eq!([idle, moves, stays, new].map(|key| owed(&limiter, &key)), [[0], [100], [100], [50]]);
    });
}
