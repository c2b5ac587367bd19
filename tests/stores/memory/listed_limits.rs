//! Decisions that list limits, in the plain cases: beside shadows, and for callers that want all limits.

use std::time::Duration;

use tower_ratelimit::limiter::Outcome;
use tower_ratelimit::{
    AcquireOptions, Detail, DynLimit, FixedWindow, Gcra, Limit, Limiter, ManualClock, Memory, Quota, SlidingWindow,
};

use crate::immediate::ready;
use crate::random::Random;

/// Makes a limit that may be a shadow and have a mark, and the value of `$each`.
macro_rules! limit {
    ($name:literal, $algorithm:expr, $shadow:expr, $mark:expr, |$limit:ident| $each:expr) => {{
        let $limit = Limit::new($name, $algorithm).keyed_by(|key: &u64| *key);
        let $limit = if $shadow { $limit.shadow() } else { $limit };
        let $limit = if $mark { $limit.warn_at(0.7) } else { $limit };
        $each
    }};
}

/// Makes three limits, of which some are shadows and some have marks, and the value of `$each` for each of them.
macro_rules! limits {
    ($quotas:ident, $shadows:ident, $marks:ident, |$limit:ident| $each:expr) => {{
        let [first, second, third] = $quotas.map(Quota::per_minute);
        (
            limit!("bucket", Gcra::new(first), $shadows[0], $marks[0], |$limit| $each),
            limit!("window", FixedWindow::new(second), $shadows[1], $marks[1], |$limit| $each),
            limit!("sliding", SlidingWindow::new(third).blocks(2), $shadows[2], $marks[2], |$limit| $each),
        )
    }};
}

/// Decides with these options, and holds the cost if the last argument says so.
type Decide = Box<dyn Fn(&u64, AcquireOptions, bool) -> Outcome>;

macro_rules! decide {
    ($limits:expr, $clock:ident) => {{
        let limiter = Memory::<u64, _>::builder($limits).max_keys(10).clock($clock.clone());
        let limiter = limiter.build().expect("three limits");
        Box::new(
            move |key: &u64, options: AcquireOptions, hold: bool| {
                if hold { ready(limiter.acquire(key, options.hold())) } else { limiter.check(key, options).into() }
            },
        )
    }};
}

/// The law: the plain cases of tuples and lists decide and hold as the transaction, field by field. A request with an id,
/// which is never repeated, takes the transaction. Each trace has shadows that would deny, limits that deny, and absent
/// keys; some have marks, units that are kept free, or holds.
#[test]
fn listed_limits_equal_the_transaction() {
    let (mut listed, mut shadow_denials, mut denials, mut holds) = (0, 0, 0, 0);
    for seed in 0..48 {
        let mut random = Random::new(seed);
        let shadows = [0; 3].map(|_| random.below(2) == 0);
        let quotas = [0; 3].map(|_| 2 + random.below(20));
        let has_marks = random.below(2) == 0;
        let marks = [0; 3].map(|_| has_marks && random.below(2) == 0);
        // What each limit keeps free: so many units times the key.
        let kept = [None, None, Some(0), Some(2)][random.index(4)];
        let units = |kept: u64| move |key: &u64| key * kept;
        let has_holds = random.below(2) == 0;
        let clock = ManualClock::new();
        let list = || -> Vec<DynLimit<u64>> {
            let (first, second, third) = limits!(quotas, shadows, marks, |limit| match kept {
                Some(kept) => DynLimit::new(limit.keep_free_by(units(kept))),
                None => DynLimit::new(limit),
            });
            vec![first, second, third]
        };
        let tuple: Decide = if let Some(kept) = kept {
            decide!(limits!(quotas, shadows, marks, |limit| limit.keep_free_by(units(kept))), clock)
        } else {
            decide!(limits!(quotas, shadows, marks, |limit| limit), clock)
        };
        let subjects = [tuple, decide!(list(), clock) as Decide];
        let transaction: Decide = decide!(list(), clock);
        let mut held = Vec::new();
        for step in 0..200 {
            let context = format!("seed {seed}, step {step}");
            clock.advance(Duration::from_millis(random.below(4000)));
            let key = random.below(3);
            let detail = [Detail::MostRestrictive, Detail::AllIfDenied, Detail::All][random.index(3)];
            let options = AcquireOptions::cost(random.below(3)).detail(detail);
            let hold = has_holds && random.below(3) == 0;
            let once = options.once(&*step.to_string(), 1, Duration::from_millis(1));
            let expected = transaction(&key, once, hold);
            let mut guards = vec![expected.held];
            let expected = expected.decision;
            for subject in &subjects {
                let Outcome { decision, held, .. } = subject(&key, options, hold);
                assert_eq!(format!("{decision:?}"), format!("{expected:?}"), "{context}");
                assert_eq!(decision.most_restrictive(), expected.most_restrictive(), "{context}");
                assert_eq!(held.is_some(), guards[0].is_some(), "{context}");
                guards.push(held);
            }
            if guards[0].is_some() {
                held.push(guards);
                holds += 1;
            }
            if !held.is_empty() && random.below(2) == 0 {
                let (guards, actual) = (held.swap_remove(random.index(held.len())), random.below(4));
                guards.into_iter().flatten().for_each(|held| ready(held.settle(actual)));
            }
            denials += usize::from(!expected.is_allowed());
            if expected.is_allowed() && options.cost > 0 {
                shadow_denials += expected.shadow_denials().count();
                listed += usize::from(expected.limits().len() > 1 && expected.shadow_denials().count() == 0);
            }
        }
    }
    let counts = [listed, shadow_denials, denials, holds];
    println!("{counts:?}");
    assert!(counts.iter().zip([1_300, 800, 1_000, 500]).all(|(count, least)| *count > least), "{counts:?}");
}

/// The lists of dropped decisions are used again, and those of kept decisions are not.
#[test]
fn kept_decisions_keep_their_lists() {
    let (quotas, shadows, marks) = ([5, 5, 5], [false, true, false], [false; 3]);
    let limiter = Memory::<u64, _>::builder(limits!(quotas, shadows, marks, |limit| limit)).clock(ManualClock::new());
    let limiter = limiter.build().expect("three limits");
    let options = || AcquireOptions::default().detail(Detail::All);
    let kept: Vec<_> = (0..5).map(|_| limiter.check(&7, options())).collect();
    for (used, decision) in (1..).zip(&kept) {
        let remaining: Vec<_> = decision.limits().iter().map(|limit| (limit.name(), limit.remaining())).collect();
        let left = 5 - used;
        assert_eq!(remaining, [("bucket", left), ("window", left), ("sliding", left)]);
        assert_eq!(decision.clone().limits(), decision.limits());
    }
}
