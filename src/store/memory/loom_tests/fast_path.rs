//! The fast path with the production bucket: one limit, and several limits in a tuple.

use super::*;
use crate::{Gcra, Quota};

/// Builds the production bucket. A token refills as fast as in the other models.
fn bucket(tokens: u64) -> Gcra {
    Gcra::new(Quota::new(1, Duration::from_micros(TOKEN))).burst(tokens)
}

fn buckets(tokens: [u64; 2]) -> Model<Pair, impl MemoryLimits<Pair, Identity> + Send + Sync + 'static> {
    sets(
        2,
        (
            Limit::new("a", bucket(tokens[0])).keyed_by(|pair: &Pair| pair.0),
            Limit::new("b", bucket(tokens[1])).keyed_by(|pair: &Pair| pair.1),
        ),
    )
}

#[test]
fn last_token_is_charged_once() {
    model(3, || {
        let limiter = sets(2, bucket(2));
        let k = key(2, [0, 1], 0);
        assert!(admits(&limiter, &k));
        let (a, b) = race(&limiter, move |limiter| admits(limiter, &k), move |limiter| admits(limiter, &k));
        assert!(a ^ b, "one of {a} and {b}");
        assert_eq!(resets(&limiter, &k), [100]);
    });
}

#[test]
fn new_key_is_inserted_once_with_its_charge() {
    for tokens in [1, 2] {
        model(2, move || {
            let limiter = sets(2, bucket(tokens));
            let k = key(2, [0, 1], 0);
            let (a, b) = race(&limiter, move |limiter| admits(limiter, &k), move |limiter| admits(limiter, &k));
            assert_eq!(u64::from(a) + u64::from(b), tokens);
            assert_eq!(resets(&limiter, &k), [50 * u128::from(tokens)]);
        });
    }
}

#[test]
fn new_keys_on_the_fast_path_do_not_share_a_slot() {
    model(2, || {
        let limiter = sets(3, bucket(1));
        let (old, a, b) = (key(3, [0, 2], 0), key(3, [0, 1], 1), key(3, [1, 2], 2));
        assert!(admits(&limiter, &old));
        let charged = race(&limiter, move |limiter| admits(limiter, &a), move |limiter| admits(limiter, &b));
        assert_eq!(charged, (true, true));
        assert_eq!([old, a, b].map(|key| resets(&limiter, &key)), [[50]; 3]);
    });
}

#[test]
fn key_evicted_meanwhile_is_charged_or_denied_in_some_order() {
    for (tokens, charges) in [(2, true), (1, false)] {
        model(1, move || {
            let limiter = sets(2, bucket(tokens));
            let (old, new) = (key(2, [0, 1], 0), key(2, [0, 1], 1));
            assert!(admits(&limiter, &old));
            // The old key is idle by the clock of the inserting thread, and not by the clock of the other thread.
            let insert = move |limiter: &Model<u64, Gcra>| {
                at(150);
                admits(limiter, &new)
            };
            let (charged, decision) = race(&limiter, insert, move |limiter| decide(limiter, &old));
            assert!(charged);
            at(150);
            assert_eq!(resets(&limiter, &new), [50]);
            if decision.is_allowed() {
                // Charged in its slot, or in a new one at the horizon.
                assert_eq!(resets(&limiter, &old), [50]);
            } else {
                assert!(!charges);
                assert_eq!(decision.retry_after(), Some(Duration::from_micros(50)));
                assert_eq!(resets(&limiter, &old), [0]);
            }
        });
    }
}

#[test]
fn two_charges_of_the_same_limits_add_up() {
    model(2, || {
        let limiter = buckets([3, 3]);
        let pair = (key(2, [0, 1], 0), key(2, [1, 0], 1));
        assert!(admits(&limiter, &pair));
        let charged = race(&limiter, move |limiter| admits(limiter, &pair), move |limiter| admits(limiter, &pair));
        assert_eq!(charged, (true, true));
        assert_eq!(resets(&limiter, &pair), [150, 150]);
    });
}

/// One thread gets the last token of the shared limit. The own limit of the other thread is not charged.
#[test]
fn denial_by_a_shared_limit_charges_no_other_limit() {
    for shared in [0, 1] {
        model(2, move || {
            let limiter = buckets([3, 3]);
            let (all, x, y) = (key(2, [0, 1], 0), key(2, [0, 1], 1), key(2, [1, 0], 2));
            let with = move |own: u64| if shared == 0 { (all, own) } else { (own, all) };
            assert!(admits(&limiter, &with(x)) && admits(&limiter, &with(y)));
            let (a, b) =
                race(&limiter, move |limiter| admits(limiter, &with(x)), move |limiter| admits(limiter, &with(y)));
            assert!(a ^ b, "one of {a} and {b}");
            let own = |key: u64| resets(&limiter, &with(key))[1 - shared];
            assert_eq!((own(x), own(y)), (50 + 50 * u128::from(a), 50 + 50 * u128::from(b)));
            assert_eq!(resets(&limiter, &with(x))[shared], 150);
        });
    }
}

#[test]
fn peek_sees_all_charges_of_the_fast_path_or_none() {
    model(2, || {
        let limiter = buckets([3, 3]);
        let pair = (key(2, [0, 1], 0), key(2, [1, 0], 1));
        assert!(admits(&limiter, &pair));
        let (charged, seen) =
            race(&limiter, move |limiter| admits(limiter, &pair), move |limiter| resets(limiter, &pair));
        assert!(charged);
        assert!(seen == [50, 50] || seen == [100, 100], "{seen:?}");
        assert_eq!(resets(&limiter, &pair), [100, 100]);
    });
}

/// The key moves to its second set, or to its first set. In the second case a reader of both sets may find it in
/// neither.
#[test]
fn key_relocated_meanwhile_is_charged_once() {
    for (from, to, is_in_first) in [(2, 0, true), (0, 2, false)] {
        model(1, move || {
            let limiter = sets(3, bucket(2));
            let candidate_sets = if is_in_first { [from, to] } else { [to, from] };
            let (k, first) = (key(3, candidate_sets, 0), key(3, candidate_sets, 3));
            // Occupies the first set while `k` is inserted.
            assert!(is_in_first || admits(&limiter, &first));
            assert!(admits(&limiter, &k));
            reset(&limiter, &first);
            let between = 3 - from - to;
            let (stays, new) = (key(3, [between, from], 1), key(3, [from, between], 2));
            assert!(admits(&limiter, &stays));
            let charged = race(&limiter, move |limiter| admits(limiter, &new), move |limiter| admits(limiter, &k));
            assert_eq!(charged, (true, true));
            assert_eq!([k, stays, new].map(|key| resets(&limiter, &key)), [[100], [50], [50]]);
        });
    }
}
