//! Limits that are replaced while a thread charges, settles or evicts. A decision that started before may use the
//! previous quota, and its charge is kept.

use super::*;
use crate::store::{DynLimit, MemoryBuilder};
use crate::{Gcra, Quota};

type Limiter = Model<u64, Vec<DynLimit<u64, Identity>>>;

/// Builds a bucket in which a token refills in `token` microseconds.
fn bucket(token: u64, tokens: u64) -> Vec<DynLimit<u64, Identity>> {
    let algorithm = Gcra::new(Quota::new(1, Duration::from_micros(token))).burst(tokens);
    vec![DynLimit::new(Limit::new("api", algorithm))]
}

fn limiter(token: u64, tokens: u64) -> Limiter {
    let builder = MemoryBuilder::new(bucket(token, tokens)).max_keys(1).clock(ThreadClock).hasher(Identity);
    builder.build().expect("valid limits")
}

fn replace(limiter: &Limiter, token: u64, tokens: u64) {
    limiter.replace(bucket(token, tokens)).expect("valid limits");
}

/// Returns the resets and the remaining of the key.
fn usage(limiter: &Limiter, key: u64) -> (Vec<u128>, Option<u64>) {
    (resets(limiter, &key), peek(limiter, &key).remaining())
}

/// The usage of the charges by both quotas is that of some sequential order.
#[test]
fn charge_during_a_change_of_quota_is_kept() {
    for (previous, new) in [(50, 100), (100, 50)] {
        model(3, move || {
            let k = key(2, [0, 1], 0);
            let start = || {
                let limiter = limiter(previous, 3);
                assert!(admits(&limiter, &k));
                limiter
            };
            let in_order = |first: &dyn Fn(&Limiter), second: &dyn Fn(&Limiter)| {
                let limiter = start();
                first(&limiter);
                second(&limiter);
                usage(&limiter, k)
            };
            let change = move |limiter: &Limiter| {
                replace(limiter, new, 3);
                // loom does not track the replacement itself. It tracks this reading of the key after it.
                let left = peek(limiter, &k).remaining();
                assert!(left == Some(2) || left == Some(1), "{left:?}");
            };
            let charge = move |limiter: &Limiter| assert!(admits(limiter, &k));
            let sequential = [in_order(&change, &charge), in_order(&charge, &change)];
            let limiter = start();
            race(&limiter, change, charge);
            let seen = usage(&limiter, k);
            assert!(sequential.contains(&seen), "{seen:?}, in sequential orders {sequential:?}");
            assert_eq!(seen.1, Some(1), "two of three are charged");
        });
    }
}

/// One thread charges by the new quota, the other thread by either quota. Each charge counts for both.
#[test]
fn change_of_quota_admits_at_most_the_larger_quota() {
    for (previous, new) in [(2, 3), (3, 2)] {
        model(3, move || {
            let limiter = limiter(50, previous);
            let k = key(2, [0, 1], 0);
            assert!(admits(&limiter, &k));
            let replace_and_charge = move |limiter: &Limiter| {
                replace(limiter, 50, new);
                admits(limiter, &k)
            };
            let (there, here) = race(&limiter, replace_and_charge, move |limiter| admits(limiter, &k));
            // Both quotas have a second token, and one of them has a third token.
            assert!(there || here);
            let charged = 1 + u64::from(there) + u64::from(here);
            assert_eq!(resets(&limiter, &k), [50 * u128::from(charged)]);
            let mut more = 0;
            while admits(&limiter, &k) {
                more += 1;
            }
            assert_eq!(more, new.saturating_sub(charged));
        });
    }
}

/// One thread evicts by a new quota and a later clock, while the other thread charges by the previous quota.
#[test]
fn eviction_during_a_change_of_quota_loses_no_charge() {
    model(3, || {
        let limiter = limiter(50, 4);
        let (old, new) = (key(2, [0, 1], 0), key(2, [0, 1], 1));
        assert!(admits(&limiter, &old));
        let insert = move |limiter: &Limiter| {
            at(150);
            replace(limiter, 100, 4);
            admits(limiter, &new)
        };
        let (there, here) = race(&limiter, insert, move |limiter| admits(limiter, &old));
        assert!(there && here);
        at(150);
        // If the previous quota charged the second token, one of two tokens has refilled. Otherwise half a token has
        // refilled.
        let left = peek(&limiter, &old).remaining();
        assert!(left == Some(3) || left == Some(2), "{left:?}");
        assert_eq!(peek(&limiter, &new).remaining(), Some(3));
    });
}

/// A hold that is settled by either quota is charged once.
#[test]
fn hold_settled_during_a_change_of_quota_is_charged_once() {
    for (previous, new) in [(50, 100), (100, 50)] {
        model(3, move || {
            let limiter = limiter(previous, 3);
            let k = key(2, [0, 1], 0);
            assert!(admits(&limiter, &k));
            let held = hold(&limiter, &k, 2).expect("two of three are left");
            let change = move |limiter: &Limiter| {
                replace(limiter, new, 3);
                let left = peek(limiter, &k).remaining();
                assert!(left == Some(0) || left == Some(1), "{left:?}");
            };
            race(&limiter, move |_: &Limiter| settle(held, 1), change);
            assert_eq!(peek(&limiter, &k).remaining(), Some(1), "two of three are charged");
        });
    }
}
