//! Saves of the counts while other threads decide.

use super::*;

/// Saves a limiter, and restores the file into a limiter with enough sets.
fn restored(file: &[u8]) -> Model<u64, Burst> {
    let builder = Memory::builder(burst(2)).max_keys(6).clock(ThreadClock).hasher(Identity);
    builder.restore(file).build().expect("restored")
}

fn save(limiter: &Model<u64, Burst>) -> Vec<u8> {
    let mut file = Vec::new();
    limiter.save(&mut file).expect("saved");
    file
}

/// A key that moves to a set that the reader has passed is in the file.
#[test]
fn snapshot_contains_a_key_relocated_meanwhile() {
    for [from, to] in [[0, 2], [2, 0]] {
        // One preemption: two take minutes, for each of the directions.
        model(1, move || {
            let limiter = sets(3, burst(2));
            let between = 3 - from - to;
            let (moves, stays, new) = (key(3, [from, to], 0), key(3, [between, from], 1), key(3, [from, between], 2));
            assert!(admits(&limiter, &moves) && admits(&limiter, &stays));
            let (charged, file) = race(&limiter, move |limiter| admits(limiter, &new), save);
            assert!(charged);
            let restored = restored(&file);
            assert_eq!([moves, stays].map(|key| resets(&restored, &key)), [[50]; 2]);
        });
    }
}

/// A key is saved as it was before a concurrent charge or after it, never a part of each.
#[test]
fn snapshot_contains_a_key_charged_meanwhile_whole() {
    model(2, || {
        let limiter = sets(2, burst(2));
        let charged = key(2, [0, 1], 0);
        assert!(admits(&limiter, &charged));
        let (allowed, file) = race(&limiter, move |limiter| admits(limiter, &charged), save);
        assert!(allowed);
        let saved = resets(&restored(&file), &charged);
        assert!(saved == [50] || saved == [100], "{saved:?}");
    });
}
