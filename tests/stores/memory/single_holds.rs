//! Holds of one limit, which need no transaction.

use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Held, Outcome};
use tower_ratelimit::{
    AcquireOptions, DynLimit, FixedWindow, Gcra, InFlight, Limit, ManualClock, Memory, Quota, SlidingLog,
};

use crate::immediate::acquire;
use crate::random::Random;

/// Guards of one request by each limiter.
type Guards = Vec<Held>;

/// Runs one random trace on a typed limiter, on a list, and on a list with a condition, which takes the transaction. The
/// decisions are equal, field by field. Returns the numbers of holds that were allowed and denied.
fn compare<A: Algorithm + Clone>(seed: u64, algorithm: &A, is_in_flight: bool) -> [usize; 2] {
    let (mut random, clock) = (Random::new(seed), ManualClock::new());
    let limit = || Limit::new("only", algorithm.clone()).keyed_by(|key: &u64| *key);
    let typed = Memory::<u64, _>::builder(limit()).max_keys(10).clock(clock.clone()).build().expect("a limit");
    let list = |limit| Memory::<u64>::builder(vec![limit]).max_keys(10).clock(clock.clone()).build().expect("a limit");
    let (dynamic, transaction) = (list(DynLimit::new(limit())), list(DynLimit::new(limit().only_if(|_: &u64| true))));
    let (mut held, mut counts): (Vec<Guards>, _) = (Vec::new(), [0, 0]);
    for step in 0..300 {
        let context = format!("seed {seed}, step {step}");
        let (key, cost) = (random.below(3), random.below(4));
        match random.below(8) {
            0..=3 => {
                let options = AcquireOptions::cost(cost).keep_guard();
                let options = if is_in_flight { options } else { options.hold() };
                let outcomes: [Outcome; 3] = [
                    acquire(&typed, &key, options),
                    acquire(&dynamic, &key, options),
                    acquire(&transaction, &key, options),
                ];
                let expected = format!("{:?}", outcomes[2].decision);
                for outcome in &outcomes {
                    assert_eq!(format!("{:?}", outcome.decision), expected, "{context}");
                    let [of_outcome, of_expected] = [outcome, &outcomes[2]].map(|outcome| &outcome.held);
                    assert_eq!(of_outcome.is_some(), of_expected.is_some(), "{context}");
                    assert_eq!(
                        of_outcome.as_ref().map(Held::costs),
                        of_expected.as_ref().map(Held::costs),
                        "{context}"
                    );
                }
                counts[usize::from(!outcomes[2].decision.is_allowed())] += 1;
                let guards: Guards = outcomes.into_iter().filter_map(|outcome| outcome.held).collect();
                held.extend(Some(guards).filter(|guards| !guards.is_empty()));
            }
            4 if !held.is_empty() => {
                let (index, actual) = (random.index(held.len()), random.below(6));
                for guard in held.swap_remove(index) {
                    assert!(guard.settle(actual).try_ready().is_ok_and(|settled| settled.is_ok()), "{context}");
                }
            }
            5 if !held.is_empty() => {
                let index = random.index(held.len());
                held.swap_remove(index).into_iter().for_each(|guard| {
                    assert!(guard.release().try_ready().is_ok_and(|released| released.is_ok()), "{context}");
                });
            }
            6 if !held.is_empty() => {
                let index = random.index(held.len());
                drop(held.swap_remove(index));
            }
            _ => clock.advance(Duration::from_millis(random.below(900))),
        }
        if !is_in_flight {
            let expected = format!("{:?}", transaction.check(&key, cost));
            assert_eq!(format!("{:?}", typed.check(&key, cost)), expected, "{context}");
            assert_eq!(format!("{:?}", dynamic.check(&key, cost)), expected, "{context}");
        }
        let [of_typed, of_transaction] = [typed.usage(), transaction.usage()].map(|usage| usage[0].held);
        assert_eq!(of_typed, of_transaction, "{context}");
    }
    counts
}

/// The law: a hold that one limit decides without the transaction has the decision, the guard and the effects of the
/// transaction.
#[test]
fn holds_of_one_limit_equal_the_transaction() {
    let mut total = [0, 0];
    for seed in 0..20 {
        for counts in [
            compare(seed, &Gcra::new(Quota::per_second(3)).burst(8), false),
            compare(seed, &FixedWindow::new(Quota::new(9, Duration::from_secs(2))), false),
            compare(seed, &SlidingLog::new(Quota::new(9, Duration::from_secs(2))), false),
            compare(seed, &InFlight::new(9), true),
            compare(seed, &InFlight::new(9).max_duration(Duration::from_secs(2)), true),
        ] {
            total = [total[0] + counts[0], total[1] + counts[1]];
        }
    }
    assert!(total[0] > 5_000 && total[1] > 1_600, "{total:?}");
}
