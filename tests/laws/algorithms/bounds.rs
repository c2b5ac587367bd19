//! The maximum reset, on which stores rely.

use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, Counters, HitLog};

use crate::algorithm_ext::AlgorithmExt as _;
use crate::harness::no_windows;
use tower_ratelimit::{FixedWindow, Gcra, InFlight, LeakyQueue, Quota, SlidingLog, SlidingWindow, Timestamp};

/// Returns the reset after a charge of the limit, at the start of a block.
fn reset_when_full<A: Algorithm>(algorithm: &A, mut state: A::State, limit: u64) -> Duration {
    let now = Timestamp::from_micros(1_000_000_000_000);
    algorithm.charge(&mut state, now, Duration::ZERO, limit);
    algorithm.snapshot(&state, now).compute().reset
}

#[test]
fn max_reset_is_the_reset_of_a_full_state() {
    let quota = Quota::new(7, Duration::from_secs(8));
    assert_eq!(Gcra::new(quota).max_reset(), reset_when_full(&Gcra::new(quota), [0; 4], 7));
    let burst = Gcra::new(quota).burst(3);
    assert_eq!(burst.max_reset(), reset_when_full(&burst, [0; 4], 3));
    let queue = LeakyQueue::new(quota);
    assert_eq!(queue.max_reset(), reset_when_full(&queue, [0; 4], 8));
    assert_eq!(FixedWindow::new(quota).max_reset(), reset_when_full(&FixedWindow::new(quota), no_windows(), 7));
    let sliding = SlidingWindow::new(quota).blocks(4);
    let zero = Counters::zero(sliding.counter_words());
    assert_eq!(sliding.max_reset(), reset_when_full(&sliding, zero, 7));
    assert_eq!(SlidingLog::new(quota).max_reset(), reset_when_full(&SlidingLog::new(quota), HitLog::default(), 7));
    assert_eq!(InFlight::new(7).max_reset(), Duration::ZERO);
}
