//! Limits that are replaced while a thread charges, settles, or evicts: whoever has begun before may decide by the former
//! quota, and what it charges stays charged.

use super::*;
use crate::store::{DynLimit, MemoryBuilder};
use crate::{Gcra, Quota};

type Limiter = Model<Vec<DynLimit<u64, Same>>>;

/// A bucket in which a token comes back in so long.
fn bucket(token: u64, tokens: u64) -> Vec<DynLimit<u64, Same>> {
    let algorithm = Gcra::new(Quota::new(1, Duration::from_micros(token))).burst(tokens);
    vec![DynLimit::new(Limit::new("api", algorithm))]
}

fn limiter(token: u64, tokens: u64) -> Limiter {
    let builder = MemoryBuilder::new(bucket(token, tokens)).max_keys(1).clock(OwnTime).hasher(Same);
    builder.build().expect("valid limits")
}

fn replace(limiter: &Limiter, token: u64, tokens: u64) {
    limiter.replace(bucket(token, tokens)).expect("valid limits");
}

/// What the key owes, and what it may still have.
fn left(limiter: &Limiter, key: u64) -> (Vec<u128>, Option<u64>) {
    (owed(limiter, &key), peek(limiter, &key).remaining())
}

/// Under another rate, what was charged by one quota and what by the other one drains as it would after turns.
#[test]
fn charge_during_a_change_of_quota_is_kept() {
    for (former, new) in [(50, 100), (100, 50)] {
        model(3, move || {
            let k = key(2, [0, 1], 0);
            let start = || {
                let limiter = limiter(former, 3);
                assert!(admits(&limiter, &k));
                limiter
            };
            let in_turn = |first: &dyn Fn(&Limiter), second: &dyn Fn(&Limiter)| {
                let limiter = start();
                first(&limiter);
                second(&limiter);
                left(&limiter, k)
            };
            let change = move |limiter: &Limiter| {
                replace(limiter, new, 3);
                // What is replaced is no matter of loom's; to look at the key afterwards is.
                let left = peek(limiter, &k).remaining();
                assert!(left == Some(2) || left == Some(1), "{left:?}");
            };
            let charge = move |limiter: &Limiter| assert!(admits(limiter, &k));
            let turns = [in_turn(&change, &charge), in_turn(&charge, &change)];
            let limiter = start();
            race(&limiter, change, charge);
            let seen = left(&limiter, k);
            assert!(turns.contains(&seen), "{seen:?}, and in turn {turns:?}");
            assert_eq!(seen.1, Some(1), "of three, two are charged");
        });
    }
}

/// The one who replaces charges by what it has put there, the other one by either: each charge counts for both.
#[test]
fn change_of_quota_admits_at_most_the_larger_quota() {
    for (former, new) in [(2, 3), (3, 2)] {
        model(3, move || {
            let limiter = limiter(50, former);
            let k = key(2, [0, 1], 0);
            assert!(admits(&limiter, &k));
            let replace_and_charge = move |limiter: &Limiter| {
                replace(limiter, 50, new);
                admits(limiter, &k)
            };
            let (there, here) = race(&limiter, replace_and_charge, move |limiter| admits(limiter, &k));
            // The second token is there under either quota, the third under one of them.
            assert!(there || here);
            let charged = 1 + u64::from(there) + u64::from(here);
            assert_eq!(owed(&limiter, &k), [50 * u128::from(charged)]);
            let mut more = 0;
            while admits(&limiter, &k) {
                more += 1;
            }
            assert_eq!(more, new.saturating_sub(charged));
        });
    }
}

/// Who makes room by its own time and quota, and who charges by his: none of it is lost by the change.
#[test]
fn eviction_during_a_change_of_quota_loses_no_charge() {
    model(3, || {
        let limiter = limiter(50, 4);
        let (old, new) = (key(2, [0, 1], 0), key(2, [0, 1], 1));
        assert!(admits(&limiter, &old));
        let newcomer = move |limiter: &Limiter| {
            at(150);
            replace(limiter, 100, 4);
            admits(limiter, &new)
        };
        let (there, here) = race(&limiter, newcomer, move |limiter| admits(limiter, &old));
        assert!(there && here);
        at(150);
        // Of the two tokens that it owed, one is back by now if the former quota charged the second, and half of one else.
        let left = peek(&limiter, &old).remaining();
        assert!(left == Some(3) || left == Some(2), "{left:?}");
        assert_eq!(peek(&limiter, &new).remaining(), Some(3));
    });
}

/// Settled by either quota, a held cost is charged once.
#[test]
fn hold_settled_during_a_change_of_quota_is_charged_once() {
    for (former, new) in [(50, 100), (100, 50)] {
        model(3, move || {
            let limiter = limiter(former, 3);
            let k = key(2, [0, 1], 0);
            assert!(admits(&limiter, &k));
            let held = hold(&limiter, &k, 2).expect("two of three are left");
            let change = move |limiter: &Limiter| {
                replace(limiter, new, 3);
                let left = peek(limiter, &k).remaining();
                assert!(left == Some(0) || left == Some(1), "{left:?}");
            };
            race(&limiter, move |_: &Limiter| settle(held, 1), change);
            assert_eq!(peek(&limiter, &k).remaining(), Some(1), "of three, two are charged");
        });
    }
}
