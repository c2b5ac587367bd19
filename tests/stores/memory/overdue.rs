//! Requests in flight that last longer than the maximum: each decision is exact, whoever ends them.

use std::time::Duration;

use tower_ratelimit::limiter::{Held, Outcome};
use tower_ratelimit::{AcquireOptions, InFlight, Limit, Limiter, ManualClock, Memory, WhenFull, per_key};

use crate::immediate;
use crate::random::Random;

const MAX_DURATION: Duration = Duration::from_secs(60);

fn acquire(limiter: &impl Limiter<u64>, key: u64, cost: u64) -> Outcome {
    immediate::acquire(limiter, &key, AcquireOptions::cost(cost).keep_guard())
}

/// The law, against a list of requests: whatever else is overdue, a decision counts the requests of its key that are not.
#[test]
fn decision_counts_exactly_the_requests_that_are_not_overdue() {
    let (mut allowed, mut denied, mut ended) = (0, 0, 0);
    for seed in 0..20_u64 {
        let clock = ManualClock::new();
        // A longer duration for every third key.
        let tiers = per_key(|key: &u64| {
            InFlight::new(20).max_duration(MAX_DURATION * if key.is_multiple_of(3) { 5 } else { 1 })
        });
        let limiter = Memory::builder(Limit::new("streams", tiers)).max_keys(1000).clock(clock.clone());
        let limiter = limiter.build().expect("a limit");
        // Key, start, cost, guard.
        let mut flights: Vec<(u64, Duration, u64, Held)> = Vec::new();
        let (mut random, mut now) = (Random(seed), Duration::ZERO);
        for step in 0..4000 {
            // Many keys first, and then few: most overdue requests belong to other keys.
            let key = random.below(if step % 1000 < 700 { 300 } else { 4 });
            let lasts = |key: u64| MAX_DURATION * if key.is_multiple_of(3) { 5 } else { 1 };
            match random.below(8) {
                0..=5 => {
                    let cost = 1 + random.below(6);
                    let counted = flights.iter().filter(|flight| flight.0 == key && flight.1 + lasts(key) > now);
                    let counted: u64 = counted.map(|flight| flight.2).sum();
                    let outcome = acquire(&limiter, key, cost);
                    let is_allowed = counted + cost <= 20;
                    assert_eq!(outcome.decision.is_allowed(), is_allowed, "seed {seed}, step {step}");
                    let remaining = 20 - counted - if is_allowed { cost } else { 0 };
                    assert_eq!(outcome.decision.remaining(), Some(remaining), "seed {seed}, step {step}");
                    *(if is_allowed { &mut allowed } else { &mut denied }) += 1;
                    flights.extend(outcome.held.map(|held| (key, now, cost, held)));
                }
                6 if !flights.is_empty() => {
                    let index = usize::try_from(random.below(flights.len() as u64)).expect("small");
                    drop(flights.swap_remove(index));
                    ended += 1;
                }
                _ => {
                    let span = Duration::from_millis(random.below(if step % 1000 < 700 { 20 } else { 20_000 }));
                    now += span;
                    clock.advance(span);
                }
            }
        }
        let counted = flights
            .iter()
            .filter(|flight| flight.1 + MAX_DURATION * if flight.0.is_multiple_of(3) { 5 } else { 1 } > now);
        assert_eq!(limiter.usage()[0].held, counted.map(|flight| flight.2).sum::<u64>());
        drop(flights);
        assert_eq!((limiter.usage()[0].held, limiter.usage()[0].held_keys), (0, 0));
    }
    assert!(allowed > 30_000 && denied > 1_000 && ended > 5_000, "{allowed}, {denied}, {ended}");
}

/// Overdue requests keep no slot from a new key.
#[test]
fn overdue_requests_deny_no_new_key() {
    for when_full in [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny] {
        let clock = ManualClock::new();
        let limiter = Memory::builder(InFlight::new(1).max_duration(MAX_DURATION)).max_keys(2_000).when_full(when_full);
        let limiter: Memory<u64, _> = limiter.clock(clock.clone()).build().expect("a limit");
        let mut guards = Vec::new();
        for round in 0..4_u64 {
            let keys = round * 10_000..round * 10_000 + 2_000;
            for key in keys.clone() {
                let peeked = limiter.peek(&key, 1.into()).try_ready().expect("ready").expect("a decision");
                assert!(peeked.is_allowed(), "{when_full:?}, round {round}, {key}");
                let held = acquire(&limiter, key, 1).held;
                assert!(held.is_some(), "{when_full:?}, round {round}, {key}");
                guards.extend(held);
            }
            // The table is full of requests in flight, and then of overdue ones.
            let others = (0..1_000).filter_map(|key| acquire(&limiter, 1_000_000 + key, 1).held);
            guards.extend(others);
            clock.advance(MAX_DURATION);
        }
    }
}
