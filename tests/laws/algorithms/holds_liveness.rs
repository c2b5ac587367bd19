//! The goodput of holds: the share of a quota that is used when costs are estimated, and the rate of denied successes
//! when only failures are charged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::Held;
use tower_ratelimit::{
    AcquireOptions, Clock, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limiter, ManualClock, Memory, Quota, SlidingLog,
    SlidingWindow, TokenBucket,
};

use crate::harness::ready;
use crate::random::Random;
use crate::span::micros;

/// Streams or requests in flight at one limit, in virtual time.
struct Traffic<A: Algorithm> {
    limiter: Memory<str, A>,
    clock: ManualClock,
    /// The end of each request, and the index of its guard.
    ends: BinaryHeap<(Reverse<u64>, usize)>,
    guards: Vec<Option<Held>>,
    /// The cost at which each request is settled.
    actual: u64,
}

impl<A: Algorithm> Traffic<A> {
    fn new(algorithm: A, actual: u64) -> Self {
        let clock = ManualClock::new();
        let limiter = Memory::builder(algorithm).clock(clock.clone()).build().expect("a valid limit");
        Self { limiter, clock, ends: BinaryHeap::new(), guards: Vec::new(), actual }
    }

    fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    fn hold(&self, cost: u64) -> Option<Held> {
        ready(self.limiter.hold("key", AcquireOptions::cost(cost))).held
    }

    /// Starts a request of this duration. Returns false if it is denied.
    fn start(&mut self, cost: u64, duration: Duration) -> bool {
        let Some(held) = self.hold(cost) else { return false };
        self.ends.push((Reverse(self.now() + micros(duration)), self.guards.len()));
        self.guards.push(Some(held));
        true
    }

    /// Advances the clock, and settles each request at its end.
    fn advance(&mut self, span: Duration) {
        let until = self.now() + micros(span);
        while let Some(&(Reverse(end), which)) = self.ends.peek()
            && end <= until
        {
            self.ends.pop();
            self.clock.advance(Duration::from_micros(end - self.now()));
            if let Some(held) = self.guards[which].take() {
                ready(held.settle(self.actual));
            }
        }
        self.clock.advance(Duration::from_micros(until - self.now()));
    }

    fn remaining(&self) -> Option<u64> {
        ready(self.limiter.peek("key", AcquireOptions::default())).remaining()
    }
}

/// 1000 tokens a minute with an equal burst. Each stream takes 20 seconds, is estimated at 100 tokens and uses 30. A
/// new stream always waits to start.
#[test]
fn llm_reservations_keep_75_percent() {
    const RATE: u64 = 1000;
    let mut streams = Traffic::new(TokenBucket::new(Quota::per_minute(RATE)), 30);
    let mut started_in = |minutes: u64| {
        let mut started = 0;
        for _ in 0..minutes * 60 * 100 {
            while streams.start(100, Duration::from_secs(20)) {
                started += 1;
            }
            streams.advance(Duration::from_millis(10));
        }
        started
    };
    // Warm-up: the initial burst is not measured.
    started_in(10);
    let kept = 30 * started_in(30);
    let share = kept * 100 / (RATE * 30);
    println!("{share} % of the quota is used");
    assert!((75..=100).contains(&share), "{share} %");
}

/// Counts denied requests at a limit of one a second with a burst of ten. Each request succeeds after 300 milliseconds:
/// it holds one and releases it at its end.
fn denied_successes(gaps: impl Iterator<Item = Duration>) -> usize {
    let mut requests = Traffic::new(Gcra::new(Quota::per_second(1)).burst(10), 0);
    let mut denied = 0;
    for gap in gaps {
        requests.advance(gap);
        denied += usize::from(!requests.start(1, Duration::from_millis(300)));
    }
    requests.advance(Duration::from_secs(1));
    assert_eq!(requests.remaining(), Some(10), "no success was charged");
    denied
}

#[test]
fn only_failures_at_five_times_the_limit() {
    const REQUESTS: usize = 20_000;
    let evenly = std::iter::repeat_n(Duration::from_millis(200), REQUESTS);
    assert_eq!(denied_successes(evenly), 0);
    // Gaps of 0 to 400 milliseconds.
    let unevenly = Random::new(1).map(|number| Duration::from_micros(number % 400_000)).take(REQUESTS);
    assert!(denied_successes(unevenly) <= REQUESTS / 2000);
}

/// Two overlapping holds, released in either order, leave the limit full.
fn assert_overlapping_holds_charge_nothing<A: Algorithm + Copy>(algorithm: A, limit: u64) {
    for first_ends_first in [true, false] {
        let traffic = Traffic::new(algorithm, 0);
        let first = traffic.hold(1).expect("the limit is full");
        traffic.clock.advance(Duration::from_millis(100));
        let second = traffic.hold(1).expect("the limit has tokens left");
        assert_eq!(traffic.remaining(), Some(limit - 2), "{algorithm:?}");
        traffic.clock.advance(Duration::from_millis(100));
        let [one, other] = if first_ends_first { [first, second] } else { [second, first] };
        ready(one.release());
        assert_eq!(traffic.remaining(), Some(limit - 1), "{algorithm:?}");
        traffic.clock.advance(Duration::from_millis(100));
        ready(other.release());
        assert_eq!(traffic.remaining(), Some(limit), "{algorithm:?}");
        let unused = traffic.limiter.usage().remove(0);
        assert_eq!((unused.live_keys, unused.held_keys, unused.held), (0, 0, 0), "{algorithm:?}");
    }
}

#[test]
fn overlapping_settlements_leave_the_limit_full() {
    let quota = Quota::per_second(10);
    assert_overlapping_holds_charge_nothing(Gcra::new(quota), 10);
    assert_overlapping_holds_charge_nothing(TokenBucket::new(quota), 10);
    assert_overlapping_holds_charge_nothing(LeakyBucket::new(quota), 10);
    assert_overlapping_holds_charge_nothing(FixedWindow::new(quota), 10);
    assert_overlapping_holds_charge_nothing(FixedWindow::new(quota).aligned_to_clock(), 10);
    assert_overlapping_holds_charge_nothing(SlidingWindow::new(quota), 10);
    assert_overlapping_holds_charge_nothing(SlidingWindow::new(quota).weighted(), 10);
    assert_overlapping_holds_charge_nothing(SlidingLog::new(quota), 10);
}

/// A queue allows a hold only if the queue is empty, and schedules no other start now while a cost is held.
#[test]
fn leaky_queue_holds_for_one_request_at_a_time() {
    let traffic = Traffic::new(LeakyQueue::new(Quota::per_second(10)).max_waiting(9), 0);
    let held = traffic.hold(1).expect("the queue is empty");
    assert!(traffic.hold(1).is_none());
    assert_eq!(traffic.limiter.check("key", AcquireOptions::default()).delay(), Duration::from_millis(100));
    ready(held.release());
    assert!(traffic.hold(1).is_none(), "a later start is scheduled");
    traffic.clock.advance(Duration::from_millis(200));
    assert!(traffic.hold(1).is_some());
}
