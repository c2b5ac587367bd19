//! Steps of the Redis server's clock, as `docs/redis.md` documents them.

use std::time::Duration;

use tower_ratelimit::{AcquireOptions, BoxLimiter, Clock as _, Limiter, ManualClock, Quota, Timestamp};

use crate::helpers::{acquire, every_algorithm_of_a_period};
use crate::server::Server;

const LIMIT: u64 = 10;
const QUOTA: Quota = Quota::per_minute(LIMIT);

/// Exhausts the limit and returns the number of allowed requests and the wait of the next one.
async fn exhaust(limiter: &BoxLimiter<str>) -> (u64, Duration) {
    let mut allowed = 0;
    loop {
        let options = AcquireOptions::default().max_delay(Duration::ZERO);
        match acquire(limiter, "alice", options).await.expect("an answer").decision.retry_after() {
            None => allowed += 1,
            Some(wait) => return (allowed, wait),
        }
    }
}

/// Each algorithm with its server clock and an exhausted key, and the key's wait.
async fn exhausted(server: &Server) -> Vec<(&'static str, BoxLimiter<str>, ManualClock, Duration)> {
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let mut subjects = Vec::new();
    for (name, limiter) in every_algorithm_of_a_period(&server.open(), QUOTA, Some(&clock)) {
        limiter.reset("alice").await.expect("done");
        let (allowed, wait) = exhaust(&limiter).await;
        assert!((1..=LIMIT).contains(&allowed), "{name}");
        subjects.push((name, limiter, clock.clone(), wait));
    }
    subjects
}

#[tokio::test]
async fn clock_step_forward_allows_at_most_the_limit_once_more() {
    for step in [1, 30, 60, 3600].map(Duration::from_secs) {
        for (name, limiter, clock, _) in exhausted(&Server::start()).await {
            let before = clock.now();
            clock.set(before.saturating_add(step));
            let (allowed, _) = exhaust(&limiter).await;
            assert!(allowed <= LIMIT, "{name}: {allowed} after a step of {step:?}");
            clock.set(before);
        }
    }
}

#[tokio::test]
async fn small_clock_step_back_extends_waits_by_at_most_the_step() {
    for step in [1, 3, 5].map(Duration::from_secs) {
        for (name, limiter, clock, wait) in exhausted(&Server::start()).await {
            let before = clock.now();
            clock.set(Timestamp::from_micros(before.as_micros() - u64::try_from(step.as_micros()).expect("short")));
            let (allowed, longer) = exhaust(&limiter).await;
            assert_eq!(allowed, 0, "{name}");
            assert!(
                (wait..=wait + step).contains(&longer),
                "{name}: {longer:?} after a step of {step:?}, {wait:?} before"
            );
            // The longer wait is exact.
            clock.advance(longer.saturating_sub(Duration::from_micros(1)));
            assert_eq!(exhaust(&limiter).await.0, 0, "{name}");
            clock.advance(Duration::from_micros(1));
            assert!(exhaust(&limiter).await.0 > 0, "{name}");
            clock.set(before);
        }
    }
}

#[tokio::test]
async fn large_clock_step_back_resets_the_key() {
    for (name, limiter, clock, _) in exhausted(&Server::start()).await {
        let before = clock.now();
        clock.set(Timestamp::from_micros(before.as_micros() - 3_600_000_000));
        let (allowed, wait) = exhaust(&limiter).await;
        assert!((1..=LIMIT).contains(&allowed), "{name}: {allowed}");
        assert!(wait <= Duration::from_secs(120), "{name}: {wait:?}, the period is a minute");
        clock.set(before);
    }
}

/// A hold with an id, and the memory of a request that is charged once: as in memory, what a clock that was far ahead has
/// stored does not count.
#[tokio::test]
async fn id_of_a_clock_that_stepped_back_is_forgotten() {
    let server = Server::start();
    let span = Duration::from_secs(60);
    let hold = AcquireOptions::cost(4).id("a").expires_in(span).hold();
    let request = AcquireOptions::cost(4).once("a", 9, span);
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    for (step, is_forgotten) in [(span / 2, false), (span * 4, true), (span * 525_600, true)] {
        for (name, limiter) in every_algorithm_of_a_period(&server.open(), QUOTA, Some(&clock)) {
            for key in ["alice", "bob"] {
                limiter.reset(key).await.expect("done");
            }
            clock.advance(span * 10);
            let before = clock.now();
            assert!(acquire(&limiter, "alice", hold).await.expect("an answer").decision.is_allowed(), "{name}");
            assert!(acquire(&limiter, "bob", request).await.expect("an answer").decision.is_allowed(), "{name}");
            clock.set(Timestamp::from_micros(before.as_micros() - u64::try_from(step.as_micros()).expect("short")));
            let repeat = acquire(&limiter, "alice", hold).await.expect("an answer").decision;
            assert_eq!((repeat.is_allowed(), repeat.is_repeat()), (is_forgotten, !is_forgotten), "{name}, {step:?}");
            let left = acquire(&limiter, "bob", request).await.expect("an answer").decision.remaining();
            assert_eq!(left, Some(LIMIT - 4), "{name}, {step:?}");
            // The one hold that counts, and its settlement.
            limiter.settle("alice", "a", 1).await.expect("settled");
            let left =
                acquire(&limiter, "alice", AcquireOptions::cost(0)).await.expect("an answer").decision.remaining();
            assert_eq!(left, Some(LIMIT - 1), "{name}, {step:?}");
            clock.set(before);
        }
    }
}
