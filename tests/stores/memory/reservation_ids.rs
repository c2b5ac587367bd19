//! Holds with an id: held once, settled once, by any caller that knows the key and the id.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tower_ratelimit::limiter::{Chained, FailOpen, Fallback, Reservation};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Costs, Error, FixedWindow, Gcra, InFlight, Limit, Limiter, ManualClock, Memory, Quota,
    SlidingLog, SlidingWindow, TokenBucket,
};

use crate::immediate::memory;
use crate::reservation_model::{
    DRAINING, LIMIT, MAX_IDS, clock, compare, day_or_year, looking_changes_no_charge, no_id_passes_too_often,
};

const MINUTE: Duration = Duration::from_secs(60);
const HUNDRED: Quota = Quota::per_day(LIMIT);

fn options(cost: u64, id: &str) -> AcquireOptions {
    AcquireOptions::cost(cost).id(id).repeats(100).expires_in(MINUTE)
}

fn window(clock: &ManualClock) -> Memory<str, FixedWindow> {
    memory(FixedWindow::new(HUNDRED), clock)
}

#[test]
fn expires_in_counts_before_and_after_id() {
    let second = Duration::from_secs(1);
    let orders = [
        AcquireOptions::cost(7).hold().expires_in(second).id("a"),
        AcquireOptions::cost(7).hold().id("a").expires_in(second),
        AcquireOptions::cost(7).id("a").hold().expires_in(MINUTE).expires_in(second),
    ];
    assert_eq!(orders, [orders[0]; 3]);
}

#[tokio::test]
async fn reservation_id_follows_the_model() {
    let mut seen = HashMap::new();
    for seed in 0..350 {
        let clock = clock();
        let limiter =
            Memory::builder(day_or_year(seed)).max_keys(100).clock(clock.clone()).max_reservation_ids(MAX_IDS);
        compare(&BoxLimiter::new(limiter.build().expect("limits")), &clock, seed, &mut seen).await;
    }
    for result in ["allowed", "repeat", "open", "ended", "denied", "conflict", "too many", "settled", "unknown"] {
        assert!(seen.get(result).copied().unwrap_or(0) > 150, "{result}: {seen:?}");
    }
}

#[tokio::test]
async fn repeated_reservation_ids() {
    let mut counts = [0; 2];
    for seed in 0..300 {
        let clock = clock();
        let limiter = Memory::builder(FixedWindow::new(HUNDRED)).max_keys(100).clock(clock.clone()).build();
        // `FailOpen` admits nothing in place of an id that has passed.
        let limiter = BoxLimiter::new(FailOpen::new(limiter.expect("limits")));
        let [sent, passed] = no_id_passes_too_often(&limiter, &clock, seed).await;
        counts = [counts[0] + sent, counts[1] + passed];
    }
    assert!(counts[0] > 30_000 && counts[1] > 3_000, "{counts:?}");
}

#[test]
fn reservation_id_of_concurrent_calls_holds_once() {
    let clock = clock();
    let (limiter, allowed) = (window(&clock), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for id in 0..50 {
                    let hold = limiter.acquire("alice", options(1, &format!("{id}")).hold());
                    let Ok(outcome) = hold.try_ready() else { panic!("ready") };
                    allowed.fetch_add(u64::from(outcome.expect("a decision").decision.is_allowed()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(allowed.into_inner(), 400, "each repeat has the verdict of the first call");
    assert_eq!(limiter.check("alice", 0).remaining(), Some(LIMIT - 50));
}

/// A hold on a key that is idle until long after the expiry is charged as of the expiry.
#[tokio::test]
async fn reservation_id_is_charged_as_of_its_expiry() {
    let clock = clock();
    let limiter: Memory<str, _> = memory(TokenBucket::new(Quota::per_minute(60)), &clock);
    assert!(limiter.hold("alice", options(60, "a")).await.expect("a decision").decision.is_allowed());
    clock.advance(MINUTE / 2);
    assert_eq!(limiter.check("alice", 0).remaining(), Some(0), "held units do not drain");
    clock.advance(MINUTE);
    assert_eq!(limiter.check("alice", 0).remaining(), Some(30), "charged at 60 s, drained for 30 s");
}

/// Looks at a limiter in all ways: what was saved equals, once restored, what is left, unless the save has charged a hold.
#[tokio::test]
async fn looking_changes_no_charge_of_a_reservation_id() {
    let (mut exhausted, mut restored) = (0, 0);
    for seed in 0..60 {
        macro_rules! law {
            ($($limits:expr),+) => {$({
                let clock = clock();
                let build = |saved: Option<&[u8]>| {
                    let builder = Memory::builder($limits).max_keys(100).clock(clock.clone());
                    let builder = if let Some(saved) = saved { builder.restore(saved) } else { builder };
                    builder.build().expect("limits")
                };
                let (looked, alone) = (build(None), build(None));
                let pair = [BoxLimiter::new(looked.clone()), BoxLimiter::new(alone.clone())];
                exhausted += looking_changes_no_charge(&pair, &clock, seed, &mut async |random| match random.below(6) {
                    0 => drop(looked.usage()),
                    1 => drop(looked.top_keys("key", 10).expect("the limit")),
                    2 => assert!(!looked.check("alice", 101).is_allowed()),
                    3 => drop(looked.hold("bob", 101).await.expect("a decision")),
                    4 => {
                        let mut file = Vec::new();
                        looked.save(&mut file).expect("saved");
                        if looked.usage().iter().all(|usage| usage.held == 0) {
                            let after = build(Some(&file));
                            for key in ["alice", "bob"] {
                                let [left, kept] = [&alone, &after].map(|limiter| limiter.check(key, 101).remaining());
                                assert_eq!(kept, left, "seed {seed}");
                            }
                            restored += 1;
                        }
                    }
                    _ => drop(looked.peek("bob", AcquireOptions::cost(1)).await.expect("a decision")),
                })
                .await;
            })+};
        }
        law!(
            Limit::new("key", TokenBucket::new(DRAINING)),
            Limit::new("key", FixedWindow::new(DRAINING)),
            Limit::new("key", SlidingWindow::new(DRAINING)),
            Limit::new("key", SlidingLog::new(DRAINING)),
            (
                Limit::new("all", SlidingLog::new(DRAINING)).keyed_by(|_: &str| 0),
                Limit::new("key", Gcra::new(DRAINING).burst(LIMIT))
            )
        );
    }
    assert!(exhausted > 100 && restored > 300, "{exhausted}, {restored}");
}

#[tokio::test]
async fn reservation_id_charges_the_unit_of_each_limit() {
    let clock = clock();
    let limiter: Memory<str, _> = memory(
        (
            Limit::new("requests", FixedWindow::new(HUNDRED)),
            Limit::new("output", FixedWindow::new(HUNDRED)).cost_of("output"),
            Limit::new("fixed", FixedWindow::new(HUNDRED)).fixed_cost(2),
            Limit::new("open", InFlight::new(3)),
        ),
        &clock,
    );
    let hold = AcquireOptions::from(Costs::new().add("output", 40)).id("a").repeats(1).expires_in(MINUTE);
    for _ in 0..2 {
        assert!(limiter.hold("alice", hold).await.expect("a decision").decision.is_allowed());
    }
    let remaining = async |limit: &str| {
        let all = AcquireOptions::cost(0).detail(tower_ratelimit::Detail::All);
        let peeked = limiter.peek("alice", all).await.expect("a decision");
        peeked.limits().iter().find(|status| status.name() == limit).expect("the limit").remaining()
    };
    assert_eq!([remaining("requests").await, remaining("output").await, remaining("fixed").await], [99, 60, 98]);
    assert_eq!(remaining("open").await, 2);
    let unknown = limiter.settle("alice", "a", Costs::new().add("input", 1)).await.expect_err("no such unit");
    assert!(unknown.is_config(), "{unknown}");
    limiter.settle("alice", "a", Costs::new().add("output", 13)).await.expect("settled");
    assert_eq!([remaining("requests").await, remaining("output").await, remaining("fixed").await], [99, 87, 98]);
    assert_eq!(remaining("open").await, 3);
    assert!(limiter.hold("alice", AcquireOptions::from(Costs::new().add("output", 80)).id("b")).await.is_ok());
    clock.advance(MINUTE * 11);
    assert_eq!(remaining("open").await, 3, "the expiry of a request in flight charges nothing");
}

/// Without a limit that applies, nothing is held, and keys have no ids in common.
#[tokio::test]
async fn reservation_id_of_a_key_without_limits_is_allowed() {
    let limiter: Memory<str, _> = Memory::new(
        Limit::new("some", FixedWindow::new(HUNDRED)).keyed_by(|key: &str| key.len()).only_if(|key: &str| key == "bob"),
    );
    for (key, cost) in [("alice", 1), ("carol", 2), ("alice", 1_000)] {
        assert!(limiter.hold(key, options(cost, "a")).await.expect("a decision").decision.is_allowed());
        limiter.settle(key, "a", cost).await.expect("nothing to settle");
    }
    assert!(limiter.settle("bob", "a", 1).await.expect_err("not held").is_unknown_id());
}

/// 100 000 ids of one key take the memory of 10 000, and no other key's quota or ids.
#[tokio::test]
async fn reservation_id_attack_takes_bounded_memory_and_no_quota_of_others() {
    let clock = clock();
    let limiter = window(&clock);
    let mut allowed = 0;
    for id in 0..100_000_u64 {
        let hold = AcquireOptions::cost(0).id(tower_ratelimit::ReservationId::new(id.to_be_bytes().as_slice()));
        let decision = limiter.hold("mallory", hold).await.expect("a decision").decision;
        allowed += u64::from(decision.is_allowed());
        assert_eq!(decision.has_too_many_ids(), !decision.is_allowed());
        assert_eq!(decision.retry_after(), decision.has_too_many_ids().then(|| Duration::from_secs(1)));
    }
    assert_eq!(allowed, 10_000);
    assert!(limiter.hold("alice", options(100, "a")).await.expect("a decision").decision.is_allowed());
    clock.advance(MINUTE * 20);
    assert!(limiter.hold("mallory", options(0, "later")).await.expect("a decision").decision.is_allowed());
}

#[tokio::test]
async fn reservation_id_is_an_error_where_it_is_not_supported() {
    let is_unsupported = |error: &Error| {
        assert!(error.is_unsupported() && error.to_string().contains("reservation id"), "{error}");
    };
    let memory = || Memory::<str, _>::new(Gcra::new(HUNDRED));
    let chained = Chained::new(memory(), memory());
    is_unsupported(&chained.hold("alice", options(1, "a")).await.expect_err("chained"));
    is_unsupported(&chained.settle("alice", "a", 1).await.expect_err("chained"));
    let fallback = Fallback::new(memory(), memory());
    is_unsupported(&fallback.hold("alice", options(1, "a")).await.expect_err("fallback"));
    is_unsupported(&fallback.release("alice", "a").await.expect_err("fallback"));
    is_unsupported(&Reservation::reserve(&memory(), "alice", options(1, "a")).await.expect_err("a guard"));
    for invalid in
        [options(1, ""), options(1, "a").expires_in(Duration::ZERO), options(1, "a").expires_in(MINUTE * 2_000)]
    {
        assert!(memory().hold("alice", invalid).await.expect_err("invalid").is_config());
    }
    assert!(memory().settle("alice", "", 1).await.expect_err("empty").is_config());
    assert!(Memory::<str, _>::builder(Gcra::new(HUNDRED)).max_reservation_ids(0).build().is_err());
}
