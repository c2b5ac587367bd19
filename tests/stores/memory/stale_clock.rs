//! Threads that are descheduled after they have read the clock: a late thread must not take the states that others have
//! written meanwhile for those of a clock that stepped back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock, DynLimit, FixedWindow, Limit, Quota, SlidingLog, SlidingWindow, Timestamp,
    TokenBucket, per_key,
};

use crate::immediate::{acquire, boxed_limits, hold, memory, peek};

const TWO: Quota = Quota::per_second(2);

/// Returns these times, and then the last one again and again.
#[derive(Clone, Default)]
struct ReadingsClock(Arc<Mutex<VecDeque<u64>>>);

impl ReadingsClock {
    /// Sets the next times, in seconds.
    fn set(&self, seconds: &[u64]) {
        *self.0.lock().expect("no panic") = seconds.iter().copied().collect();
    }
}

impl Clock for ReadingsClock {
    fn now(&self) -> Timestamp {
        let mut readings = self.0.lock().expect("no panic");
        let seconds = if readings.len() > 1 { readings.pop_front() } else { readings.front().copied() };
        Timestamp::from_micros(seconds.expect("a time") * 1_000_000)
    }
}

/// Limiters of two requests per second: with one limit, with one that is chosen by the key, and with several.
fn limiters(clock: &ReadingsClock) -> [BoxLimiter<str>; 7] {
    macro_rules! limiters {
        ($($limits:expr),+ $(,)?) => {
            [$(boxed_limits($limits, clock)),+]
        };
    }
    let slow = || Limit::new("slow", FixedWindow::new(Quota::per_hour(100)));
    limiters![
        FixedWindow::new(TWO),
        TokenBucket::new(TWO),
        SlidingLog::new(TWO),
        SlidingWindow::new(TWO),
        per_key(|_: &str| FixedWindow::new(TWO)),
        (Limit::new("fast", FixedWindow::new(TWO)), slow()),
        vec![DynLimit::new(slow()), DynLimit::new(Limit::new("fast", TokenBucket::new(TWO)))],
    ]
}

/// The late thread has read the clock at 10 s, and decides after another one has charged at 20 s.
#[test]
fn late_decision_counts_charges_of_a_later_time() {
    let clock = ReadingsClock::default();
    for (index, limiter) in limiters(&clock).into_iter().enumerate() {
        clock.set(&[20]);
        assert!(acquire(&limiter, "alice", AcquireOptions::cost(2)).decision.is_allowed());
        // The limiter reads the clock again under the lock.
        for options in [AcquireOptions::default(), AcquireOptions::default().hold()] {
            clock.set(&[10, 20]);
            let late = acquire(&limiter, "alice", options).decision;
            assert!(!late.is_allowed(), "limiter {index}");
            assert_eq!(late.decided_at(), Timestamp::from_micros(20_000_000), "limiter {index}");
        }
        clock.set(&[10, 20]);
        assert!(!peek(&limiter, "alice", 1).is_allowed(), "limiter {index}");
    }
}

/// The late thread settles at 10 s, after another one has charged at 20 s.
#[test]
fn late_settlement_keeps_charges_of_a_later_time() {
    let clock = ReadingsClock::default();
    for (index, limiter) in limiters(&clock).into_iter().enumerate() {
        clock.set(&[10]);
        let held = hold(&limiter, "alice", 1);
        clock.set(&[20]);
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).decision.is_allowed());
        clock.set(&[10, 20]);
        held.settle(1).try_ready().expect("ready").expect("settled");
        clock.set(&[20]);
        assert!(!peek(&limiter, "alice", 1).is_allowed(), "limiter {index}");
    }
}

/// A thread that is late by less than the time in which all usage ends decides by the time that it has read.
#[test]
fn slightly_late_settlement_is_charged_at_its_own_time() {
    let clock = ReadingsClock::default();
    let hour = FixedWindow::new(Quota::per_hour(2));
    let limiter = memory(hour, &clock);
    clock.set(&[10]);
    let held = hold(&limiter, "alice", 1);
    clock.set(&[20]);
    assert!(limiter.check("alice", 1).is_allowed());
    clock.set(&[10, 20]);
    held.settle(1).try_ready().expect("ready").expect("settled");
    clock.set(&[20]);
    assert_eq!(peek(&limiter, "alice", 1).retry_after(), Some(Duration::from_secs(3600)));
}
