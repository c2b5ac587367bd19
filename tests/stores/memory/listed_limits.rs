//! Decisions that list limits, in the plain cases: beside shadows, and for callers that want all limits.

use std::time::Duration;

use tower_ratelimit::limiter::Outcome;
use tower_ratelimit::{
    AcquireOptions, Detail, DynLimit, FixedWindow, Gcra, Limit, LimitStatus, Limiter, ManualClock, Memory, Quota,
    SlidingWindow,
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

/// What the traces reached.
#[derive(Debug, Default)]
struct Reached {
    listed: usize,
    shadow_denials: usize,
    denials: usize,
    holds: usize,
    borrowed: usize,
}

/// Runs a random trace: the `subjects` decide and hold as the `transaction`, field by field. A request with an id, which is
/// never repeated, takes the transaction.
fn decide_alike(
    random: &mut Random,
    clock: &ManualClock,
    has_holds: bool,
    [transaction, subjects @ ..]: [Decide; 3],
    reached: &mut Reached,
) {
    let (mut held, mut last) = (Vec::new(), None);
    for step in 0..200 {
        clock.advance(Duration::from_millis(random.below(4000)));
        let key = random.below(3);
        let detail = [Detail::MostRestrictive, Detail::AllIfDenied, Detail::All][random.index(3)];
        let options = AcquireOptions::cost(random.below(3)).detail(detail);
        let options =
            if random.below(3) == 0 { options.max_delay(Duration::from_secs(random.below(20))) } else { options };
        let hold = has_holds && random.below(3) == 0;
        let once = options.once(&*step.to_string(), 1, Duration::from_millis(1));
        let Outcome { decision: expected, held: guard, .. } = transaction(&key, once, hold);
        // Decisions are equal exactly if their public values are.
        if let Some(last) = last.replace(expected.clone()) {
            assert_eq!(last == expected, format!("{last:?}") == format!("{expected:?}"), "step {step}");
        }
        let mut guards = vec![guard];
        for subject in &subjects {
            let Outcome { decision, held, .. } = subject(&key, options, hold);
            assert_eq!(format!("{decision:?}"), format!("{expected:?}"), "step {step}");
            assert_eq!(decision.most_restrictive(), expected.most_restrictive(), "step {step}");
            assert_eq!(held.is_some(), guards[0].is_some(), "step {step}");
            guards.push(held);
        }
        if guards[0].is_some() {
            held.push(guards);
            reached.holds += 1;
        }
        if !held.is_empty() && random.below(2) == 0 {
            let (guards, actual) = (held.swap_remove(random.index(held.len())), random.below(4));
            guards.into_iter().flatten().for_each(|held| ready(held.settle(actual)));
        }
        reached.denials += usize::from(!expected.is_allowed());
        if expected.is_allowed() && options.cost > 0 {
            let shadow_denials = expected.shadow_denials().count();
            reached.shadow_denials += shadow_denials;
            reached.listed += usize::from(expected.limits().len() > 1 && shadow_denials == 0);
            reached.borrowed += usize::from(expected.limits().iter().any(LimitStatus::is_borrowing));
        }
    }
}

/// The law: the plain cases of tuples and lists decide and hold as the transaction. Each trace has shadows that would deny,
/// limits that deny, and absent keys; some have marks, units that are kept free, or holds.
#[test]
fn listed_limits_equal_the_transaction() {
    let mut reached = Reached::default();
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
        println!("seed {seed}");
        decide_alike(
            &mut random,
            &clock,
            has_holds,
            [decide!(list(), clock), tuple, decide!(list(), clock)],
            &mut reached,
        );
    }
    let Reached { listed, shadow_denials, denials, holds, .. } = reached;
    let counts = [listed, shadow_denials, denials, holds];
    assert!(counts.iter().zip([1_300, 800, 1_000, 500]).all(|(count, least)| *count > least), "{reached:?}");
}

/// The same law beside a guaranteed share: of each tenant, or of some of them, in any place of the tuple. A third limit counts
/// another cost; it and the common limit may be shadows, have marks and keep units free.
#[test]
fn shares_in_tuples_equal_the_transaction() {
    let (mut reached, mut borrowed_alone) = (Reached::default(), 0);
    for seed in 0..96 {
        let mut random = Random::new(seed);
        let (own, all) = (1 + random.below(3), 10 + random.below(10));
        let [share_of_all, common_of_all] = [3, 2].map(|of| random.below(of) == 0);
        let [is_shadow, is_other_shadow, has_mark, has_other_mark, has_holds] =
            [6, 4, 3, 3, 3].map(|of| random.below(of) == 0);
        let kept = random.below(4);
        let clock = ManualClock::new();
        let share = || {
            let share = Limit::new("share", Gcra::new(Quota::per_minute(own * 3)).burst(own));
            share.keyed_by(|key: &u64| *key).only_if(move |key: &u64| share_of_all || *key > 0).guarantee(3)
        };
        let common = || {
            let common = Limit::new("all", Gcra::new(Quota::per_minute(all * 3)).burst(all)).keyed_by(|_: &u64| ());
            let common = if has_mark { common.warn_at(0.7) } else { common };
            let common = if is_shadow { common.shadow() } else { common }.keep_free_by(move |key: &u64| key * kept);
            common.only_if(move |key: &u64| common_of_all || *key != 1)
        };
        let other = || {
            let other =
                limit!("other", SlidingWindow::new(Quota::per_minute(40)), is_other_shadow, has_other_mark, |limit| {
                    limit
                });
            other.fixed_cost(1)
        };
        let list = || vec![DynLimit::new(share()), DynLimit::new(common()), DynLimit::new(other())];
        let (transaction, listed): (Decide, Decide) = (decide!(list(), clock), decide!(list(), clock));
        println!("seed {seed}");
        let before = reached.borrowed;
        decide_alike(
            &mut random,
            &clock,
            has_holds,
            [transaction, listed, decide!((share(), common(), other()), clock)],
            &mut reached,
        );
        borrowed_alone += usize::from(reached.borrowed > before && !has_holds && !is_shadow);
    }
    assert!(reached.borrowed > 500 && reached.denials > 1_000 && borrowed_alone > 20, "{reached:?} {borrowed_alone}");
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
