//! Textbook sequences, with each decision written out.

use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, LeakyBucket, ManualClock, Memory, Quota, TokenBucket};

#[test]
fn leaky_bucket_admits_its_burst_of_20_simultaneous_requests() {
    let limiter = Memory::builder(LeakyBucket::new(Quota::new(1, Duration::from_secs(2))).burst(15))
        .clock(ManualClock::new())
        .build()
        .expect("valid settings");
    let allowed: Vec<bool> = (0..20).map(|_| limiter.check("key", AcquireOptions::default()).is_allowed()).collect();
    assert_eq!(allowed, [[true; 5], [true; 5], [true; 5], [false; 5]].concat());
    let denied = limiter.check("key", AcquireOptions::default());
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(2)));
    assert_eq!(denied.reset(), Some(Duration::from_secs(30)));
}

/// A bucket that rounded down at every update would deny every request after the third.
#[test]
fn token_bucket_keeps_its_rate_for_costs_of_three() {
    let clock = ManualClock::new();
    let limiter = Memory::builder(TokenBucket::new(Quota::per_second(1)).burst(10))
        .clock(clock.clone())
        .build()
        .expect("valid settings");
    let mut allowed_at = Vec::new();
    for request in 1..=60 {
        if limiter.check("key", AcquireOptions::cost(3)).is_allowed() {
            allowed_at.push(request);
        }
        clock.advance(Duration::from_millis(500));
    }
    let every_sixth = (5..=60).step_by(6);
    assert_eq!(allowed_at, [1, 2, 3].into_iter().chain(every_sixth).collect::<Vec<_>>());
}

/// Returns the milliseconds of allowed requests, of one request in each millisecond.
fn allowed_milliseconds<A: Algorithm>(algorithm: A, start: Duration, milliseconds: u64) -> Vec<u64> {
    let clock = ManualClock::new();
    let limiter = Memory::builder(algorithm).clock(clock.clone()).build().expect("valid settings");
    clock.advance(start);
    let is_allowed = || {
        let decision = limiter.check("key", AcquireOptions::default());
        clock.advance(Duration::from_millis(1));
        decision.is_allowed()
    };
    (0..milliseconds).filter(|_| is_allowed()).collect()
}

/// Requests that come much faster than the refill do not stop the refill.
#[test]
fn gcra_keeps_its_rate_when_polled_each_millisecond() {
    let allowed_at = allowed_milliseconds(Gcra::new(Quota::per_second(1)), Duration::ZERO, 3_001);
    assert_eq!(allowed_at, [0, 1_000, 2_000, 3_000]);
}

/// Denied requests do not extend the window.
#[test]
fn fixed_window_ends_on_time_when_polled_each_millisecond() {
    let window = FixedWindow::new(Quota::per_second(2));
    let allowed_at = allowed_milliseconds(window, Duration::from_millis(300), 2_500);
    assert_eq!(allowed_at, [0, 1, 1_000, 1_001, 2_000, 2_001]);
}

#[test]
fn aligned_window_ends_at_the_boundary_of_the_clock() {
    let window = FixedWindow::new(Quota::per_second(2)).aligned_to_clock();
    let allowed_at = allowed_milliseconds(window, Duration::from_millis(300), 2_500);
    assert_eq!(allowed_at, [0, 1, 700, 701, 1_700, 1_701]);
}
