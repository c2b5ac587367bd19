//! No drift: a client retries exactly at `retry_after` over a million requests. At each denial the number of admitted
//! requests is `floor(burst + rate * time)`.

use std::time::Duration;

use tower_ratelimit::{AcquireOptions, Clock, Gcra, ManualClock, Memory, Quota};

const REQUESTS: u64 = 1_000_000;

#[test]
fn gcra_does_not_drift() {
    admits_exactly(REQUESTS, Quota::per_second(3), 2);
    admits_exactly(REQUESTS, Quota::per_minute(7), 5);
    admits_exactly(REQUESTS, Quota::new(1_000, Duration::from_secs(7)), 1_000);
    admits_exactly(REQUESTS, Quota::per_second(1_000_000), 3);
    // About 130 years, close to the largest timestamp.
    admits_exactly(REQUESTS / 10, Quota::per_day(1), 2);
}

fn admits_exactly(requests: u64, quota: Quota, burst: u64) {
    let clock = ManualClock::new();
    let limiter = Memory::builder(Gcra::new(quota).burst(burst))
        .max_keys(1)
        .clock(clock.clone())
        .build()
        .expect("valid settings");
    let start = clock.now();
    let mut admitted = 0;
    for _ in 0..requests {
        if let Some(wait) = limiter.check("key", AcquireOptions::default()).retry_after() {
            let elapsed = clock.now().saturating_since(start).as_micros();
            let refilled = elapsed * u128::from(quota.limit()) / quota.period().as_micros();
            assert_eq!(admitted, u128::from(burst) + refilled, "{quota}, after {elapsed} us");
            clock.advance(wait);
        } else {
            admitted += 1;
        }
    }
    assert!(admitted >= u128::from(requests / 2), "{admitted} of {requests}");
}
