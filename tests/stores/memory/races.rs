//! Two threads that race for one key, one slot, one hold or one cached denial. Each result must be that of some
//! sequential order of the calls.
//!
//! The races are small, because Miri repeats each of them with many seeds (`scripts/sanitizers`). A seed chooses the
//! order of the threads, and which stores a load may miss: x86 processors return fewer old values than Rust allows.

use std::marker::PhantomData;
use std::sync::Mutex;
use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Counters, CountersEdit, HitLog, HitLogEdit, State, Step};
use tower_ratelimit::limiter::{DeniedCache, Held, Outcome};
use tower_ratelimit::{
    AcquireOptions, Detail, DynLimit, FixedWindow, Gcra, InFlight, LazySnapshot, LeakyBucket, LeakyQueue, Limit,
    LimitSnapshot, LimitStatus, Limiter, ManualClock, Memory, Quota, SlidingLog, SlidingWindow, Timestamp, TokenBucket,
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
fn race_for_one_key_of_a_bucket_admits_its_limit() {
    race_for_one_key(Gcra::new(hourly(3)));
    race_for_one_key(TokenBucket::new(hourly(3)));
    race_for_one_key(LeakyBucket::new(hourly(3)));
    race_for_one_key(LeakyQueue::new(hourly(3)).max_waiting(2));
}

#[test]
fn race_for_one_key_of_a_fixed_window_admits_its_limit() {
    race_for_one_key(FixedWindow::new(hourly(3)));
}

#[test]
fn race_for_one_key_of_a_sliding_window_admits_its_limit() {
    race_for_one_key(SlidingWindow::new(hourly(3)).blocks(2));
    race_for_one_key(SlidingWindow::new(hourly(3)).blocks(1).weighted());
}

#[test]
fn race_for_one_key_of_a_sliding_log_admits_its_limit() {
    race_for_one_key(SlidingLog::new(hourly(3)));
}

/// Counts requests in a state with two equal words, and panics if it reads two words of different states.
#[derive(Debug)]
struct Counting<S>(PhantomData<fn() -> S>);

trait Pair: State + std::fmt::Debug {
    fn words(&self) -> [u64; 2];
    fn with(count: u64) -> Self::Next;

    fn count(&self) -> u64 {
        let [count, copy] = self.words();
        assert_eq!(count, copy, "a torn state");
        count
    }
}

impl Pair for [u64; 3] {
    fn words(&self) -> [u64; 2] {
        [self[1], self[2]]
    }

    fn with(count: u64) -> Self {
        [u64::MAX, count, count]
    }
}

impl Pair for Counters {
    fn words(&self) -> [u64; 2] {
        [self[1], self[2]]
    }

    fn with(count: u64) -> CountersEdit {
        CountersEdit::new([u64::MAX, count, count, 0], |state, words| state[..3].copy_from_slice(&words[..3]))
    }
}

impl Pair for HitLog {
    fn words(&self) -> [u64; 2] {
        self.hits().front().map_or([0; 2], |&(time, weight)| [time, weight])
    }

    fn with(count: u64) -> HitLogEdit {
        HitLogEdit::new(1, (count, count), 1, 0, u64::MAX)
    }
}

impl<S: Pair> Algorithm for Counting<S> {
    type State = S;

    fn decide(&self, state: &S, _now: Timestamp, _options: ChargeOptions) -> Step<S> {
        Step::Allow { next: S::with(state.count() + 1), delay: 0 }
    }

    fn snapshot(&self, state: &S, _now: Timestamp) -> LazySnapshot {
        LimitSnapshot::new(100, None).with_remaining(100 - state.count()).into()
    }

    fn counter_words(&self) -> usize {
        3
    }

    fn max_reset(&self) -> Duration {
        Duration::MAX
    }
}

fn race_of_a_reader<S: Pair>() {
    for _ in 0..ROUNDS {
        let limiter = Memory::builder(Counting::<S>(PhantomData)).max_keys(1).clock(ManualClock::new());
        let limiter = limiter.build().expect("a limiter");
        assert_eq!(count_allowed(&limiter, "key", 1), 1);
        let read = || {
            let seen = [(); 3].map(|()| remaining(&limiter, "key").expect("one limit"));
            assert!(seen.is_sorted_by(|earlier, later| earlier >= later), "{seen:?}");
            count_allowed(&limiter, "key", 1)
        };
        assert_eq!(race(read, || count_allowed(&limiter, "key", 3)), 4);
        assert_eq!(remaining(&limiter, "key"), Some(95));
    }
}

#[test]
fn reader_of_a_state_that_is_written_sees_one_state() {
    race_of_a_reader::<[u64; 3]>();
    race_of_a_reader::<Counters>();
    race_of_a_reader::<HitLog>();
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
fn race_under_two_limits_charges_all_or_none() {
    for _ in 0..ROUNDS {
        let limits = (
            Limit::new("user", SlidingLog::new(hourly(2))).keyed_by(|user: &u64| *user),
            Limit::new("all", Gcra::new(hourly(3))).keyed_by(|_: &u64| ()),
        );
        let limiter = Memory::builder(limits).max_keys(4).clock(ManualClock::new()).build().expect("a limiter");
        let of = |user: u64| move |limiter| count_allowed(limiter, &user, 2);
        assert_eq!(race(|| of(1)(&limiter), || of(2)(&limiter)), 3);
        let left = [1, 2].map(|user: u64| {
            let decision = limiter.check(&user, AcquireOptions::cost(0).detail(Detail::All));
            decision.limits().iter().map(LimitStatus::remaining).collect::<Vec<_>>()
        });
        assert_eq!((left[0][0] + left[1][0], left[0][1], left[1][1]), (1, 0, 0), "{left:?}");
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

/// The table of the replaced limit is taken over while the other thread charges it.
#[test]
fn race_of_a_replacement_and_a_charge_loses_no_charge() {
    let limit = |most| vec![DynLimit::<str>::new(Limit::new("limit", FixedWindow::new(hourly(most))))];
    for _ in 0..ROUNDS {
        let limiter = Memory::builder(limit(1)).max_keys(1).clock(ManualClock::new()).build().expect("a limiter");
        let replace = || {
            limiter.replace(limit(3)).expect("valid limits");
            count_allowed(&limiter, "key", 1)
        };
        let charged = race(replace, || count_allowed(&limiter, "key", 2));
        assert_eq!(remaining(&limiter, "key"), Some(3 - charged));
    }
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
