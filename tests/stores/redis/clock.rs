//! Steps of the Redis server's clock, as `docs/redis.md` documents them.

use std::time::Duration;

use tower_ratelimit::{AcquireOptions, BoxLimiter, Clock as _, ManualClock, Quota, Timestamp};

use crate::helpers::{acquire, every_algorithm};
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
    for (name, limiter) in every_algorithm(&server.open(), QUOTA, Some(&clock)) {
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
