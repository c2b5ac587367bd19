//! A full table: whom it forgets, who inherits, who is refused.

use super::*;

/// A full table and a newcomer: whom it forgets is who is as good as new first *then*, in turn with all commits.
#[test]
fn evicted_key_is_the_first_to_be_idle() {
    model(2, || {
        let limiter = sets(2, burst(4));
        let (soon, late, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &soon) && admits(&limiter, &late) && admits(&limiter, &late));
        // Not even if it comes back between being forgotten and the newcomer's taking its slot.
        let charge = move |limiter: &Model<Burst>| limiter.check(&soon, AcquireOptions::cost(3)).is_allowed();
        let charged = race(&limiter, charge, move |limiter| admits(limiter, &new));
        assert_eq!(charged, (true, true));
        // Charged first, it outlasts `late`. Forgotten first, it comes back as a newcomer, and somebody else goes.
        let remembered = owed(&limiter, &soon);
        assert!(remembered == [200] || remembered == [150], "{remembered:?}");
    });
}

/// Whoever is forgotten meanwhile and comes back owes what was inherited: never more than its quota, whoever goes first.
#[test]
fn evicted_key_that_comes_back_gets_no_second_burst_with_carry_over() {
    model(2, || {
        let limiter = Memory::builder(burst(2)).max_keys(1).when_full(WhenFull::CarryOver).clock(OwnTime).hasher(Same);
        let limiter = limiter.build().expect("valid limits");
        let (soon, late, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &soon) && admits(&limiter, &late) && admits(&limiter, &late));
        let newcomer = move |limiter: &Model<Burst>| admits(limiter, &new);
        let (charged, back) = race(&limiter, newcomer, move |limiter| admits(limiter, &soon));
        // One charge was there already, and is inherited with the room: of the two that follow it, one is let through.
        assert!(charged || back);
        let again = admits(&limiter, &soon);
        assert!(u8::from(back) + u8::from(again) <= 1, "a third one in a quota of two");
        assert!(!(admits(&limiter, &soon) || admits(&limiter, &new) && admits(&limiter, &new)));
    });
}

/// A newcomer that is denied room reads of nobody who was just charged, and charges nobody.
#[test]
fn new_key_denied_by_a_full_table_changes_nothing() {
    model(2, || {
        let limiter = Memory::builder(burst(4)).max_keys(1).when_full(WhenFull::Deny).clock(OwnTime).hasher(Same);
        let limiter = limiter.build().expect("valid limits");
        let (one, two, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &one) && admits(&limiter, &two));
        let newcomer = move |limiter: &Model<Burst>| decide(limiter, &new);
        let (refused, charged) = race(&limiter, newcomer, move |limiter| admits(limiter, &one));
        assert!(charged && !refused.is_allowed() && refused.source() == DecisionSource::Policy);
        assert_eq!(refused.retry_after(), Some(Duration::from_micros(50)));
        assert_eq!([one, two].map(|key| owed(&limiter, &key)), [[100], [50]]);
    });
}

/// To move is a race as well: who loses it looks again, and forgets nobody while there is room.
#[test]
fn lost_race_for_a_relocation_evicts_no_key() {
    model(3, || {
        let limiter = sets(4, burst(1));
        let (moves, stays) = (key(4, [0, 2], 0), key(4, [1, 0], 1));
        // The first makes room by a move to where the second may go: then the second's other set is the way out.
        let (new, rival) = (key(4, [0, 1], 2), key(4, [2, 3], 3));
        assert!(admits(&limiter, &moves) && admits(&limiter, &stays));
        let charged = race(&limiter, move |limiter| admits(limiter, &new), move |limiter| admits(limiter, &rival));
        assert_eq!(charged, (true, true));
        assert_eq!([moves, stays, new, rival].map(|key| owed(&limiter, &key)), [[50]; 4]);
    });
}

#[test]
fn new_key_and_reset_on_a_full_table_free_one_slot() {
    model(3, || {
        let limiter = sets(2, burst(2));
        let (soon, late, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &soon) && admits(&limiter, &late) && admits(&limiter, &late));
        // Whether it is reset or forgotten, its slot is the newcomer's.
        let (charged, ()) = race(&limiter, move |limiter| admits(limiter, &new), move |limiter| reset(limiter, &soon));
        assert!(charged);
        assert_eq!([soon, late, new].map(|key| owed(&limiter, &key)), [[0], [100], [50]]);
    });
}

#[test]
fn new_keys_on_a_full_table_do_not_deadlock() {
    model(2, || {
        let limiter = sets(2, burst(1));
        let (first, second) = (key(2, [0, 1], 0), key(2, [1, 0], 1));
        let (a, b) = (key(2, [0, 1], 2), key(2, [1, 0], 3));
        assert!(admits(&limiter, &first) && admits(&limiter, &second));
        let charged = race(&limiter, move |limiter| admits(limiter, &a), move |limiter| admits(limiter, &b));
        assert_eq!(charged, (true, true));
    });
}
