//! Limits with a unit: reservations, unknown units, fallbacks and cached denials. `several_limits` has the decisions.

use std::sync::Arc;

use tower_ratelimit::limiter::{
    Chained, DeniedCache, FailOpen, Fallback, Held, LimiterFuture, LimitsOfKey, Outcome, Reservation,
};
use tower_ratelimit::{
    AcquireOptions, Costs, Detail, DynLimit, Error, Gcra, Limit, LimitStatus, Limiter, ManualClock, Memory, Quota,
    TokenBucket,
};

use crate::immediate::memory;

fn requests() -> Limit<TokenBucket> {
    Limit::new("requests", TokenBucket::new(Quota::per_minute(60)))
}

fn input() -> Limit<TokenBucket> {
    Limit::new("input", TokenBucket::new(Quota::per_minute(1_000))).cost_of("input")
}

fn output() -> Limit<TokenBucket> {
    Limit::new("output", TokenBucket::new(Quota::per_minute(500))).cost_of("output")
}

type Model = (Limit<TokenBucket>, Limit<TokenBucket>, Limit<TokenBucket>);

fn model() -> Memory<str, Model> {
    memory((requests(), input(), output()), &ManualClock::new())
}

fn ready<T>(future: LimiterFuture<T>) -> Result<T, Error> {
    future.try_ready().expect("memory decides immediately")
}

fn try_acquire(limiter: &impl Limiter<str>, options: impl Into<AcquireOptions>) -> Result<Outcome, Error> {
    ready(limiter.acquire("alice", options.into()))
}

fn hold(limiter: &impl Limiter<str>, costs: impl Into<AcquireOptions>) -> Held {
    try_acquire(limiter, costs.into().hold()).expect("known units").held.expect("the limits allow the hold")
}

/// What each limit has left.
fn remaining(limiter: &impl Limiter<str>) -> Vec<u64> {
    let decision = ready(limiter.peek("alice", AcquireOptions::cost(0).detail(Detail::All))).expect("no units");
    decision.limits().iter().map(LimitStatus::remaining).collect()
}

fn tokens(input: u64, output: u64) -> Costs {
    Costs::new().add("input", input).add("output", output)
}

#[test]
fn reservation_counts_what_is_spent_in_each_unit() {
    let limiter = model();
    let reserve = || {
        let reserved = Reservation::reserve(&limiter, "alice", tokens(100, 30));
        futures_util::FutureExt::now_or_never(reserved).expect("memory").expect("known units").0.expect("allowed")
    };
    let mut reservation = reserve();
    reservation.spend(Costs::new().add("input", 90));
    reservation.spend(Costs::new().add("output", 4));
    reservation.spend(Costs::new().add("output", 5));
    assert_eq!(reservation.spent_costs(), tokens(90, 9));
    drop(reservation);
    assert_eq!(remaining(&limiter), [59, 910, 491]);
    drop(reserve());
    assert_eq!(remaining(&limiter), [58, 910, 491], "the request counts");
    ready(reserve().settle(tokens(10, 1))).expect("known units");
    assert_eq!(remaining(&limiter), [57, 900, 490]);
}

/// The error lists the units, and nothing is charged or held, wherever the limits are.
#[test]
fn unknown_unit_is_an_error_and_charges_nothing() {
    fn check(limiter: &impl Limiter<str>, full: &[u64], case: &str) {
        let unknown = Costs::new().add("input", 1).add("inptu", 5);
        for options in [unknown.into(), AcquireOptions::from(unknown).hold()] {
            let error = try_acquire(limiter, options).map(|outcome| outcome.decision).expect_err(case);
            assert!(error.is_config(), "{case}: {error}");
            let expected = "no limit names the unit \"inptu\"; use one of [\"input\", \"output\"]";
            assert!(error.to_string().contains(expected), "{case}: {error}");
            assert!(ready(limiter.peek("alice", options)).is_err_and(|error| error.is_config()), "{case}");
            assert_eq!(remaining(limiter), full, "{case}");
        }
        let mut many = Costs::new();
        for unit in ["a", "b", "c", "d", "e"] {
            many = many.add(unit, 1);
        }
        let error = try_acquire(limiter, many).map(|outcome| outcome.decision).expect_err(case).to_string();
        assert!(error.contains("more than 4 units"), "{case}: {error}");
        // The guard of a known request keeps the law.
        let held = hold(limiter, tokens(100, 30));
        let held_left = remaining(limiter);
        assert!(ready(held.settle(unknown)).expect_err(case).to_string().contains("inptu"), "{case}");
        assert_eq!(remaining(limiter), held_left, "{case}: the whole held cost is charged");
        hold(limiter, tokens(1, 1)).release().try_ready().expect("memory").expect(case);
    }

    let one = |limit: Limit<TokenBucket>| memory::<str, _>(limit, &ManualClock::new());
    check(&model(), &[60, 1_000, 500], "memory");
    let dynamic = vec![DynLimit::new(input()), DynLimit::new(output())];
    check(&memory(dynamic, &ManualClock::new()), &[1_000, 500], "dynamic");
    check(&Chained::new(one(input()), one(output())), &[1_000, 500], "chained");
    check(&Chained::new(one(requests()), one(output())).and(one(input())), &[60, 500, 1_000], "nested");
    check(&Fallback::new(model(), one(requests())), &[60, 1_000, 500], "fallback");
    check(&FailOpen::new(model()), &[60, 1_000, 500], "fail open");
    check(&DeniedCache::new(model()), &[60, 1_000, 500], "cache");
    check(&Arc::new(model()), &[60, 1_000, 500], "shared");

    let decision = model().check("alice", Costs::new().add("inptu", 1));
    assert!(decision.exceeds_limit() && decision.limits().is_empty());
    let none: Memory<str, _> = Memory::new(Gcra::new(Quota::per_second(1)));
    let error = try_acquire(&none, tokens(1, 1)).expect_err("no units").to_string();
    assert!(error.contains("the limiter has no units"), "{error}");
    let empty = Memory::<str, _>::builder(Limit::new("a", Gcra::new(Quota::per_second(1))).cost_of("")).build();
    assert!(empty.is_err_and(|error| error.to_string().contains("limit \"a\": its unit is empty")));
}

/// The secondary of a fallback charges the units that it names.
#[test]
fn secondary_of_a_fallback_charges_its_own_units() {
    /// A limiter whose store is down.
    struct Down;

    impl Limiter<str> for Down {
        fn acquire(&self, _: &str, _: AcquireOptions) -> LimiterFuture<Outcome> {
            LimiterFuture::ready(Err(Error::unavailable("the store is down")))
        }

        fn limits_of(&self, _: &str, limits: &mut LimitsOfKey<'_>) {
            for unit in ["input", "output"] {
                limits.add_unit(unit);
            }
        }
    }

    let secondary = memory::<str, _>(input(), &ManualClock::new());
    let outcome = try_acquire(&Fallback::new(Down, secondary), tokens(100, 30)).expect("known units");
    assert_eq!(outcome.decision.remaining(), Some(900), "the secondary has no output");
    // A guard is settled in the units of both, whichever limiter holds.
    let secondary = memory::<str, _>(input(), &ManualClock::new());
    let limiter = Fallback::new(Down, secondary.clone());
    let held = hold(&limiter, Costs::new().add("input", 100));
    ready(held.settle(Costs::new().add("input", 40).add("output", 3))).expect("known units");
    assert_eq!(secondary.check("alice", Costs::new().add("input", 0)).remaining(), Some(960));
}

#[test]
fn cached_denial_answers_costs_that_are_no_smaller_in_each_unit() {
    let clock = ManualClock::new();
    let limits = (requests(), input(), output());
    let limiter = memory(limits, &clock);
    let cached = DeniedCache::with_clock(limiter, 16, clock);
    let source = |costs: Costs| {
        let decision = try_acquire(&cached, costs).expect("known units").decision;
        (decision.is_allowed(), format!("{:?}", decision.source()))
    };
    assert!(try_acquire(&cached, tokens(0, 450)).expect("known units").decision.is_allowed());
    assert_eq!(source(tokens(10, 60)), (false, "Store".to_owned()));
    assert_eq!(source(tokens(10, 60)), (false, "Cache".to_owned()));
    assert_eq!(source(tokens(11, 61)), (false, "Cache".to_owned()));
    // Less input, which is not what denied: the cache does not know that.
    assert_eq!(source(tokens(9, 60)), (false, "Store".to_owned()));
    assert_eq!(source(Costs::new().add("output", 60)), (false, "Store".to_owned()));
    assert_eq!(source(Costs::new().add("input", 900)), (true, "Store".to_owned()));
}
