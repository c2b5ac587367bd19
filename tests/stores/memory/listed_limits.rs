//! Decisions that list limits, on the fast path: beside shadows, and for callers that want all limits.

use std::time::Duration;

use tower_ratelimit::{
    AcquireOptions, Detail, DynLimit, FixedWindow, Gcra, Limit, ManualClock, Memory, Quota, SlidingWindow,
};

use crate::random::Random;

/// Makes a limit that may be a shadow, and the value of `$each`.
macro_rules! limit {
    ($name:literal, $algorithm:expr, $shadow:expr, |$limit:ident| $each:expr) => {{
        let $limit = Limit::new($name, $algorithm).keyed_by(|key: &u64| *key);
        let $limit = if $shadow { $limit.shadow() } else { $limit };
        $each
    }};
}

/// Makes three limits, of which some are shadows, and the value of `$each` for each of them.
macro_rules! limits {
    ($quotas:ident, $shadows:ident, |$limit:ident| $each:expr) => {{
        let [first, second, third] = $quotas.map(Quota::per_minute);
        (
            limit!("bucket", Gcra::new(first), $shadows[0], |$limit| $each),
            limit!("window", FixedWindow::new(second), $shadows[1], |$limit| $each),
            limit!("sliding", SlidingWindow::new(third).blocks(2), $shadows[2], |$limit| $each),
        )
    }};
}

/// The law: the fast path of tuples and lists decides as the transaction, field by field. A list with a condition takes
/// the transaction. Each trace has shadows that would deny, limits that deny, and absent keys.
#[test]
fn listed_limits_equal_the_transaction() {
    let (mut listed, mut shadow_denials, mut denials) = (0, 0, 0);
    for seed in 0..70 {
        let mut random = Random::new(seed);
        let shadows = [0; 3].map(|_| random.below(2) == 0);
        let quotas = [0; 3].map(|_| 2 + random.below(20));
        let clock = ManualClock::new();
        let list = |(first, second, third)| -> Vec<DynLimit<u64>> { vec![first, second, third] };
        let tuple =
            Memory::<u64, _>::builder(limits!(quotas, shadows, |limit| limit)).max_keys(10).clock(clock.clone());
        let tuple = tuple.build().expect("three limits");
        let dynamic = list(limits!(quotas, shadows, |limit| DynLimit::new(limit)));
        let dynamic = Memory::builder(dynamic).max_keys(10).clock(clock.clone()).build().expect("three limits");
        let transaction = list(limits!(quotas, shadows, |limit| DynLimit::new(limit.only_if(|_: &u64| true))));
        let transaction = Memory::builder(transaction).max_keys(10).clock(clock.clone()).build().expect("three limits");
        for step in 0..200 {
            clock.advance(Duration::from_millis(random.below(4000)));
            let key = random.below(3);
            let detail = [Detail::MostRestrictive, Detail::AllIfDenied, Detail::All][random.index(3)];
            let options = AcquireOptions::cost(random.below(3)).detail(detail);
            let expected = transaction.check(&key, options);
            for decision in [tuple.check(&key, options), dynamic.check(&key, options)] {
                assert_eq!(format!("{decision:?}"), format!("{expected:?}"), "seed {seed}, step {step}");
                assert_eq!(decision.most_restrictive(), expected.most_restrictive(), "seed {seed}, step {step}");
            }
            denials += usize::from(!expected.is_allowed());
            if expected.is_allowed() && options.cost > 0 {
                shadow_denials += expected.shadow_denials().count();
                listed += usize::from(expected.limits().len() > 1 && expected.shadow_denials().count() == 0);
            }
        }
    }
    assert!(listed > 1_000 && shadow_denials > 300 && denials > 1_000, "{listed}, {shadow_denials}, {denials}");
}

/// The lists of dropped decisions are used again, and those of kept decisions are not.
#[test]
fn kept_decisions_keep_their_lists() {
    let (quotas, shadows) = ([5, 5, 5], [false, true, false]);
    let limiter = Memory::<u64, _>::builder(limits!(quotas, shadows, |limit| limit)).clock(ManualClock::new());
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
