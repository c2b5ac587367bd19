//! No drift: over a million requests that ask again exactly when they are told to, `floor(burst + rate * time)` have
//! been admitted at every single refusal.

use std::time::Duration;

use tower_ratelimit::{AcquireOptions, Clock, Gcra, ManualClock, Memory, Quota};

const REQUESTS: u64 = 1_000_000;

#[test]
fn three_a_second() {
    admits_exactly(Quota::per_second(3), 2);
}

#[test]
fn seven_a_minute() {
    admits_exactly(Quota::per_minute(7), 5);
}

#[test]
fn a_thousand_in_seven_seconds() {
    admits_exactly(Quota::new(1_000, Duration::from_secs(7)), 1_000);
}

#[test]
fn one_a_day() {
    // Some 130 years: more are not left before the last moment.
    admits_exactly_in(REQUESTS / 10, Quota::per_day(1), 2);
}

#[test]
fn a_million_a_second() {
    admits_exactly(Quota::per_second(1_000_000), 3);
}

fn admits_exactly(quota: Quota, burst: u64) {
    admits_exactly_in(REQUESTS, quota, burst);
}

fn admits_exactly_in(requests: u64, quota: Quota, burst: u64) {
    let clock = ManualClock::new();
    let limiter = Memory::builder(Gcra::new(quota).burst(burst))
        .max_keys(1)
        .clock(clock.clone())
        .build()
        .expect("legal settings");
    let start = clock.now();
    let mut admitted = 0;
    for _ in 0..requests {
        if let Some(wait) = limiter.check("key", AcquireOptions::default()).retry_after() {
            let elapsed = clock.now().saturating_since(start).as_micros();
            let back = elapsed * u128::from(quota.limit()) / quota.period().as_micros();
            assert_eq!(admitted, u128::from(burst) + back, "{quota}, after {elapsed} us");
            clock.advance(wait);
        } else {
            admitted += 1;
        }
    }
    assert!(admitted >= u128::from(requests / 2), "{admitted} of {requests}");
}
