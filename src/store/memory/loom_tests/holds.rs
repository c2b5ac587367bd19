//! Holds against concurrent decisions, settlements, evictions, relocations and resets: a held cost counts like a
//! charge.

use super::*;
use crate::{Gcra, Quota};

/// Builds the production bucket. A token refills as fast as in the other models.
fn bucket(tokens: u64) -> Gcra {
    Gcra::new(Quota::new(1, Duration::from_micros(TOKEN))).burst(tokens)
}

/// The last token is charged by a decision or held, and never both: for a present and for an absent key.
fn decision_against_hold<L>(charged_before: u64, build: impl Fn(u64) -> Model<u64, L> + Send + Sync + 'static)
where
    L: MemoryLimits<u64, Identity> + 'static,
    L::Tables: Send + Sync,
{
    model(3, move || {
        let limiter = build(charged_before + 1);
        let k = key(2, [0, 1], 0);
        (0..charged_before).for_each(|_| assert!(admits(&limiter, &k)));
        let (held, admitted) = race(&limiter, move |limiter| hold(limiter, &k, 1), move |limiter| admits(limiter, &k));
        assert!(held.is_some() ^ admitted, "{} held, {admitted} admitted", held.is_some());
        assert!(!admits(&limiter, &k) && hold(&limiter, &k, 1).is_none());
        // A dropped guard charges the held cost.
        drop(held);
        assert_eq!(resets(&limiter, &k), [50 * u128::from(charged_before + 1)]);
    });
}

#[test]
fn decision_and_hold_on_a_new_key_are_linearizable() {
    decision_against_hold(0, |tokens| sets(2, burst(tokens)));
    decision_against_hold(0, |tokens| sets(2, bucket(tokens)));
}

#[test]
fn decision_and_hold_on_a_present_key_are_linearizable() {
    decision_against_hold(1, |tokens| sets(2, burst(tokens)));
    decision_against_hold(1, |tokens| sets(2, bucket(tokens)));
}

#[test]
fn two_holds_share_the_remaining() {
    for charged_before in [0, 1] {
        model_of_equals(3, move || {
            let limiter = sets(2, bucket(charged_before + 1));
            let k = key(2, [0, 1], 0);
            (0..charged_before).for_each(|_| assert!(admits(&limiter, &k)));
            let (a, b) = race(&limiter, move |limiter| hold(limiter, &k, 1), move |limiter| hold(limiter, &k, 1));
            assert!(a.is_some() ^ b.is_some());
            let held = a.or(b).expect("one of them");
            settle(held, 0);
            assert_eq!(resets(&limiter, &k), [50 * u128::from(charged_before)]);
        });
    }
}

/// Two of three tokens are held. A decision reads the hold or the settled charge, and never none or both of them.
#[test]
fn settlement_and_decision_are_linearizable() {
    for (actual, cost) in [(0, 3), (1, 2), (2, 1), (2, 2), (3, 1)] {
        model(3, move || {
            let limiter = sets(2, bucket(3));
            let k = key(2, [0, 1], 0);
            let held = hold(&limiter, &k, 2).expect("three tokens are available");
            let decide = move |limiter: &Model<u64, Gcra>| limiter.check(&k, AcquireOptions::cost(cost)).is_allowed();
            let ((), admitted) = race(&limiter, move |_: &Model<u64, Gcra>| settle(held, actual), decide);
            let sequential = [actual + cost <= 3, 2 + cost <= 3];
            assert!(sequential.contains(&admitted), "{admitted}, in sequential orders {sequential:?}");
            let charged = actual + if admitted { cost } else { 0 };
            assert_eq!(resets(&limiter, &k), [50 * u128::from(charged)]);
        });
    }
}

#[test]
fn settlement_and_charge_add_up() {
    for actual in [0, 1, 3] {
        model(3, move || {
            let limiter = sets(2, burst(5));
            let k = key(2, [0, 1], 0);
            let held = hold(&limiter, &k, 1).expect("five tokens are available");
            let settle = move |_: &Model<u64, Burst>| settle(held, actual);
            let ((), charged) = race(&limiter, settle, move |limiter| admits(limiter, &k));
            assert!(charged);
            assert_eq!(resets(&limiter, &k), [50 * u128::from(actual + 1)]);
        });
    }
}

/// The amounts of both keys are in one map with one counter of keys. The end of one hold hides no other hold.
#[test]
fn end_of_a_hold_on_another_key_hides_no_hold() {
    model(3, || {
        let limiter = sets(2, bucket(1));
        let (k, other) = (key(2, [0, 1], 0), key(2, [1, 0], 1));
        let held = hold(&limiter, &k, 1).expect("a token is available");
        let ends = hold(&limiter, &other, 1).expect("a token is available");
        let ((), admitted) =
            race(&limiter, move |_: &Model<u64, Gcra>| settle(ends, 0), move |limiter| admits(limiter, &k));
        assert!(!admitted);
        settle(held, 0);
        assert!(admits(&limiter, &k));
    });
}

/// The held key is idle by every clock, and keeps its slot. The new key gets the slot of another key.
#[test]
fn held_key_keeps_its_slot_in_a_full_table() {
    model(2, || {
        let limiter = sets(2, burst(2));
        let (k, late, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &k) && admits(&limiter, &late));
        let insert = move |limiter: &Model<u64, Burst>| {
            at(150);
            admits(limiter, &new)
        };
        let hold_one = move |limiter: &Model<u64, Burst>| hold(limiter, &k, 1);
        let (charged, held) = race(&limiter, insert, hold_one);
        assert!(charged);
        at(150);
        // The new key has an idle slot: that of `k` before the hold, or the other one.
        assert_eq!(resets(&limiter, &new), [50]);
        // A second new key finds at most one slot: that of `new` or an idle one, and not that of the held key.
        assert!(admits(&limiter, &key(2, [0, 1], 3)));
        let held = held.expect("a token is available");
        assert_eq!(peek(&limiter, &k).remaining(), Some(1), "one of two is held");
        settle(held, 2);
        assert_eq!(resets(&limiter, &k), [100], "the held cost is charged in its slot");
        assert!(!admits(&limiter, &k));
    });
}

/// A new key searches for a key to evict, while the key with the least usage is held.
#[test]
fn key_is_held_or_evicted_and_never_both() {
    model(2, || {
        let limiter = sets(2, burst(2));
        let (k, late, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &k) && admits(&limiter, &late) && admits(&limiter, &late));
        let insert = move |limiter: &Model<u64, Burst>| admits(limiter, &new);
        let (charged, held) = race(&limiter, insert, move |limiter| hold(limiter, &k, 1));
        assert!(charged);
        let held = held.expect("a token is available");
        // If `k` is held first, it keeps its charge and `late` is evicted. If `k` is evicted first, it comes back idle.
        let left = peek(&limiter, &k).remaining();
        assert!(left == Some(0) || left == Some(1), "{left:?}");
        let charged_before = 1 - left.unwrap_or(0);
        settle(held, 1);
        assert_eq!(resets(&limiter, &k), [50 * u128::from(charged_before + 1)]);
    });
}

#[test]
fn full_table_of_held_keys_denies_a_new_key() {
    model(2, || {
        let limiter = sets(2, burst(1));
        let (one, two, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        let [first, second] = [one, two].map(|key| hold(&limiter, &key, 1).expect("a token is available"));
        let insert = move |limiter: &Model<u64, Burst>| admits(limiter, &new);
        let (admitted, ()) = race(&limiter, insert, move |_: &Model<u64, Burst>| settle(first, 0));
        assert!(!admits(&limiter, &two), "a held key stays");
        settle(second, 1);
        assert_eq!(resets(&limiter, &two), [50]);
        assert_eq!(resets(&limiter, &new), [50 * u128::from(admitted)]);
    });
}

/// A held key is relocated while another thread decides on it or settles the hold.
#[test]
fn held_key_relocated_meanwhile_stays_held() {
    for (from, to) in [(0, 2), (2, 0)] {
        let start = move || {
            let limiter = sets(3, burst(2));
            let between = 3 - from - to;
            let (k, stays, new) = (key(3, [from, to], 0), key(3, [between, from], 1), key(3, [from, between], 2));
            let held = hold(&limiter, &k, 2).expect("two tokens are available");
            assert!(admits(&limiter, &stays));
            (limiter, [k, new], held)
        };
        model(2, move || {
            let (limiter, [k, new], held) = start();
            let (charged, admitted) =
                race(&limiter, move |limiter| admits(limiter, &new), move |limiter| admits(limiter, &k));
            assert_eq!((charged, admitted), (true, false));
            settle(held, 1);
            assert_eq!([k, new].map(|key| resets(&limiter, &key)), [[50]; 2]);
        });
        model(2, move || {
            let (limiter, [k, new], held) = start();
            let (charged, ()) =
                race(&limiter, move |limiter| admits(limiter, &new), move |_: &Model<u64, Burst>| settle(held, 1));
            assert!(charged);
            assert_eq!([k, new].map(|key| resets(&limiter, &key)), [[50]; 2]);
        });
    }
}

/// A reset clears the state, and not the held amount.
#[test]
fn reset_keeps_the_held_amount() {
    model(3, || {
        let limiter = sets(2, burst(2));
        let k = key(2, [0, 1], 0);
        assert!(admits(&limiter, &k));
        let ((), held) = race(&limiter, move |limiter| reset(limiter, &k), move |limiter| hold(limiter, &k, 1));
        let held = held.expect("a token is available before and after");
        assert_eq!(peek(&limiter, &k).remaining(), Some(1));
        settle(held, 1);
        assert_eq!(resets(&limiter, &k), [50]);
    });
}

#[test]
fn reset_and_settlement_are_linearizable() {
    model(3, || {
        let limiter = sets(2, burst(2));
        let k = key(2, [0, 1], 0);
        let held = hold(&limiter, &k, 2).expect("two tokens are available");
        race(&limiter, move |limiter| reset(limiter, &k), move |_: &Model<u64, Burst>| settle(held, 1));
        let reset = resets(&limiter, &k);
        assert!(reset == [0] || reset == [50], "{reset:?}");
        assert!(hold(&limiter, &k, 1).is_some(), "the hold has ended");
    });
}

/// A hold over two limits applies to both or to none.
#[test]
fn hold_over_several_limits_is_made_on_all_or_none() {
    for shared in [0, 1] {
        model(2, move || {
            let limits = (
                Limit::new("a", bucket(1)).keyed_by(|pair: &Pair| pair.0),
                Limit::new("b", bucket(1)).keyed_by(|pair: &Pair| pair.1),
            );
            let limiter = sets(2, limits);
            let (all, x, y) = (key(2, [0, 1], 0), key(2, [0, 1], 1), key(2, [1, 0], 2));
            let with = move |own: u64| if shared == 0 { (all, own) } else { (own, all) };
            let (held, charged) =
                race(&limiter, move |limiter| hold(limiter, &with(x), 1), move |limiter| admits(limiter, &with(y)));
            assert!(held.is_some() ^ charged, "{} held, {charged} charged", held.is_some());
            let own = |key: u64| peek(&limiter, &with(key)).limits()[1 - shared].remaining();
            assert_eq!([own(x), own(y)], [u64::from(held.is_none()), u64::from(!charged)]);
            assert_eq!(peek(&limiter, &with(x)).limits()[shared].remaining(), 0);
        });
    }
}
