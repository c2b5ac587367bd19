//! What holds cost: how much of a quota is kept where costs are estimated, and how seldom a success is denied where only
//! failures count.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Acquisition, Held};
use tower_ratelimit::{
    AcquireOptions, Clock, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limiter, ManualClock, Memory, Quota, SlidingLog,
    SlidingWindow, TokenBucket,
};

use crate::harness::ready;
use crate::span::micros;

/// Streams or requests under way at one limit, in virtual time.
struct Traffic<A: Algorithm> {
    limiter: Memory<A, ManualClock>,
    clock: ManualClock,
    /// When each one ends, and its guard.
    ends: BinaryHeap<(Reverse<u64>, usize)>,
    guards: Vec<Option<Held>>,
    /// What each one is settled for.
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
        let Acquisition::Ready(outcome) = self.limiter.hold("key", AcquireOptions::cost(cost)) else {
            panic!("memory answers at once")
        };
        outcome.expect("memory never fails").held
    }

    /// Begins one that lasts for so long. False if it is denied.
    fn begin(&mut self, cost: u64, lasts: Duration) -> bool {
        let Some(held) = self.hold(cost) else { return false };
        self.ends.push((Reverse(self.now() + micros(lasts)), self.guards.len()));
        self.guards.push(Some(held));
        true
    }

    /// Moves the clock, and settles each one that ends until then at its end.
    fn pass(&mut self, span: Duration) {
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

/// 1000 tokens a minute, a burst of as many; each stream of 20 seconds is estimated at 100 tokens and takes 30. Somebody always
/// wants another one.
#[test]
fn llm_reservations_keep_75_percent() {
    const RATE: u64 = 1000;
    let mut streams = Traffic::new(TokenBucket::new(Quota::per_minute(RATE)), 30);
    let mut begun_in = |minutes: u64| {
        let mut begun = 0;
        for _ in 0..minutes * 60 * 100 {
            while streams.begin(100, Duration::from_secs(20)) {
                begun += 1;
            }
            streams.pass(Duration::from_millis(10));
        }
        begun
    };
    // What was saved up is no part of it.
    begun_in(10);
    let kept = 30 * begun_in(120);
    let share = kept * 100 / (RATE * 120);
    println!("{share} % of the quota are kept");
    assert!((75..=100).contains(&share), "{share} %");
}

/// Numbers as good as random (splitmix64), the same in each run.
fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    })
}

/// One a second and a burst of ten; requests of 300 milliseconds, five a second, all of which succeed: each holds one, and
/// releases it at its end.
fn denied_successes(gaps: impl Iterator<Item = Duration>) -> usize {
    let mut requests = Traffic::new(Gcra::new(Quota::per_second(1)).burst(10), 0);
    let mut denied = 0;
    for gap in gaps {
        requests.pass(gap);
        denied += usize::from(!requests.begin(1, Duration::from_millis(300)));
    }
    requests.pass(Duration::from_secs(1));
    assert_eq!(requests.remaining(), Some(10), "no success was charged");
    denied
}

#[test]
fn only_failures_at_five_times_the_limit() {
    const REQUESTS: usize = 20_000;
    let evenly = std::iter::repeat_n(Duration::from_millis(200), REQUESTS);
    assert_eq!(denied_successes(evenly), 0);
    // From nothing to 400 milliseconds between two.
    let unevenly = numbers(1).map(|number| Duration::from_micros(number % 400_000)).take(REQUESTS);
    assert!(denied_successes(unevenly) <= REQUESTS / 2000);
}

/// Two holds that overlap, and are released in either order, leave the limit as full as it was.
fn overlapping<A: Algorithm + Copy>(algorithm: A, limit: u64) {
    for first_goes_first in [true, false] {
        let traffic = Traffic::new(algorithm, 0);
        let first = traffic.hold(1).expect("it is the first");
        traffic.clock.advance(Duration::from_millis(100));
        let second = traffic.hold(1).expect("there is room");
        assert_eq!(traffic.remaining(), Some(limit - 2), "{algorithm:?}");
        traffic.clock.advance(Duration::from_millis(100));
        let [one, other] = if first_goes_first { [first, second] } else { [second, first] };
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
    overlapping(Gcra::new(quota), 10);
    overlapping(TokenBucket::new(quota), 10);
    overlapping(LeakyBucket::new(quota), 10);
    overlapping(FixedWindow::new(quota), 10);
    overlapping(FixedWindow::new(quota).aligned_to_clock(), 10);
    overlapping(SlidingWindow::new(quota), 10);
    overlapping(SlidingWindow::new(quota).weighted(), 10);
    overlapping(SlidingLog::new(quota), 10);
}

/// A queue starts a hold when nobody is before it: while one is held, it is no other's turn.
#[test]
fn a_queue_holds_for_one_at_a_time() {
    let traffic = Traffic::new(LeakyQueue::new(Quota::per_second(10)).max_waiting(9), 0);
    let held = traffic.hold(1).expect("nobody is before it");
    assert!(traffic.hold(1).is_none());
    assert_eq!(traffic.limiter.check("key", AcquireOptions::default()).delay(), Duration::from_millis(100));
    ready(held.release());
    assert!(traffic.hold(1).is_none(), "somebody waits for a turn that was promised");
    traffic.clock.advance(Duration::from_millis(200));
    assert!(traffic.hold(1).is_some());
}
