//! Limits that apply only to some keys: what is stored, cached and cannot be built. `several_limits` has the decisions.

use std::time::Duration;

use tower_ratelimit::limiter::DeniedCache;
use tower_ratelimit::{
    AcquireOptions, DecisionSource, Detail, DynLimit, FixedWindow, Gcra, InFlight, Limit, Limiter, ManualClock, Memory,
    Quota, SlidingLog, SlidingWindow,
};

use crate::immediate::{acquire, memory, ready};

/// For each limit a bit: the limit applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    applies: u8,
    user: u64,
}

impl Call {
    fn is(&self, limit: usize) -> bool {
        self.applies >> limit & 1 == 1
    }
}

const NAMES: [&str; 5] = ["bucket", "window", "log", "flights", "all"];

fn quota() -> Quota {
    Quota::new(4, Duration::from_secs(2))
}

fn dyn_limits() -> Vec<DynLimit<Call>> {
    let user = |call: &Call| call.user;
    vec![
        DynLimit::new(
            Limit::new(NAMES[0], Gcra::new(quota()).burst(3)).keyed_by(user).only_if(|call: &Call| call.is(0)),
        ),
        DynLimit::new(
            Limit::new(NAMES[1], FixedWindow::new(quota()))
                .keyed_by_some(|call: &Call| call.is(1).then_some(call.user)),
        ),
        DynLimit::new(Limit::new(NAMES[2], SlidingLog::new(quota())).keyed_by(user).only_if(|call: &Call| call.is(2))),
        DynLimit::new(Limit::new(NAMES[3], InFlight::new(3)).keyed_by(user).only_if(|call: &Call| call.is(3))),
        DynLimit::new(
            Limit::new(NAMES[4], SlidingWindow::new(quota())).keyed_by(|_: &Call| ()).only_if(|call: &Call| call.is(4)),
        ),
    ]
}

#[test]
fn limit_that_does_not_apply_is_in_no_decision_and_stores_nothing() {
    let limiter = memory(dyn_limits(), &ManualClock::new());
    let call = Call { applies: 0b0_0001, user: 7 };
    let options = AcquireOptions::cost(1).keep_guard().hold().detail(Detail::All);
    let outcome = acquire(&limiter, &call, options);
    assert_eq!(outcome.decision.limits().len(), 1);
    assert!(limiter.check(&call, 1).is_allowed());
    let used: Vec<_> = limiter.usage().iter().map(|usage| usage.live_keys + usage.held_keys).collect();
    assert_eq!(used[1..], [0, 0, 0, 0], "{used:?}");
    assert!(used[0] > 0);
}

/// A cached denial belongs to the whole key, so it never answers for a key that meets other limits.
#[test]
fn denied_cache_answers_for_keys_that_meet_the_same_limits() {
    let clock = ManualClock::new();
    let limiter = memory(dyn_limits(), &clock);
    let cached = DeniedCache::with_clock(limiter, 100, clock);
    let options = AcquireOptions::cost(3).keep_guard();
    let [bucket, both] = [0b01, 0b11].map(|applies| Call { applies, user: 7 });
    assert!(acquire(&cached, &bucket, options).decision.is_allowed());
    for source in [DecisionSource::Store, DecisionSource::Cache] {
        let denied = acquire(&cached, &bucket, options).decision;
        assert_eq!((denied.is_allowed(), denied.source()), (false, source));
    }
    assert_eq!(acquire(&cached, &both, options).decision.source(), DecisionSource::Store);
    assert!(acquire(&cached, &Call { applies: 0b10, user: 7 }, options).decision.is_allowed());
    ready(cached.reset(&bucket));
    assert!(acquire(&cached, &bucket, options).decision.is_allowed());
}

/// `keyed_by` with an `Option` counts all keys without a value together; `keyed_by_some` does not count them.
#[test]
fn optional_sub_key_pools_keys_without_a_value_unless_keyed_by_some() {
    let gcra = || Gcra::new(quota()).burst(3);
    let user = |user: &Option<u64>| *user;
    let pooled = Memory::new(Limit::new("user", gcra()).keyed_by(user));
    assert!(pooled.check(&None, 3).is_allowed());
    assert!(!pooled.check(&None, 1).is_allowed(), "one count for all keys without a user");
    assert!(pooled.check(&Some(0), 3).is_allowed());
    let some = Memory::new(Limit::new("user", gcra()).keyed_by_some(user));
    assert!((0..100).all(|_| some.check(&None, 3).is_exempt()));
    assert!(some.check(&Some(0), 3).is_allowed() && !some.check(&Some(0), 1).is_allowed());
}

#[test]
fn limiter_with_a_condition_and_a_limit_on_the_whole_key_is_an_error() {
    let conditional =
        || Limit::new("writes", Gcra::new(quota())).keyed_by(|call: &Call| call.user).only_if(|call: &Call| call.is(0));
    let whole = || Limit::new("calls", Gcra::new(quota()));
    let errors = [
        Memory::builder((conditional(), whole())).build().map(drop),
        Memory::builder((whole(), conditional())).build().map(drop),
        Memory::builder(vec![DynLimit::new(whole()), DynLimit::new(conditional())]).build().map(drop),
        Memory::builder((
            whole(),
            Limit::new("writes", Gcra::new(quota())).keyed_by_some(|call: &Call| call.is(0).then_some(call.user)),
        ))
        .build()
        .map(drop),
    ];
    for error in errors.map(|result| result.expect_err("a limit counts by the whole key").to_string()) {
        assert!(
            error.contains("limit \"calls\": it counts by the whole key") && error.contains("\"writes\""),
            "{error}"
        );
    }
    let alone = Memory::builder(Limit::new("writes", Gcra::new(quota())).only_if(|call: &Call| call.is(0))).build();
    let error = alone.map(drop).expect_err("the limit counts by the whole key").to_string();
    assert!(error.contains("limit \"writes\": it counts by the whole key"), "{error}");
    let limiter = Memory::builder(vec![DynLimit::new(conditional())]).build().expect("limits");
    assert!(limiter.replace(vec![DynLimit::new(conditional()), DynLimit::new(whole())]).is_err());
}
