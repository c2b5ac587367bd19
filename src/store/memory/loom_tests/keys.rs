//! A key under one limit: inserted, charged, evicted, reset.

use super::*;

#[test]
fn new_key_is_inserted_once() {
    model(3, || {
        let limiter = sets(2, burst(1));
        let k = key(2, [0, 1], 0);
        let (a, b) = race(&limiter, move |limiter| admits(limiter, &k), move |limiter| admits(limiter, &k));
        assert!(a ^ b, "one of {a} and {b}");
        assert_eq!(resets(&limiter, &k), [50]);
    });
}

/// Charges the key in three threads, and returns how many requests were admitted.
fn three_charge(limiter: &Model<u64, Burst>, k: u64) -> u8 {
    let (first, second) = (limiter.clone(), limiter.clone());
    let threads = [thread::spawn(move || admits(&first, &k)), thread::spawn(move || admits(&second, &k))];
    let here = admits(limiter, &k);
    let there = threads.map(|thread| thread.join().expect("no thread panics"));
    u8::from(here) + u8::from(there[0]) + u8::from(there[1])
}

#[test]
fn three_threads_share_a_quota_of_two() {
    // With one preemption the model passes as well, in a quarter of an hour.
    model_of_equals(0, || {
        let limiter = sets(2, burst(2));
        let k = key(2, [1, 0], 0);
        assert_eq!(three_charge(&limiter, k), 2);
        assert_eq!(resets(&limiter, &k), [100]);
    });
}

/// The key is present, so there are fewer orders.
#[test]
fn three_threads_share_the_remaining_of_a_quota() {
    model_of_equals(2, || {
        let limiter = sets(2, burst(2));
        let k = key(2, [1, 0], 0);
        assert!(admits(&limiter, &k));
        assert_eq!(three_charge(&limiter, k), 1);
        assert_eq!(resets(&limiter, &k), [100]);
    });
}

#[test]
fn idle_slot_is_claimed_once() {
    model(3, || {
        let limiter = sets(2, burst(1));
        let k = key(2, [0, 1], 0);
        assert!(admits(&limiter, &k));
        let later = move |limiter: &Model<u64, Burst>| {
            at(150);
            admits(limiter, &k)
        };
        let (a, b) = race(&limiter, later, later);
        assert!(a ^ b, "one of {a} and {b}");
        at(150);
        assert_eq!(resets(&limiter, &k), [50]);
    });
}

/// Two new keys have the only free slot in common. Each insertion locks both candidate sets of its key.
#[test]
fn new_keys_do_not_share_a_slot() {
    model(3, || {
        let limiter = sets(3, burst(1));
        let (old, a, b) = (key(3, [0, 2], 0), key(3, [0, 1], 1), key(3, [1, 2], 2));
        assert!(admits(&limiter, &old));
        let charged = race(&limiter, move |limiter| admits(limiter, &a), move |limiter| admits(limiter, &b));
        assert_eq!(charged, (true, true));
        assert_eq!([old, a, b].map(|key| resets(&limiter, &key)), [[50]; 3]);
    });
}

/// The new key overwrites a state that is idle by its thread's clock. A thread with an earlier clock decides on the old
/// key at the horizon.
fn eviction_against_charge<S: TestState>(preemptions: usize) {
    model(preemptions, || {
        let limiter = sets(2, Burst::<S>(4, PhantomData));
        let (old, new) = (key(2, [0, 1], 0), key(2, [0, 1], 1));
        assert!(admits(&limiter, &old) && admits(&limiter, &old));
        // The old key is idle at 200. Charged before, at 100, it is idle at 250. If it was evicted, it is charged at
        // 200.
        let insert = move |limiter: &Model<u64, Burst<S>>| {
            at(200);
            admits(limiter, &new)
        };
        let charged = race(&limiter, insert, move |limiter| admits(limiter, &old));
        assert_eq!(charged, (true, true));
        at(200);
        assert_eq!([old, new].map(|key| resets(&limiter, &key)), [[50]; 2]);
    });
}

#[test]
fn eviction_and_charge_of_one_key_exclude_each_other() {
    eviction_against_charge::<[u64; 2]>(3);
    eviction_against_charge::<Counters>(2);
    eviction_against_charge::<HitLog>(2);
}

#[test]
fn denial_is_exact_while_the_key_is_evicted() {
    model(3, || {
        let limiter = sets(2, burst(2));
        let (old, new) = (key(2, [0, 1], 0), key(2, [0, 1], 1));
        assert!(admits(&limiter, &old) && admits(&limiter, &old));
        let insert = move |limiter: &Model<u64, Burst>| {
            at(200);
            admits(limiter, &new)
        };
        let (charged, decision) = race(&limiter, insert, move |limiter| decide(limiter, &old));
        assert!(charged);
        at(200);
        assert_eq!(resets(&limiter, &new), [50]);
        match decision.verdict() {
            Verdict::Denied { retry_after } => assert_eq!(retry_after, Duration::from_micros(50)),
            verdict => {
                assert_eq!(verdict, Verdict::Allowed);
                assert_eq!(resets(&limiter, &old), [50]);
            }
        }
    });
}

fn peek_against_charges<S: TestState>(preemptions: usize) {
    model(preemptions, || {
        let limiter = sets(2, Burst::<S>(3, PhantomData));
        let k = key(2, [0, 1], 0);
        let charges = move |limiter: &Model<u64, Burst<S>>| assert!(admits(limiter, &k) && admits(limiter, &k));
        // A torn state panics.
        let ((), (first, second)) = race(&limiter, charges, move |limiter| (resets(limiter, &k), resets(limiter, &k)));
        assert!(first <= second && second <= vec![100], "{first:?}, {second:?}");
        assert_eq!(resets(&limiter, &k), [100]);
    });
}

#[test]
fn peek_never_reads_half_of_a_charge() {
    peek_against_charges::<[u64; 2]>(2);
    peek_against_charges::<Counters>(2);
    peek_against_charges::<HitLog>(2);
}

/// The cost is denied before and after the charge of the other thread.
#[test]
fn denial_never_reads_half_of_a_charge() {
    model(2, || {
        let limiter = sets(2, burst(3));
        let k = key(2, [0, 1], 0);
        assert!(admits(&limiter, &k));
        let deny = move |limiter: &Model<u64, Burst>| limiter.check(&k, AcquireOptions::cost(3)).retry_after();
        // A torn state panics.
        let (charged, wait) = race(&limiter, move |limiter| admits(limiter, &k), deny);
        assert!(charged);
        assert!([50, 100].map(|wait| Some(Duration::from_micros(wait))).contains(&wait), "{wait:?}");
    });
}

/// A listing reads each key with a state of that key, also if another key takes over the slot during the listing.
#[test]
fn listing_returns_no_key_with_the_state_of_another() {
    model(3, || {
        let table = Table::<[AtomicU64; 2]>::with_capacity(1, 2, WhenFull::Evict);
        let (old, new) = (key(2, [0, 1], 0), key(2, [0, 1], 1));
        put(&table, 100, old);
        // Takes over the slot of the old key, which is idle at that time.
        let evict = move |table: &Table<_>| put(table, 200, new);
        let list = |table: &Table<[AtomicU64; 2]>| {
            table.for_each_live(150, |key, idle_at, state| assert_eq!(*state, [idle_at, key]));
        };
        race(&table, evict, list);
    });
}

#[test]
fn reset_and_charge_are_linearizable() {
    model(3, || {
        let limiter = sets(2, burst(1));
        let k = key(2, [0, 1], 0);
        assert!(admits(&limiter, &k));
        let ((), charged) = race(&limiter, move |limiter| reset(limiter, &k), move |limiter| admits(limiter, &k));
        // Denied before the reset, or charged after it.
        assert_eq!(resets(&limiter, &k), [if charged { 50 } else { 0 }]);
    });
}

#[test]
fn reset_and_new_key_are_linearizable() {
    model(3, || {
        let limiter = sets(2, burst(1));
        let (old, live, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &old) && admits(&limiter, &live));
        let later = move |limiter: &Model<u64, Burst>| {
            at(150);
            // Takes over the slot in which the reset may have found its key.
            admits(limiter, &new)
        };
        let (charged, ()) = race(&limiter, later, move |limiter| reset(limiter, &old));
        assert!(charged);
        at(150);
        assert_eq!([old, new].map(|key| resets(&limiter, &key)), [[0], [50]]);
    });
}
