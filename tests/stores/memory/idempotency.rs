//! Requests that are charged once for an id, in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tower_ratelimit::limiter::{Chained, Fallback};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Costs, Detail, FixedWindow, Gcra, InFlight, Limit, Limiter, ManualClock, Memory, Quota,
};

use crate::idempotency_model::{RESULTS, compare, compare_bound};
use crate::immediate::memory;
use crate::reservation_model::{LIMIT, MAX_IDS, clock, day_or_year};

const MINUTE: Duration = Duration::from_secs(60);
const HUNDRED: Quota = Quota::per_day(LIMIT);

fn once(cost: u64, id: &str) -> AcquireOptions {
    AcquireOptions::cost(cost).once(id, 1, MINUTE)
}

fn window(clock: &ManualClock, limit: u64) -> Memory<str, FixedWindow> {
    memory(FixedWindow::new(Quota::per_day(limit)), clock)
}

#[tokio::test]
async fn idempotency_follows_the_model() {
    let mut seen = HashMap::new();
    for seed in 0..130 {
        let clock = clock();
        let limiter = Memory::builder(day_or_year(seed)).clock(clock.clone()).max_reservation_ids(MAX_IDS);
        compare(&BoxLimiter::new(limiter.build().expect("limits")), &clock, seed, &mut seen).await;
    }
    for result in RESULTS {
        assert!(seen.get(result).copied().unwrap_or(0) > 20, "{result}: {seen:?}");
    }
    println!("{seen:?}");
}

#[tokio::test]
async fn idempotency_bounds_what_one_id_passes_if_it_is_settled_late() {
    let clock = clock();
    let limiter: BoxLimiter<str> = BoxLimiter::new(window(&clock, 1_000_000));
    for seed in 0..50 {
        clock.advance(24 * 60 * MINUTE);
        let (passed, charged) = compare_bound(&limiter, &clock, seed).await;
        assert!(passed > charged, "some repeats pass: {passed}, {charged}");
    }
}

#[test]
fn idempotency_of_concurrent_calls_charges_one_of_two() {
    let clock = clock();
    let (limiter, allowed) = (window(&clock, 10_000), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for id in 0..1_000 {
                    let decision = limiter.check("alice", once(1, &format!("{id}")));
                    allowed.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(allowed.into_inner(), 2_000);
    assert_eq!(limiter.check("alice", 0).remaining(), Some(9_000));
}

/// A repeat passes although nothing remains, and a block denies it.
#[tokio::test]
async fn idempotency_is_decided_like_a_cost_of_zero() {
    let clock = clock();
    let limiter = window(&clock, 10);
    for id in ["a", "b"] {
        assert!(limiter.check("alice", once(5, id)).is_allowed());
    }
    assert!(limiter.check("alice", once(5, "a")).is_allowed(), "nothing remains, and nothing is charged");
    limiter.block("default", "alice", MINUTE / 2).await.expect("blocked");
    assert!(!limiter.check("alice", once(5, "b")).is_allowed());
    clock.advance(MINUTE / 2);
    assert!(limiter.check("alice", once(5, "b")).is_allowed(), "a denied repeat does not count");
}

/// Each limit is charged its own difference. A limit on requests in flight holds the whole cost of each repeat.
#[tokio::test]
async fn idempotency_holds_each_repeat_in_flight_and_charges_each_limit_its_difference() {
    let clock = clock();
    let limiter: Memory<str, _> = memory(
        (
            Limit::new("requests", FixedWindow::new(HUNDRED)).fixed_cost(1),
            Limit::new("output", FixedWindow::new(HUNDRED)).cost_of("output"),
            Limit::new("number", FixedWindow::new(HUNDRED)),
            Limit::new("open", InFlight::new(3)),
        ),
        &clock,
    );
    let all = async || {
        let peeked = limiter.peek("alice", AcquireOptions::cost(0).detail(Detail::All)).await.expect("a decision");
        peeked.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect::<Vec<_>>()
    };
    let mut guards = Vec::new();
    for (output, remaining) in [(10, [99, 90, 99, 2]), (25, [99, 75, 99, 1]), (25, [98, 50, 98, 0])] {
        let costs = AcquireOptions::from(Costs::new().add("output", output)).once("a", 1, MINUTE).keep_guard();
        let outcome = limiter.acquire("alice", costs).await.expect("a decision");
        assert!(outcome.decision.is_allowed());
        guards.extend(outcome.held);
        assert_eq!(all().await, remaining);
    }
    let costs = AcquireOptions::from(Costs::new()).once("b", 1, MINUTE).keep_guard();
    assert!(!limiter.acquire("alice", costs).await.expect("a decision").decision.is_allowed(), "three are in flight");
    drop(guards);
    assert_eq!(all().await, [98, 50, 98, 3]);
}

/// A settled request is remembered with its actual cost.
#[tokio::test]
async fn idempotency_of_held_costs_charges_the_greatest_actual_cost() {
    let clock = clock();
    let limiter = window(&clock, 100);
    let hold = async |id: &str| limiter.hold("alice", once(40, id)).await.expect("a decision").held.expect("a guard");
    let left = || limiter.check("alice", 0).remaining().expect("a number");
    let (first, second) = (hold("a").await, hold("a").await);
    assert_eq!(left(), 20, "no request with the id is settled, so both hold");
    first.settle(10).await.expect("settled");
    second.settle(4).await.expect("settled");
    assert_eq!(left(), 86, "and both are charged");
    let repeat = hold("a").await;
    assert_eq!(left(), 56, "a repeat holds what exceeds the settled cost");
    repeat.settle(12).await.expect("settled");
    assert_eq!(left(), 84);
    hold("a").await.settle(12).await.expect("settled");
    assert_eq!(left(), 72, "no repeat is left");
    drop(hold("b").await);
    assert_eq!(left(), 32, "a dropped guard settles whole");
    hold("b").await.settle(40).await.expect("settled");
    assert_eq!(left(), 32);
    clock.advance(2 * MINUTE);
    let small = async || limiter.hold("alice", once(20, "c")).await.expect("a decision").held.expect("a guard");
    small().await.release().await.expect("released");
    small().await.settle(7).await.expect("settled");
    assert_eq!(left(), 25, "a released request buys no repeat");
}

#[tokio::test]
async fn idempotency_is_an_error_where_it_is_not_supported() {
    let memory = || Memory::<str, _>::new(Gcra::new(HUNDRED));
    for error in [
        Chained::new(memory(), memory()).acquire("alice", once(1, "a")).await.expect_err("chained"),
        Fallback::new(memory(), memory()).acquire("alice", once(1, "a")).await.expect_err("fallback"),
    ] {
        assert!(error.is_unsupported() && error.to_string().contains("once"), "{error}");
    }
    let day = Duration::from_secs(24 * 60 * 60);
    for invalid in [
        AcquireOptions::cost(1).once("", 1, MINUTE),
        AcquireOptions::cost(1).once("a", 1, Duration::ZERO),
        AcquireOptions::cost(1).once("a", 1, day + MINUTE),
    ] {
        assert!(memory().acquire("alice", invalid).await.expect_err("invalid").is_config());
        assert!(!memory().check("alice", invalid).is_allowed());
    }
    let limiter = memory();
    for remaining in [99, 98] {
        let without = AcquireOptions::cost(1).once("a", 0, MINUTE);
        assert_eq!(limiter.check("alice", without).remaining(), Some(remaining), "without repeats, no id");
    }
}
