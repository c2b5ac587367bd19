//! The memory of remembered ids.

use std::time::Duration;

use allocation_counter::measure;
use tower_ratelimit::{AcquireOptions, FixedWindow, Limiter, ManualClock, Memory, Quota, ReservationId};

const IDS: u64 = 10_000;

/// Returns the bytes for each of the ids of one key, and of as many calls again, which are not remembered.
fn bytes_of(options: impl Fn(ReservationId) -> AcquireOptions) -> [i64; 2] {
    let limiter: Memory<str, _> = Memory::builder(FixedWindow::new(Quota::per_day(1_000_000)))
        .max_keys(100)
        .clock(ManualClock::new())
        .build()
        .expect("limits");
    [0, IDS].map(|first| {
        let used = measure(|| {
            for id in first..first + IDS {
                let acquired = limiter.acquire("alice", options(ReservationId::new(id.to_be_bytes())));
                assert!(matches!(acquired.try_ready(), Ok(Ok(_))));
            }
        });
        used.bytes_current / i64::try_from(IDS).expect("a small number")
    })
}

#[test]
fn reservation_id_and_idempotency_take_less_than_500_bytes_for_each_id() {
    let request = bytes_of(|id| AcquireOptions::cost(1).once(id, 1, Duration::from_secs(60)));
    let hold = bytes_of(|id| AcquireOptions::cost(1).id(id).hold());
    println!("{request:?} bytes for each id of a request and each further one, {hold:?} of a hold");
    assert!(request[0] < 320 && hold[0] < 500, "{request:?}, {hold:?}");
    assert_eq!([request[1], hold[1]], [0, 0], "further ids take nothing");
}
