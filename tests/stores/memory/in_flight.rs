//! Limits on requests in flight, in memory: what `several_limits` and `near_limit` do not have.

use std::time::Duration;

use tower_ratelimit::limiter::{Chained, Held, Outcome};
use tower_ratelimit::{
    AcquireOptions, Detail, DynLimit, Error, FixedWindow, InFlight, Limit, LimitStatus, Limiter, ManualClock, Memory,
    Quota,
};

use crate::immediate::{acquire, memory, peek};

const MINUTE: Duration = Duration::from_secs(60);

/// The options of a request that keeps its guard.
fn request(cost: u64) -> AcquireOptions {
    AcquireOptions::cost(cost).keep_guard()
}

fn try_acquire<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, options: AcquireOptions) -> Result<Outcome, Error> {
    limiter.acquire(key, options).try_ready().expect("the memory store returns ready results")
}

/// Starts a request, which the limiter must allow.
fn start<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, cost: u64) -> Held {
    acquire(limiter, key, request(cost)).held.expect("the limit allows the request")
}

/// "A hundred a minute, and two at once."
fn minute_and_streams(clock: &ManualClock) -> Memory<str, (Limit<FixedWindow>, Limit<InFlight>)> {
    let limits =
        (Limit::new("minute", FixedWindow::new(Quota::per_minute(100))), Limit::new("streams", InFlight::new(2)));
    memory(limits, clock)
}

/// Guards that end while decisions find them overdue: each hold ends once.
#[test]
fn in_flight_deadlines_and_guards_end_each_hold_once() {
    let clock = ManualClock::new();
    let in_flight = InFlight::new(8).max_duration(Duration::from_micros(20));
    let limiter = memory::<str, _>(in_flight, &clock);
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
    assert_eq!(peek(&limiter, "alice", 1).remaining(), Some(8));
    assert_eq!(limiter.usage()[0].held, 0);
}

/// A guard reports, and settles when it is dropped, the cost of the request: not the fixed cost that is held until the
/// request ends.
#[test]
fn in_flight_fixed_cost_is_no_part_of_the_cost_that_a_guard_settles() {
    let clock = ManualClock::new();
    for fixed in [1, 5] {
        let rate = || Limit::new("rate", FixedWindow::new(Quota::per_minute(100)));
        let streams = || Limit::new("streams", InFlight::new(9)).fixed_cost(fixed);
        let memory_of_rate = || memory::<str, _>(rate(), &clock);
        let memory_of_streams = || memory::<str, _>(streams(), &clock);
        let both = memory::<str, _>((rate(), streams()), &clock);
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
        assert!(peek(&limiter, "alice", 1).is_allowed(), "a peek holds nothing");
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
    assert!(!peek(&limiter, "alice", 1).is_allowed(), "the requests are still in flight");
    limiter.replace(limits(3)).expect("valid limits");
    assert_eq!(peek(&limiter, "alice", 1).remaining(), Some(1));
    limiter.replace(limits(1)).expect("valid limits");
    assert_eq!(peek(&limiter, "alice", 1).remaining(), Some(0));
    drop(guards);
    assert!(peek(&limiter, "alice", 1).is_allowed());
    done(limiter.block("streams", "alice", MINUTE));
    let blocked = acquire(&limiter, "alice", request(1)).decision;
    assert!(!blocked.is_allowed() && !blocked.is_estimate());
}
