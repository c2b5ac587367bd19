//! The classic runs, number by number.

use std::time::Duration;

use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, LeakyBucket, ManualClock, Memory, Quota, TokenBucket};

#[test]
fn a_funnel_of_fifteen_called_twenty_times_at_once() {
    let limiter = Memory::builder(LeakyBucket::new(Quota::new(1, Duration::from_secs(2))).burst(15))
        .clock(ManualClock::new())
        .build()
        .expect("legal settings");
    let passed: Vec<bool> = (0..20).map(|_| limiter.check("key", AcquireOptions::default()).is_allowed()).collect();
    assert_eq!(passed, [[true; 5], [true; 5], [true; 5], [false; 5]].concat());
    let refused = limiter.check("key", AcquireOptions::default());
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(2)));
    assert_eq!(refused.reset(), Some(Duration::from_secs(30)));
}

/// Rounded down at every update, the bucket would be dead after three requests.
#[test]
fn a_token_a_second_for_requests_of_three_tokens_each_half_second() {
    let clock = ManualClock::new();
    let limiter = Memory::builder(TokenBucket::new(Quota::per_second(1)).burst(10))
        .clock(clock.clone())
        .build()
        .expect("legal settings");
    let mut passed = Vec::new();
    for request in 1..=60 {
        if limiter.check("key", AcquireOptions::cost(3)).is_allowed() {
            passed.push(request);
        }
        clock.advance(Duration::from_millis(500));
    }
    let every_sixth = (5..=60).step_by(6);
    assert_eq!(passed, [1, 2, 3].into_iter().chain(every_sixth).collect::<Vec<_>>());
}

/// Polled far faster than it refills, a bucket still refills.
#[test]
fn a_token_a_second_asked_each_millisecond() {
    let clock = ManualClock::new();
    let limiter =
        Memory::builder(Gcra::new(Quota::per_second(1))).clock(clock.clone()).build().expect("legal settings");
    let mut passed = Vec::new();
    for millisecond in 0..=3_000 {
        if limiter.check("key", AcquireOptions::default()).is_allowed() {
            passed.push(millisecond);
        }
        clock.advance(Duration::from_millis(1));
    }
    assert_eq!(passed, [0, 1_000, 2_000, 3_000]);
}

/// Refused requests do not put off the end of the window.
#[test]
fn a_fixed_window_that_is_asked_all_the_time() {
    let clock = ManualClock::new();
    let limiter =
        Memory::builder(FixedWindow::new(Quota::per_second(2))).clock(clock.clone()).build().expect("legal settings");
    let mut passed = Vec::new();
    clock.advance(Duration::from_millis(300));
    for millisecond in 0..2_500 {
        if limiter.check("key", AcquireOptions::default()).is_allowed() {
            passed.push(millisecond);
        }
        clock.advance(Duration::from_millis(1));
    }
    assert_eq!(passed, [0, 1, 1_000, 1_001, 2_000, 2_001]);
}

#[test]
fn a_window_aligned_to_the_clock_ends_with_the_clock() {
    let clock = ManualClock::new();
    let limiter = Memory::builder(FixedWindow::new(Quota::per_second(2)).aligned_to_clock())
        .clock(clock.clone())
        .build()
        .expect("legal settings");
    let mut passed = Vec::new();
    clock.advance(Duration::from_millis(300));
    for millisecond in 0..2_500 {
        if limiter.check("key", AcquireOptions::default()).is_allowed() {
            passed.push(millisecond);
        }
        clock.advance(Duration::from_millis(1));
    }
    assert_eq!(passed, [0, 1, 700, 701, 1_700, 1_701]);
}
