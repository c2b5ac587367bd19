//! Requests that are charged once for an id, in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tower_ratelimit::limiter::{Chained, Fallback};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Costs, Detail, FixedWindow, Gcra, InFlight, Limit, Limiter, ManualClock, Memory, Quota,
    ReservationId, TokenBucket,
};

use crate::idempotency_model::{RESULTS, compare, compare_bound};
use crate::immediate::memory;
use crate::random::Random;
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

/// 40,000 requests with one id: whatever their times, at most `1 + repeats` of them pass for each that is charged.
#[test]
fn idempotency_bounds_what_one_id_passes() {
    for (repeats, requests) in [(1, 40_000_u64), (3, 20_000)] {
        let (clock, mut random, mut passed) = (clock(), Random::new(7), 0_u64);
        let limiter = window(&clock, 1_000_000);
        let options = AcquireOptions::cost(1).once("one", repeats, MINUTE);
        for number in 0..requests {
            passed += u64::from(limiter.check("mallory", options).is_allowed());
            // The id is forgotten and remembered again 800 times.
            if random.below(50) == 0 {
                clock.advance(if number % 2 == 0 { MINUTE } else { MINUTE / 3 });
            }
            if number % 20_000 == 0 {
                clock.set(clock_start());
            }
        }
        let charged = 1_000_000 - limiter.check("mallory", 0).remaining().expect("a number");
        println!("{repeats} repeats: {passed} passed, {charged} charged");
        assert!(passed <= (1 + u64::from(repeats)) * charged, "{passed}, {charged}");
        assert!(charged < passed, "some repeats pass");
    }
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

fn clock_start() -> tower_ratelimit::Timestamp {
    tower_ratelimit::Clock::now(&clock())
}

/// The bound is reached: one request and its repeat in each minute.
#[test]
fn idempotency_passes_the_bound_of_a_patient_client() {
    let (clock, mut passed) = (clock(), 0);
    let limiter = window(&clock, 10);
    for _ in 0..100 {
        passed += [(); 2].iter().filter(|()| limiter.check("alice", once(1, "a")).is_allowed()).count();
        clock.advance(MINUTE);
    }
    assert_eq!(passed, 20, "twice the limit");
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

#[test]
fn idempotency_remembers_no_denied_request() {
    let clock = clock();
    let limiter = window(&clock, 10);
    assert!(limiter.check("alice", 8).is_allowed());
    assert!(!limiter.check("alice", once(3, "a")).is_allowed());
    let _ = limiter.reset("alice").try_ready();
    assert_eq!(limiter.check("alice", once(3, "a")).remaining(), Some(7), "charged");
    assert_eq!(limiter.check("alice", once(3, "a")).remaining(), Some(7));
    assert!(limiter.check("alice", 7).is_allowed());
    assert!(!limiter.check("alice", once(3, "b")).is_allowed());
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

#[test]
fn idempotency_counts_within_its_key_and_apart_from_reservation_ids() {
    let clock = clock();
    let limiter = window(&clock, 100);
    assert_eq!(limiter.check("alice", once(10, "a")).remaining(), Some(90));
    assert_eq!(limiter.check("bob", once(10, "a")).remaining(), Some(90));
    let hold = limiter.acquire("alice", AcquireOptions::cost(20).id("a").hold());
    let Ok(Ok(outcome)) = hold.try_ready() else { panic!("no error") };
    assert_eq!(outcome.decision.remaining(), Some(70), "the hold is no repeat of the request");
    assert_eq!(limiter.check("alice", once(10, "a")).remaining(), Some(70));
    limiter.settle("alice", "a", 5).try_ready().expect("ready").expect("settled");
    assert_eq!(limiter.check("alice", 0).remaining(), Some(85));
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

/// The theorem of holds with repeats: with each request placed at its start, no window admits more than the bucket's bound.
#[tokio::test]
async fn idempotency_keeps_the_bound_of_the_bucket() {
    const BURST: u64 = 50;
    let (mut repeats, mut charged) = (0_u64, 0_u64);
    for seed in 0..100 {
        let (mut random, clock) = (Random::new(seed), ManualClock::new());
        let limiter = Memory::builder(TokenBucket::new(Quota::per_second(10)).burst(BURST)).clock(clock.clone());
        let limiter: Memory<str, _> = limiter.build().expect("limits");
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        let mut known: HashMap<u64, (u64, u16, u64)> = HashMap::new();
        for _ in 0..400 {
            let now = tower_ratelimit::Clock::now(&clock).as_micros();
            if random.below(3) == 0 {
                clock.advance(Duration::from_micros(random.below(400_000)));
                continue;
            }
            let (id, cost) = (random.below(40), random.below(20));
            let options = AcquireOptions::cost(cost).once(&format!("{id}"), 1, Duration::from_secs(2));
            if !limiter.check("alice", options).is_allowed() {
                continue;
            }
            known.retain(|_, (_, _, at)| now < *at + 2_000_000);
            let charge = match known.get_mut(&id) {
                Some((before, left, _)) if *left > 0 => {
                    repeats += 1;
                    *left = 0;
                    cost.saturating_sub(*before)
                }
                Some(_) => cost,
                None => {
                    known.insert(id, (cost, 1, now));
                    cost
                }
            };
            charged += u64::from(charge > 0);
            admitted.push((now, charge));
        }
        for (first, &(from, _)) in admitted.iter().enumerate() {
            let mut sum = 0;
            for &(to, cost) in &admitted[first..] {
                sum += cost;
                assert!(sum * 100_000 <= BURST * 100_000 + (to - from), "seed {seed}: {sum} in {} us", to - from);
            }
        }
    }
    assert!(repeats > 1_000 && charged > 1_600, "{repeats}, {charged}");
}

/// 100,000 ids of one key take the memory of 10,000, and no other key's ids or quota.
#[test]
fn idempotency_attack_takes_bounded_memory_and_no_quota_of_others() {
    let clock = clock();
    let limiter = window(&clock, 200_000);
    assert!(limiter.check("alice", once(100, "a")).is_allowed());
    for id in 0..100_000_u64 {
        let options = AcquireOptions::cost(1).once(ReservationId::new(id.to_be_bytes()), 1, MINUTE);
        assert!(limiter.check("mallory", options).is_allowed());
    }
    assert_eq!(limiter.check("mallory", 0).remaining(), Some(100_000));
    for (id, is_repeat) in [(0_u64, true), (9_999, true), (10_000, false), (99_999, false)] {
        let options = AcquireOptions::cost(1).once(ReservationId::new(id.to_be_bytes()), 1, MINUTE);
        let before = limiter.check("mallory", 0).remaining();
        let after = limiter.check("mallory", options).remaining();
        assert_eq!(after == before, is_repeat, "only the first 10,000 ids are remembered: {id}");
    }
    assert_eq!(limiter.check("alice", once(100, "a")).remaining(), Some(199_900), "alice's id is remembered");
    clock.advance(MINUTE);
    let later = AcquireOptions::cost(1).once("later", 1, MINUTE);
    let left = limiter.check("mallory", later).remaining();
    assert_eq!(limiter.check("mallory", later).remaining(), left, "old ids make room");
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
