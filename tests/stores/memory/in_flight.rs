//! Limits on requests in flight, in memory: what is held, what is charged, and for how long.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::limiter::{Chained, DeniedCache, Held, Outcome};
use tower_ratelimit::{
    AcquireOptions, Decision, Detail, DynLimit, Error, FixedWindow, InFlight, LeakyQueue, Limit, LimitStatus, Limiter,
    ManualClock, Memory, Quota, Verdict, WhenFull, per_key,
};

const MINUTE: Duration = Duration::from_secs(60);

/// The options of a request that keeps its guard.
fn request(cost: u64) -> AcquireOptions {
    AcquireOptions::cost(cost).keep_guard()
}

fn try_acquire<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, options: AcquireOptions) -> Result<Outcome, Error> {
    limiter.acquire(key, options).try_ready().expect("the memory store returns ready results")
}

fn acquire<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, options: AcquireOptions) -> Outcome {
    try_acquire(limiter, key, options).expect("a decision")
}

/// Starts a request, which the limiter must allow.
fn start<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, cost: u64) -> Held {
    acquire(limiter, key, request(cost)).held.expect("the limit allows the request")
}

fn peek<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> Decision {
    limiter.peek(key, 1.into()).try_ready().expect("the memory store returns ready results").expect("a decision")
}

/// "A hundred a minute, and two at once."
fn minute_and_streams(clock: &ManualClock) -> Memory<str, (Limit<FixedWindow>, Limit<InFlight>)> {
    let limits =
        (Limit::new("minute", FixedWindow::new(Quota::per_minute(100))), Limit::new("streams", InFlight::new(2)));
    Memory::builder(limits).max_keys(100).clock(clock.clone()).build().expect("a limiter")
}

#[test]
fn in_flight_denies_above_the_maximum_until_a_request_ends() {
    let limiter = Memory::new(InFlight::new(2));
    let first = acquire(&limiter, "alice", request(1));
    assert_eq!(first.decision.remaining(), Some(1));
    let second = start(&limiter, "alice", 1);
    let denied = acquire(&limiter, "alice", request(1));
    assert_eq!(denied.decision.verdict(), Verdict::Denied { retry_after: Duration::from_secs(1) });
    assert!(denied.decision.is_estimate() && denied.held.is_none());
    assert_eq!(acquire(&limiter, "bob", request(2)).decision.remaining(), Some(0), "each key has its own count");

    // A guard ends in any way: released, settled at any cost, dropped.
    second.settle(1000).try_ready().expect("ready").expect("released");
    let third = start(&limiter, "alice", 1);
    assert!(third.release().try_ready().expect("ready").is_ok());
    drop(first);
    assert_eq!(acquire(&limiter, "alice", request(2)).decision.remaining(), Some(0));
    assert_eq!(peek(&limiter, "alice").remaining(), Some(2));
}

#[test]
fn in_flight_counts_costs_and_exceeds_only_above_the_maximum() {
    let limiter = Memory::new(InFlight::new(10));
    let _seven = start(&limiter, "alice", 7);
    assert!(matches!(acquire(&limiter, "alice", request(4)).decision.verdict(), Verdict::Denied { .. }));
    assert!(acquire(&limiter, "alice", request(11)).decision.exceeds_limit());
    assert!(!acquire(&limiter, "alice", request(10)).decision.exceeds_limit(), "allowed when the others have ended");
    let _three = start(&limiter, "alice", 3);
    assert!(acquire(&limiter, "alice", request(0)).decision.is_allowed(), "a cost of zero needs no room");
}

#[test]
fn in_flight_rejects_invalid_maxima() {
    for max in [1 << 53, u64::MAX] {
        assert!(InFlight::try_new(max).expect_err("invalid").is_config());
    }
    assert_eq!(InFlight::try_new(5).expect("valid"), InFlight::new(5));
}

/// All or nothing: a denial by one limit charges nothing and holds nothing on the other.
#[test]
fn in_flight_and_a_rate_are_one_transaction() {
    let clock = ManualClock::new();
    let limiter = minute_and_streams(&clock);
    let remaining = |options: AcquireOptions| {
        let decision = acquire(&limiter, "alice", options.detail(Detail::All)).decision;
        decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect::<Vec<_>>()
    };
    let guards = [start(&limiter, "alice", 1), start(&limiter, "alice", 1)];
    for _ in 0..3 {
        assert_eq!(remaining(request(1)), [98, 0], "the denied request is not charged");
    }
    drop(guards);
    assert_eq!(remaining(request(0)), [98, 2], "the rate was charged at the start, and the rest is released");
    for _ in 0..98 {
        drop(start(&limiter, "alice", 1));
    }
    let denied = acquire(&limiter, "alice", request(1)).decision;
    assert_eq!(denied.retry_after(), Some(MINUTE));
    assert!(!denied.is_estimate(), "the rate alone denies");
    assert_eq!(remaining(request(0)), [0, 2], "the denied request holds nothing");
    clock.advance(MINUTE);
    assert_eq!(remaining(request(1)), [99, 1]);
}

#[test]
fn in_flight_part_of_a_hold_is_released_and_the_rate_is_settled() {
    let limiter = minute_and_streams(&ManualClock::new());
    let outcome = acquire(&limiter, "alice", request(2).hold());
    outcome.held.expect("allowed").settle(40).try_ready().expect("ready").expect("settled");
    let decision = acquire(&limiter, "alice", request(0).detail(Detail::All)).decision;
    assert_eq!(decision.limits()[0].remaining(), 60);
    assert_eq!(decision.limits()[1].remaining(), 2);
}

/// A request that never ends does not count after the maximum duration, and its guard then ends nothing.
#[test]
fn in_flight_request_does_not_count_after_the_maximum_duration() {
    let clock = ManualClock::new();
    let limits = |max| vec![DynLimit::<str>::new(Limit::new("streams", InFlight::new(max).max_duration(MINUTE)))];
    let limiter = Memory::builder(limits(2)).clock(clock.clone()).build().expect("a limiter");
    let first = start(&limiter, "alice", 1);
    clock.advance(MINUTE / 2);
    let second = start(&limiter, "alice", 1);
    limiter.replace(limits(2)).expect("valid limits");
    clock.advance((MINUTE / 2).saturating_sub(Duration::from_micros(1)));
    assert!(!peek(&limiter, "alice").is_allowed());
    clock.advance(Duration::from_micros(1));
    let third = start(&limiter, "alice", 1);
    drop(first);
    assert_eq!(peek(&limiter, "alice").remaining(), Some(0), "the overdue request has ended before");
    drop(second);
    assert_eq!(peek(&limiter, "alice").remaining(), Some(1));
    clock.advance(MINUTE);
    assert_eq!(limiter.usage()[0].held, 0);
    drop(third);
    assert_eq!(peek(&limiter, "alice").remaining(), Some(2));
    for invalid in [Duration::ZERO, Duration::from_nanos(999), Duration::MAX] {
        assert!(InFlight::new(1).try_max_duration(invalid).expect_err("invalid").is_config());
    }
}

/// Guards that end while decisions find them overdue: each hold ends once.
#[test]
fn in_flight_deadlines_and_guards_end_each_hold_once() {
    let clock = ManualClock::new();
    let in_flight = InFlight::new(8).max_duration(Duration::from_micros(20));
    let limiter = Memory::<str, _>::builder(in_flight).max_keys(100).clock(clock.clone()).build().expect("a limiter");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..2000_u32 {
                    let held = acquire(&limiter, "alice", request(2)).held;
                    clock.advance(Duration::from_micros(u64::from(round % 7)));
                    drop(held);
                }
            });
        }
    });
    assert_eq!(peek(&limiter, "alice").remaining(), Some(8));
    assert_eq!(limiter.usage()[0].held, 0);
}

/// The tokens of a request are settled, and the request counts as one in flight, however many tokens it estimates.
#[test]
fn in_flight_with_a_fixed_cost_counts_requests_beside_tokens() {
    let limits = (
        Limit::new("requests", FixedWindow::new(Quota::per_minute(60))).fixed_cost(1),
        Limit::new("tokens", FixedWindow::new(Quota::per_minute(10_000))),
        Limit::new("streams", InFlight::new(2)).fixed_cost(1),
    );
    let limiter = Memory::<str, _>::builder(limits).clock(ManualClock::new()).build().expect("a limiter");
    let remaining = || {
        let decision = acquire(&limiter, "alice", request(0).detail(Detail::All)).decision;
        decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect::<Vec<_>>()
    };
    let first = acquire(&limiter, "alice", request(900).hold()).held.expect("allowed");
    let second = acquire(&limiter, "alice", request(900).hold()).held.expect("allowed");
    let denied = acquire(&limiter, "alice", request(900).hold()).decision;
    assert_eq!(denied.most_restrictive().map(tower_ratelimit::LimitStatus::name), Some("streams"));
    assert!(denied.is_estimate());
    first.settle(650).try_ready().expect("ready").expect("settled");
    second.settle(0).try_ready().expect("ready").expect("settled");
    assert_eq!(remaining(), [57, 9350, 1], "this request is one more");
}

/// A guard reports, and settles when it is dropped, the cost of the request: not the fixed cost that is held until the
/// request ends.
#[test]
fn in_flight_fixed_cost_is_no_part_of_the_cost_that_a_guard_settles() {
    let clock = ManualClock::new();
    for fixed in [1, 5] {
        let rate = || Limit::new("rate", FixedWindow::new(Quota::per_minute(100)));
        let streams = || Limit::new("streams", InFlight::new(9)).fixed_cost(fixed);
        let memory_of_rate = || Memory::<str, _>::builder(rate()).clock(clock.clone()).build().expect("a limit");
        let memory_of_streams = || Memory::<str, _>::builder(streams()).clock(clock.clone()).build().expect("a limit");
        let both = Memory::<str, _>::builder((rate(), streams())).clock(clock.clone()).build().expect("limits");
        for limiter in [
            tower_ratelimit::BoxLimiter::new(both),
            tower_ratelimit::BoxLimiter::new(Chained::new(memory_of_rate(), memory_of_streams())),
            tower_ratelimit::BoxLimiter::new(Chained::new(memory_of_streams(), memory_of_rate())),
        ] {
            let held = acquire(&limiter, "alice", request(2).hold()).held.expect("allowed");
            assert_eq!(held.cost(), 2);
            drop(held);
            let decision = limiter.peek("alice", request(0).detail(Detail::All)).try_ready().expect("ready");
            let mut remaining: Vec<_> =
                decision.expect("a decision").limits().iter().map(LimitStatus::remaining).collect();
            remaining.sort_unstable();
            assert_eq!(remaining, [9, 98], "{fixed}");
        }
    }
    // Of two limits that charge nothing, the guard reports the greater cost.
    let streams = |fixed| Memory::<str, _>::new(Limit::new("streams", InFlight::new(9)).fixed_cost(fixed));
    for (first, second) in [(1, 3), (3, 1)] {
        let chain = Chained::new(streams(first), streams(second));
        assert_eq!(acquire(&chain, "alice", request(2)).held.expect("allowed").cost(), 3);
    }
}

/// Both requests have the same deadline, and each of them ends once.
#[test]
fn in_flight_requests_of_one_moment_end_one_by_one() {
    let clock = ManualClock::new();
    let in_flight = InFlight::new(3).max_duration(MINUTE);
    let limiter = Memory::<str, _>::builder(in_flight).clock(clock.clone()).build().expect("a limiter");
    let [first, second, third] = [1; 3].map(|cost| start(&limiter, "alice", cost));
    drop(first);
    assert_eq!(peek(&limiter, "alice").remaining(), Some(1));
    drop(second);
    assert_eq!(peek(&limiter, "alice").remaining(), Some(2));
    clock.advance(MINUTE);
    assert_eq!(peek(&limiter, "alice").remaining(), Some(3));
    drop(third);
    assert_eq!(peek(&limiter, "alice").remaining(), Some(3));
}

#[test]
fn in_flight_without_a_kept_guard_is_an_error() {
    let clock = ManualClock::new();
    let dynamic = vec![
        DynLimit::new(Limit::new("minute", FixedWindow::new(Quota::per_minute(100)))),
        DynLimit::new(Limit::new("streams", InFlight::new(2)).shadow()),
    ];
    let limiters = [
        tower_ratelimit::BoxLimiter::new(Memory::<str, _>::new(InFlight::new(2))),
        tower_ratelimit::BoxLimiter::new(minute_and_streams(&clock)),
        tower_ratelimit::BoxLimiter::new(Memory::<str, _>::new(dynamic)),
    ];
    for limiter in limiters {
        let error = try_acquire(&limiter, "alice", AcquireOptions::default()).expect_err("the guard would be dropped");
        assert!(error.is_config(), "{error}");
        assert!(acquire(&limiter, "alice", request(1)).decision.is_allowed());
        assert!(peek(&limiter, "alice").is_allowed(), "a peek holds nothing");
    }
}

#[test]
fn in_flight_check_decides_and_does_not_count_the_request() {
    let limiter = Memory::new((Limit::new("streams", InFlight::new(1)), FixedWindow::new(Quota::per_minute(9))));
    assert!(limiter.check("alice", 1).is_allowed());
    assert!(limiter.check("alice", 1).is_allowed());
    let _held = start(&limiter, "alice", 1);
    assert!(!limiter.check("alice", 1).is_allowed());
    assert_eq!(limiter.check("bob", 0).limits()[0].remaining(), 1);
}

#[test]
fn in_flight_shadow_counts_and_never_denies() {
    let limits = (
        Limit::new("queue", LeakyQueue::new(Quota::per_second(1)).max_waiting(5)),
        Limit::new("streams", InFlight::new(1)).shadow(),
    );
    let clock = ManualClock::new();
    let limiter = Memory::builder(limits).clock(clock.clone()).build().expect("a limiter");
    let first = start(&limiter, "alice", 1);
    let later = acquire(&limiter, "alice", request(1).max_delay(MINUTE)).decision;
    assert_eq!(later.retry_after(), Some(Duration::from_secs(1)), "a held cost starts now, so nothing is scheduled");
    clock.advance(Duration::from_secs(1));
    let second = acquire(&limiter, "alice", request(1));
    assert!(second.decision.is_allowed() && second.held.is_none());
    assert!(!later.supports_scheduling() && !second.decision.supports_scheduling());
    assert_eq!(second.decision.shadow_denials().count(), 1);
    drop(first);
    clock.advance(Duration::from_secs(1));
    let third = acquire(&limiter, "alice", request(1)).decision;
    assert_eq!(third.shadow_denials().count(), 0);
    assert!(!third.supports_scheduling(), "also if each limit allows");
}

#[test]
fn in_flight_denial_is_never_cached() {
    let limiter = DeniedCache::new(Memory::<str, _>::new(InFlight::new(1)));
    let held = start(&limiter, "alice", 1);
    assert!(!acquire(&limiter, "alice", request(1)).decision.is_allowed());
    drop(held);
    assert!(acquire(&limiter, "alice", request(1)).decision.is_allowed());
}

#[test]
fn in_flight_in_either_limiter_of_a_chain_is_held_until_the_end() {
    let clock = ManualClock::new();
    let rate = || Memory::<str, _>::builder(FixedWindow::new(Quota::per_minute(3))).clock(clock.clone()).build();
    let in_flight = || Memory::<str, _>::new(Limit::new("streams", InFlight::new(1)));
    let check = |limiter: &dyn Fn(AcquireOptions) -> Result<Outcome, Error>| {
        assert!(limiter(AcquireOptions::default()).expect_err("no guard").is_config());
        let first = limiter(request(1)).expect("a decision");
        assert!(first.decision.is_allowed());
        assert!(!limiter(request(1)).expect("a decision").decision.is_allowed());
        drop(first);
        let second = limiter(request(1)).expect("a decision");
        assert!(second.decision.is_allowed());
        drop(second);
        assert!(limiter(request(1)).expect("a decision").decision.is_allowed());
        let denied = limiter(request(1)).expect("a decision").decision;
        assert_eq!(denied.retry_after(), Some(MINUTE), "three requests were charged");
    };
    let chain = Chained::new(in_flight(), rate().expect("a limiter"));
    check(&|options| try_acquire(&chain, "alice", options));
    let chain = Chained::new(rate().expect("a limiter"), in_flight());
    check(&|options| try_acquire(&chain, "alice", options));
}

#[test]
fn in_flight_requests_keep_their_slot_in_a_full_table() {
    for when_full in [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny] {
        let limiter = Memory::builder(InFlight::new(1)).max_keys(10).when_full(when_full).build().expect("a limiter");
        let mut guards = Vec::new();
        let mut denied = 0;
        for key in 0..1000_u64 {
            match acquire(&limiter, &key, request(1)).held {
                Some(held) => guards.push((key, held)),
                None => denied += 1,
            }
        }
        assert!(guards.len() >= 10 && denied > 0, "{when_full:?}");
        for (key, _) in &guards {
            assert!(!acquire(&limiter, key, request(1)).decision.is_allowed(), "{when_full:?}");
        }
        let key = guards[0].0;
        guards.clear();
        assert!(acquire(&limiter, &key, request(1)).decision.is_allowed(), "{when_full:?}");
    }
}

#[test]
fn in_flight_survives_administrative_operations_and_a_replaced_maximum() {
    let limits = |max| vec![DynLimit::<str>::new(Limit::new("streams", InFlight::new(max)))];
    let limiter = Memory::new(limits(2));
    let guards = [start(&limiter, "alice", 1), start(&limiter, "alice", 1)];
    let done = |future: tower_ratelimit::limiter::LimiterFuture<()>| future.try_ready().expect("ready").expect("done");
    done(limiter.reset("alice"));
    done(limiter.set_usage("streams", "alice", 0));
    assert!(!peek(&limiter, "alice").is_allowed(), "the requests are still in flight");
    limiter.replace(limits(3)).expect("valid limits");
    assert_eq!(peek(&limiter, "alice").remaining(), Some(1));
    limiter.replace(limits(1)).expect("valid limits");
    assert_eq!(peek(&limiter, "alice").remaining(), Some(0));
    drop(guards);
    assert!(peek(&limiter, "alice").is_allowed());
    done(limiter.block("streams", "alice", MINUTE));
    let blocked = acquire(&limiter, "alice", request(1)).decision;
    assert!(!blocked.is_allowed() && !blocked.is_estimate());
}

#[test]
fn in_flight_usage_reports_what_is_held() {
    let limiter = Memory::new(InFlight::new(5));
    let guards = [start(&limiter, "alice", 2), start(&limiter, "bob", 1)];
    let usage = || limiter.usage().into_iter().map(|usage| (usage.held_keys, usage.held)).next();
    assert_eq!(usage(), Some((2, 3)));
    drop(guards);
    assert_eq!(usage(), Some((0, 0)));
}

proptest! {
    /// The law, against a model without a table: a request is allowed if and only if the sum of the costs in flight
    /// stays within the maximum, and if the window has room for it. The maximum depends on the tier in the key.
    #[test]
    fn in_flight_agrees_with_a_model(steps in prop::collection::vec((0..4_u8, 0..3_u64, 0..5_u64, any::<u8>()), 1..200)) {
        let clock = ManualClock::new();
        let max = |key: &u64| 3 + *key;
        let limits = (
            Limit::new("streams", per_key(move |key: &u64| InFlight::new(max(key)))),
            Limit::new("minute", FixedWindow::new(Quota::per_minute(20))).keyed_by(|_: &u64| ()),
        );
        let limiter = Memory::builder(limits).max_keys(100).clock(clock.clone()).build().unwrap();
        let mut flights: VecDeque<(u64, u64, Held)> = VecDeque::new();
        let (mut charged, mut window_ends) = (0, None);
        let mut now = Duration::ZERO;
        for (action, key, cost, pick) in steps {
            match action {
                0 | 1 => {
                    if window_ends.is_some_and(|end| end <= now) {
                        (charged, window_ends) = (0, None);
                    }
                    let in_flight: u64 = flights.iter().filter(|flight| flight.0 == key).map(|flight| flight.1).sum();
                    let expected = in_flight + cost <= max(&key) && charged + cost <= 20;
                    let outcome = acquire(&limiter, &key, request(cost));
                    prop_assert_eq!(outcome.decision.is_allowed(), expected);
                    prop_assert_eq!(outcome.held.is_some(), expected && cost > 0);
                    if let Some(held) = outcome.held {
                        charged += cost;
                        window_ends.get_or_insert(now + MINUTE);
                        flights.push_back((key, cost, held));
                    }
                }
                2 if !flights.is_empty() => {
                    let index = usize::from(pick) % flights.len();
                    let (_, _, held) = flights.remove(index).unwrap();
                    match pick % 3 {
                        0 => drop(held),
                        1 => drop(held.release()),
                        _ => drop(held.settle(u64::from(pick))),
                    }
                }
                _ => {
                    let step = Duration::from_secs(u64::from(pick) % 40);
                    now += step;
                    clock.advance(step);
                }
            }
        }
    }
}
