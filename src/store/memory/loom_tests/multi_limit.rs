//! Several limits: all are charged or none, in every order of the locks.

use super::*;
use crate::DynLimit;

/// Builds a limiter with a limit for each of the two sub-keys.
fn pair(count: usize, tokens: [u64; 2]) -> Model<Pair, impl MemoryLimits<Pair, Identity> + Send + Sync + 'static> {
    sets(
        count,
        (
            Limit::new("a", burst(tokens[0])).keyed_by(|pair: &Pair| pair.0),
            Limit::new("b", burst(tokens[1])).keyed_by(|pair: &Pair| pair.1),
        ),
    )
}

/// The limits of [`pair`] without their types.
fn dynamic_pair(count: usize, tokens: [u64; 2]) -> Model<Pair, Vec<DynLimit<Pair, Identity>>> {
    sets(
        count,
        vec![
            DynLimit::new(Limit::new("a", burst(tokens[0])).keyed_by(|pair: &Pair| pair.0)),
            DynLimit::new(Limit::new("b", burst(tokens[1])).keyed_by(|pair: &Pair| pair.1)),
        ],
    )
}

/// The threads use the same sets in opposite orders, within a limit and across limits.
#[test]
fn limits_over_crossing_keys_do_not_deadlock() {
    model(2, || {
        let limiter = pair(2, [1, 1]);
        let (x, y) = (key(2, [0, 1], 0), key(2, [1, 0], 1));
        let charged = race(&limiter, move |limiter| admits(limiter, &(x, y)), move |limiter| admits(limiter, &(y, x)));
        assert_eq!(charged, (true, true));
        assert_eq!(resets(&limiter, &(x, x)), [50, 50]);
        assert_eq!(resets(&limiter, &(y, y)), [50, 50]);
    });
}

#[test]
fn denial_by_one_limit_charges_no_other_limit() {
    denial_charges_no_other_limit(|| pair(2, [1, 1]));
}

#[test]
fn denial_by_one_dynamic_limit_charges_no_other_limit() {
    denial_charges_no_other_limit(|| dynamic_pair(2, [1, 1]));
}

fn denial_charges_no_other_limit<L>(limiter: impl Fn() -> Model<Pair, L> + Clone + Send + Sync + 'static)
where
    L: MemoryLimits<Pair, Identity, Tables: Send + Sync> + Send + Sync + 'static,
{
    for shared in [0, 1] {
        let limiter = limiter.clone();
        model(2, move || {
            let limiter = limiter();
            let (all, x, y) = (key(2, [0, 1], 0), key(2, [0, 1], 1), key(2, [1, 0], 2));
            let with = move |own: u64| if shared == 0 { (all, own) } else { (own, all) };
            let (a, b) =
                race(&limiter, move |limiter| admits(limiter, &with(x)), move |limiter| admits(limiter, &with(y)));
            assert!(a ^ b, "one of {a} and {b}");
            let own = |key: u64| resets(&limiter, &with(key))[1 - shared];
            assert_eq!((own(x), own(y)), (50 * u128::from(a), 50 * u128::from(b)));
            assert_eq!(resets(&limiter, &with(x))[shared], 50);
        });
    }
}

#[test]
fn peek_sees_all_charges_of_a_transaction_or_none() {
    peek_sees_all_or_none(|| pair(2, [2, 2]));
}

#[test]
fn peek_sees_all_charges_of_dynamic_limits_or_none() {
    peek_sees_all_or_none(|| dynamic_pair(2, [2, 2]));
}

fn peek_sees_all_or_none<L>(limiter: impl Fn() -> Model<Pair, L> + Send + Sync + 'static)
where
    L: MemoryLimits<Pair, Identity, Tables: Send + Sync> + Send + Sync + 'static,
{
    model(2, move || {
        let limiter = limiter();
        let (x, y) = (key(2, [0, 1], 0), key(2, [1, 0], 1));
        assert!(admits(&limiter, &(x, y)));
        let (charged, seen) =
            race(&limiter, move |limiter| admits(limiter, &(x, y)), move |limiter| resets(limiter, &(x, y)));
        assert!(charged);
        assert!(seen == [50, 50] || seen == [100, 100], "{seen:?}");
        assert_eq!(resets(&limiter, &(x, y)), [100, 100]);
    });
}
