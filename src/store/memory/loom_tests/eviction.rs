//! A full table: which key it evicts, which keys carry over usage, and which keys it denies.
//!
//! An eviction reads and locks much, so these models have the most orders. With one more preemption three of them take
//! minutes: `MORE_PREEMPTIONS=1`.

use super::*;

/// The evicted key is the first to be idle at the time of the eviction, in some sequential order with the charges.
#[test]
fn evicted_key_is_the_first_to_be_idle() {
    model(1, || {
        let limiter = sets(2, burst(4));
        let (soon, late, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &soon) && admits(&limiter, &late) && admits(&limiter, &late));
        // The key may be evicted, and inserted again before the new key has its slot.
        let charge = move |limiter: &Model<u64, Burst>| limiter.check(&soon, AcquireOptions::cost(3)).is_allowed();
        let charged = race(&limiter, charge, move |limiter| admits(limiter, &new));
        assert_eq!(charged, (true, true));
        // If `soon` is charged first, it is idle after `late`, and stays. If it is evicted first, its charge inserts it
        // again.
        let reset = resets(&limiter, &soon);
        assert!(reset == [200] || reset == [150], "{reset:?}");
    });
}

/// An evicted key that comes back starts with the carried-over usage. So it is admitted at most its quota in every
/// order.
#[test]
fn evicted_key_that_comes_back_gets_no_second_burst_with_carry_over() {
    model(1, || {
        let limiter =
            Memory::builder(burst(2)).max_keys(1).when_full(WhenFull::CarryOver).clock(ThreadClock).hasher(Identity);
        let limiter = limiter.build().expect("valid limits");
        let (soon, late, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &soon) && admits(&limiter, &late) && admits(&limiter, &late));
        let insert = move |limiter: &Model<u64, Burst>| admits(limiter, &new);
        let (charged, back) = race(&limiter, insert, move |limiter| admits(limiter, &soon));
        // One token was charged before, and its usage carries over. At least one of the two requests after it is
        // admitted.
        assert!(charged || back);
        let again = admits(&limiter, &soon);
        assert!(u8::from(back) + u8::from(again) <= 1, "the third request in a quota of two");
        assert!(!(admits(&limiter, &soon) || admits(&limiter, &new) && admits(&limiter, &new)));
    });
}

/// A new key that the full table denies changes no other key, and its wait is one of a consistent reading.
#[test]
fn new_key_denied_by_a_full_table_changes_nothing() {
    model(2, || {
        let limiter =
            Memory::builder(burst(4)).max_keys(1).when_full(WhenFull::Deny).clock(ThreadClock).hasher(Identity);
        let limiter = limiter.build().expect("valid limits");
        let (one, two, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &one) && admits(&limiter, &two));
        let insert = move |limiter: &Model<u64, Burst>| decide(limiter, &new);
        let (denied, charged) = race(&limiter, insert, move |limiter| admits(limiter, &one));
        assert!(charged && !denied.is_allowed() && denied.source() == DecisionSource::Policy);
        assert_eq!(denied.retry_after(), Some(Duration::from_micros(50)));
        assert_eq!([one, two].map(|key| resets(&limiter, &key)), [[100], [50]]);
    });
}

/// A thread whose relocation fails searches again, and evicts no key while a slot can be freed.
#[test]
fn lost_race_for_a_relocation_evicts_no_key() {
    model(3, || {
        let limiter = sets(4, burst(1));
        let (moves, stays) = (key(4, [0, 2], 0), key(4, [1, 0], 1));
        // The relocation for the first key uses the set that the second key would use. Then the second key has its
        // other set.
        let (new, other) = (key(4, [0, 1], 2), key(4, [2, 3], 3));
        assert!(admits(&limiter, &moves) && admits(&limiter, &stays));
        let charged = race(&limiter, move |limiter| admits(limiter, &new), move |limiter| admits(limiter, &other));
        assert_eq!(charged, (true, true));
        assert_eq!([moves, stays, new, other].map(|key| resets(&limiter, &key)), [[50]; 4]);
    });
}

#[test]
fn new_key_and_reset_on_a_full_table_free_one_slot() {
    model(2, || {
        let limiter = sets(2, burst(2));
        let (soon, late, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &soon) && admits(&limiter, &late) && admits(&limiter, &late));
        // The new key has the slot of `soon` in both orders.
        let (charged, ()) = race(&limiter, move |limiter| admits(limiter, &new), move |limiter| reset(limiter, &soon));
        assert!(charged);
        assert_eq!([soon, late, new].map(|key| resets(&limiter, &key)), [[0], [100], [50]]);
    });
}

#[test]
fn new_keys_on_a_full_table_do_not_deadlock() {
    model(1, || {
        let limiter = sets(2, burst(1));
        let (first, second) = (key(2, [0, 1], 0), key(2, [1, 0], 1));
        let (a, b) = (key(2, [0, 1], 2), key(2, [1, 0], 3));
        assert!(admits(&limiter, &first) && admits(&limiter, &second));
        let charged = race(&limiter, move |limiter| admits(limiter, &a), move |limiter| admits(limiter, &b));
        assert_eq!(charged, (true, true));
    });
}
