//! Two threads that race for one key, one slot, one hold or one cached denial. Each result must be that of some
//! sequential order of the calls.
//!
//! `linearizability` has random histories of many calls. The races are small, because Miri repeats each of them with many
//! seeds (`scripts/sanitizers`). A seed chooses the order of the threads, and which stores a load may miss: x86 processors
//! return fewer old values than Rust allows.

use std::sync::Mutex;
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{DeniedCache, Held, Outcome};
use tower_ratelimit::{
    AcquireOptions, DynLimit, FixedWindow, Gcra, InFlight, Limit, Limiter, ManualClock, Memory, Quota, SlidingLog,
    SlidingWindow,
};

/// The number of races of each kind. Under Miri each seed is another race.
const ROUNDS: usize = if cfg!(miri) { 1 } else { 100 };

/// Runs both closures at the same time, and returns the sum of their results.
fn race(here: impl FnOnce() -> u64, there: impl FnOnce() -> u64 + Send) -> u64 {
    std::thread::scope(|scope| {
        let there = scope.spawn(there);
        here() + there.join().expect("no panic")
    })
}

fn acquire<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, options: AcquireOptions) -> Outcome {
    match limiter.acquire(key, options).try_ready() {
        Ok(outcome) => outcome.expect("the memory store returns no error"),
        Err(_) => unreachable!("the memory store returns ready results"),
    }
}

/// Returns how many of `requests` requests are allowed.
fn count_allowed<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, requests: usize) -> u64 {
    (0..requests).filter(|_| acquire(limiter, key, AcquireOptions::default()).decision.is_allowed()).count() as u64
}

fn hold<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, cost: u64) -> Option<Held> {
    acquire(limiter, key, AcquireOptions::cost(cost).max_delay(Duration::ZERO).hold()).held
}

fn remaining<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> Option<u64> {
    let decision = limiter.peek(key, AcquireOptions::default()).try_ready();
    decision.expect("the memory store returns ready results").expect("the memory store returns no error").remaining()
}

fn hourly(limit: u64) -> Quota {
    Quota::per_hour(limit)
}

/// Both threads insert the key, and then charge it.
fn race_for_one_key(algorithm: impl Algorithm + Copy) {
    for _ in 0..ROUNDS {
        let limiter = Memory::builder(algorithm).max_keys(1).clock(ManualClock::new()).build().expect("a limiter");
        let two = || count_allowed(&limiter, "key", 2);
        assert_eq!(race(two, two), 3, "{algorithm:?}");
        assert_eq!(count_allowed(&limiter, "key", 1), 0, "{algorithm:?}");
    }
}

#[test]
fn race_for_one_key_admits_its_limit() {
    race_for_one_key(Gcra::new(hourly(3)));
    race_for_one_key(FixedWindow::new(hourly(3)));
    race_for_one_key(SlidingWindow::new(hourly(3)).blocks(2));
    race_for_one_key(SlidingLog::new(hourly(3)));
}

/// Idle keys occupy all slots, so both threads take over slots, and may move keys.
#[test]
fn race_for_idle_slots_gives_each_key_its_limit() {
    for round in 0..ROUNDS as u64 {
        let clock = ManualClock::new();
        let limiter = Memory::builder(Gcra::new(hourly(2))).max_keys(3).clock(clock.clone());
        let limiter = limiter.build().expect("a limiter");
        (0..12_u64).for_each(|key| assert_eq!(count_allowed(&limiter, &key, 1), 1));
        clock.advance(Duration::from_secs(7200));
        let [here, there, both] = [100, 101, 102].map(|key| key + 10 * round);
        let of_two = |own| {
            let [first, second] = [own, both].map(|key| count_allowed(&limiter, &key, 1));
            let rest = count_allowed(&limiter, &own, 2);
            assert_eq!(first + rest, 2, "the key of one thread");
            second + count_allowed(&limiter, &both, 1)
        };
        assert_eq!(race(|| of_two(here), || of_two(there)), 2, "the key of both threads");
    }
}

#[test]
fn race_of_a_hold_and_a_charge_admits_the_limit() {
    for _ in 0..ROUNDS {
        let limiter = Memory::builder(FixedWindow::new(hourly(3)))
            .max_keys(1)
            .clock(ManualClock::new())
            .build()
            .expect("a limiter");
        let settled = || {
            hold(&limiter, "key", 2).map_or(0, |held| {
                held.settle(1).try_ready().expect("the memory store returns ready results").expect("no error");
                1
            })
        };
        let charged = race(settled, || count_allowed(&limiter, "key", 2));
        assert!((2..=3).contains(&charged), "{charged} charged");
        assert_eq!(remaining(&limiter, "key"), Some(3 - charged));
        assert_eq!(limiter.usage()[0].held, 0);
    }
}

#[test]
fn race_for_one_request_in_flight_starts_one() {
    for _ in 0..ROUNDS {
        let limiter =
            Memory::builder(InFlight::new(1)).max_keys(1).clock(ManualClock::new()).build().expect("a limiter");
        let guards = Mutex::new(Vec::new());
        let start = || {
            let held = hold(&limiter, "key", 1);
            let started = u64::from(held.is_some());
            guards.lock().expect("no panic").extend(held);
            started
        };
        assert_eq!(race(start, start), 1);
        drop(guards);
        assert_eq!(limiter.usage()[0].held, 0);
    }
}

/// The table of the replaced limit is taken over while the other thread charges it and blocks another key.
#[test]
fn race_of_a_replacement_and_a_charge_loses_no_charge() {
    for _ in 0..ROUNDS {
        let limiter = Memory::builder(listed(1)).max_keys(1).clock(ManualClock::new()).build().expect("a limiter");
        let replace = || {
            limiter.replace(listed(3)).expect("valid limits");
            count_allowed(&limiter, "key", 1)
        };
        let charge_and_block = || {
            let charged = count_allowed(&limiter, "key", 2);
            let blocked = limiter.block("limit", "other", Duration::from_secs(9)).try_ready();
            blocked.expect("the memory store returns ready results").expect("the memory store returns no error");
            charged
        };
        let charged = race(replace, charge_and_block);
        assert_eq!(remaining(&limiter, "key"), Some(3 - charged));
        assert_eq!(count_allowed(&limiter, "other", 1), 0, "the block is kept");
    }
}

/// Both threads add the limit, and charge it.
#[test]
fn race_of_two_replacements_keeps_the_charges_between_them() {
    for _ in 0..ROUNDS {
        let limiter = Memory::builder(Vec::new()).allow_no_limits().max_keys(1).clock(ManualClock::new());
        let limiter = limiter.build().expect("a limiter");
        let replace_and_charge = || {
            limiter.replace(listed(9)).expect("valid limits");
            count_allowed(&limiter, "key", 2)
        };
        let charged = race(replace_and_charge, replace_and_charge);
        assert_eq!((charged, remaining(&limiter, "key")), (4, Some(5)));
    }
}

fn listed(most: u64) -> Vec<DynLimit<str>> {
    vec![DynLimit::new(Limit::new("limit", FixedWindow::new(hourly(most))))]
}

/// A denial that was decided before a reset is not cached after it.
#[test]
fn race_of_a_reset_and_a_denial_caches_no_old_denial() {
    for _ in 0..ROUNDS {
        let clock = ManualClock::new();
        let memory = Memory::builder(FixedWindow::new(hourly(1))).max_keys(1).clock(clock.clone());
        let limiter = DeniedCache::with_clock(memory.build().expect("a limiter"), 1, clock);
        assert_eq!(count_allowed(&limiter, "key", 1), 1);
        let reset = || {
            limiter.reset("key").try_ready().expect("the memory store returns ready results").expect("no error");
            0
        };
        let admitted = race(reset, || count_allowed(&limiter, "key", 2));
        assert_eq!(admitted + count_allowed(&limiter, "key", 1), 1, "the reset allows one request");
    }
}
