//! Limits with a unit: each limit of a decision has a cost of its own.

use std::sync::Arc;
use std::time::Duration;

use tower_ratelimit::limiter::{
    Chained, DeniedCache, FailOpen, Fallback, Held, LimiterFuture, LimitsOfKey, Outcome, Reservation,
};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Costs, Decision, Detail, DynLimit, Error, FixedWindow, Gcra, InFlight, Limit,
    LimitStatus, Limiter, ManualClock, Memory, Quota, SlidingLog, SlidingWindow, TokenBucket, Verdict,
};

use crate::immediate::acquire;
use crate::random::Random;

const SECOND: Duration = Duration::from_secs(1);

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
    Memory::builder((requests(), input(), output())).clock(ManualClock::new()).build().expect("limits")
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
fn each_limit_charges_the_cost_in_its_unit() {
    let limiter = model();
    assert!(limiter.check("alice", tokens(100, 30)).is_allowed());
    assert_eq!(remaining(&limiter), [59, 900, 470]);
    // A unit that is left out costs 0, as do all units beside a single number.
    assert!(limiter.check("alice", Costs::from(5).add("output", 1)).is_allowed());
    assert_eq!(remaining(&limiter), [54, 900, 469]);
    assert!(limiter.check("alice", 4).is_allowed());
    assert_eq!(remaining(&limiter), [50, 900, 469]);
    // One limit denies, and none is charged.
    let denied = limiter.check("alice", tokens(10, 470));
    assert_eq!(denied.most_restrictive().map(LimitStatus::name), Some("output"));
    assert!(limiter.check("alice", tokens(1_001, 1)).exceeds_limit());
    assert_eq!(remaining(&limiter), [50, 900, 469]);
}

#[test]
fn hold_is_settled_with_the_actual_cost_of_each_limit() {
    type End = fn(Held) -> Result<(), Error>;
    let ends: [(End, [u64; 3]); 8] = [
        (|held| ready(held.settle(tokens(80, 7))), [59, 920, 493]),
        // Surcharges: also of a unit with a cost of 0.
        (|held| ready(held.settle(tokens(120, 60))), [59, 880, 440]),
        (|held| ready(held.settle(Costs::new().add("input", 1))), [59, 999, 500]),
        (|held| ready(held.settle(Costs::from(0).add("output", 2))), [60, 1_000, 498]),
        (|held| ready(held.settle(3)), [57, 1_000, 500]),
        (|held| ready(held.release()), [60, 1_000, 500]),
        (|held| ready(held.map_settle(Held::settle).settle(tokens(80, 7))), [59, 920, 493]),
        (
            |held| {
                drop(held);
                Ok(())
            },
            [59, 900, 470],
        ),
    ];
    for (index, (end, left)) in ends.into_iter().enumerate() {
        let limiter = model();
        let held = hold(&limiter, tokens(100, 30));
        assert_eq!(held.costs(), Costs::from(1).add("input", 100).add("output", 30));
        assert_eq!(remaining(&limiter), [59, 900, 470]);
        end(held).expect("known units");
        assert_eq!(remaining(&limiter), left, "end {index}");
    }
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

    let one = |limit: Limit<TokenBucket>| {
        Memory::<str, _>::builder(limit).clock(ManualClock::new()).build().expect("a limit")
    };
    check(&model(), &[60, 1_000, 500], "memory");
    let dynamic = vec![DynLimit::new(input()), DynLimit::new(output())];
    check(&Memory::builder(dynamic).clock(ManualClock::new()).build().expect("limits"), &[1_000, 500], "dynamic");
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

#[test]
fn boxed_limiter_knows_the_units_of_its_limiter() {
    let limiter = BoxLimiter::new(model());
    assert!(try_acquire(&limiter, tokens(10, 1)).expect("known units").decision.is_allowed());
    assert!(try_acquire(&limiter, Costs::new().add("dollars", 1)).is_err());
    assert_eq!(remaining(&limiter), [59, 990, 499]);
}

/// Each limiter of a chain, and the secondary of a fallback, charges the units that it names.
#[test]
fn limiters_of_a_chain_charge_their_own_units() {
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

    let one = |limit: Limit<TokenBucket>| {
        Memory::<str, _>::builder(limit).clock(ManualClock::new()).build().expect("a limit")
    };
    let limiter = Chained::new(one(requests()), one(input())).and(one(output()));
    assert!(try_acquire(&limiter, tokens(100, 30)).expect("known units").decision.is_allowed());
    assert_eq!(remaining(&limiter), [59, 900, 470]);
    let held = hold(&limiter, tokens(100, 30));
    assert_eq!(held.costs(), Costs::from(1).add("input", 100).add("output", 30));
    ready(held.settle(tokens(50, 1))).expect("known units");
    assert_eq!(remaining(&limiter), [58, 850, 469]);
    drop(hold(&limiter, tokens(100, 30)));
    assert_eq!(remaining(&limiter), [57, 750, 439]);
    assert!(!try_acquire(&limiter, tokens(1, 440)).expect("known units").decision.is_allowed());
    assert_eq!(remaining(&limiter), [57, 750, 439]);

    let limiter = Fallback::new(Down, one(input()));
    let outcome = try_acquire(&limiter, tokens(100, 30)).expect("known units");
    assert_eq!(outcome.decision.remaining(), Some(900), "the secondary has no output");
}

#[test]
fn cached_denial_answers_costs_that_are_no_smaller_in_each_unit() {
    let clock = ManualClock::new();
    let limits = (requests(), input(), output());
    let limiter = Memory::builder(limits).clock(clock.clone()).build().expect("limits");
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

/// A shadow without room does not count the request, and its unit is known at the settlement.
#[test]
fn shadow_with_a_unit_is_no_unknown_unit() {
    let limits = (input(), Limit::new("dollars", FixedWindow::new(Quota::per_minute(2))).cost_of("dollars").shadow());
    let limiter: Memory<str, _> = Memory::builder(limits).clock(ManualClock::new()).build().expect("limits");
    let costs = Costs::new().add("input", 10).add("dollars", 3);
    let held = hold(&limiter, costs);
    assert_eq!(remaining(&limiter), [990, 2]);
    ready(held.settle(costs)).expect("the shadow names the unit");
    assert_eq!(remaining(&limiter), [990, 2]);
}

/// One limiter of each limit, each with one limit and a single number as cost, that must all allow.
struct Separate {
    limiters: Vec<(Option<&'static str>, Memory<u64, Vec<DynLimit<u64>>>)>,
}

impl Separate {
    fn cost(unit: Option<&str>, costs: Costs, otherwise: u64) -> u64 {
        unit.map_or_else(|| costs.number().unwrap_or(otherwise), |unit| costs.of(unit))
    }

    fn acquire(&self, key: u64, costs: Costs, hold: bool) -> (Vec<Decision>, Option<Vec<Held>>) {
        let options = |unit| {
            let options = AcquireOptions::cost(Self::cost(unit, costs, 1)).max_delay(Duration::ZERO).keep_guard();
            if hold { options.hold() } else { options }
        };
        let peeked: Vec<_> =
            self.limiters.iter().map(|(unit, one)| ready(one.peek(&key, options(*unit))).expect("memory")).collect();
        if !peeked.iter().all(Decision::is_allowed) {
            return (peeked, None);
        }
        let outcomes = self.limiters.iter().map(|(unit, one)| {
            let Outcome { decision, held, .. } = acquire(one, &key, options(*unit));
            (decision, held)
        });
        let (decisions, held): (Vec<_>, Vec<_>) = outcomes.unzip();
        (decisions, held.into_iter().collect())
    }
}

/// The law: a limiter decides, lists and settles as limiters of one limit each, of which all must allow.
#[test]
fn random_costs_decide_as_separate_limiters_that_must_all_allow() {
    const UNITS: [Option<&str>; 5] = [None, Some("input"), Some("output"), Some("input"), None];

    fn limit(index: usize, has_unit: bool, random: &mut Random) -> DynLimit<u64> {
        let quota = Quota::new(4 + random.below(12), Duration::from_millis(500 + random.below(4_000)));
        macro_rules! with_unit {
            ($algorithm:expr) => {{
                let limit = Limit::new(format!("limit {index}"), $algorithm);
                DynLimit::new(match UNITS[index].filter(|_| has_unit) {
                    Some(unit) => limit.cost_of(unit),
                    None => limit,
                })
            }};
        }
        match random.below(6) {
            0 => with_unit!(Gcra::new(quota)),
            1 => with_unit!(TokenBucket::new(quota).burst(9)),
            2 => with_unit!(FixedWindow::new(quota)),
            3 => with_unit!(SlidingWindow::new(quota)),
            4 => with_unit!(SlidingLog::new(quota)),
            _ => with_unit!(InFlight::new(quota.limit())),
        }
    }

    let (mut allowed, mut denied, mut settled) = (0, 0, 0);
    for seed in 0..20 {
        let clock = ManualClock::new();
        let count = 1 + usize::try_from(seed % 5).expect("small");
        let limits = |has_units| {
            let mut random = Random(seed);
            (0..count).map(|index| limit(index, has_units, &mut random)).collect::<Vec<_>>()
        };
        let built = |limits| Memory::builder(limits).max_keys(100).clock(clock.clone()).build().expect("limits");
        let together: Memory<u64, _> = built(limits(true));
        let separate = Separate {
            limiters: limits(false).into_iter().zip(UNITS).map(|(one, unit)| (unit, built(vec![one]))).collect(),
        };
        let known: Vec<_> = UNITS[..count].iter().flatten().copied().collect();
        let mut random = Random(1_000 + seed);
        let mut held: Vec<(Held, Vec<Held>, Costs)> = Vec::new();
        for step in 0..400 {
            clock.advance(Duration::from_micros([0, 0, 1_000, 300_000, 2_000_000][random.index(5)]));
            let mut costs = if random.below(2) == 0 { Costs::new() } else { Costs::from(random.below(4)) };
            for unit in &known {
                if random.below(3) > 0 {
                    costs = costs.add(unit, random.below(6));
                }
            }
            let case = format!("seed {seed}, step {step}, {costs:?}");
            if !held.is_empty() && random.below(3) == 0 {
                let (ours, theirs, _) = held.swap_remove(random.index(held.len()));
                settled += 1;
                for (one, (unit, _)) in theirs.into_iter().zip(&separate.limiters) {
                    let actual = Separate::cost(*unit, costs, one.cost());
                    ready(one.settle(actual)).expect("memory");
                }
                ready(ours.settle(costs)).expect("known units");
                continue;
            }
            let (key, hold) = (random.below(2), random.below(2) == 0);
            let options = AcquireOptions::from(costs).detail(Detail::All).max_delay(Duration::ZERO).keep_guard();
            let options = if hold { options.hold() } else { options };
            let Outcome { decision, held: guard, .. } = acquire(&together, &key, options);
            let (expected, guards) = separate.acquire(key, costs, hold);
            let verdicts = expected.iter().map(Decision::verdict);
            let strictest = verdicts.fold(Verdict::Allowed, |strictest, verdict| match (strictest, verdict) {
                (Verdict::ExceedsLimit, _) | (_, Verdict::ExceedsLimit) => Verdict::ExceedsLimit,
                (Verdict::Denied { retry_after: a }, Verdict::Denied { retry_after: b }) => {
                    Verdict::Denied { retry_after: a.max(b) }
                }
                (Verdict::Allowed, other) => other,
                (strictest, _) => strictest,
            });
            assert_eq!(decision.verdict(), strictest, "{case}");
            for (ours, theirs) in decision.limits().iter().zip(&expected) {
                let theirs = &theirs.limits()[0];
                assert_eq!((ours.verdict(), ours.snapshot()), (theirs.verdict(), theirs.snapshot()), "{case}");
            }
            assert_eq!(decision.limits().len(), count, "{case}");
            (allowed, denied) = if decision.is_allowed() { (allowed + 1, denied) } else { (allowed, denied + 1) };
            match guard {
                Some(guard) if hold => held.push((guard, guards.expect("allowed"), costs)),
                // Requests in flight without a hold of the rest.
                Some(guard) => {
                    drop(guard);
                    drop(guards);
                }
                None => drop(guards),
            }
        }
        clock.advance(SECOND);
        drop(held);
    }
    assert!(allowed > 1_000 && denied > 1_000 && settled > 1_000, "{allowed} allowed, {denied} denied, {settled}");
    println!("{allowed} allowed, {denied} denied, {settled} settled");
}
