//! Paths of a decision in memory beside the plain one: blocks, holds, shadows, several limits, limits of unknown types.
//!
//! The first contestant of each scenario is the path, and the second one is the plain decision or the peer.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tower_ratelimit::limiter::{LimiterFuture, Outcome};
use tower_ratelimit::{
    AcquireOptions, Costs, DynLimit, Gcra, InFlight, Limit, Limiter, ManualClock, Memory, Quota, ReservationId,
    TokenBucket,
};

use crate::harness::{Contestant, Harness};
use crate::memory::{Contestants, KeySequence, SLOW, decide};

const PLENTY: Gcra = Gcra::new(Quota::per_second(1_000_000)).burst(u32::MAX as u64);

pub(crate) fn run(harness: &Harness) {
    let keys: Vec<u64> = (0..1_000).collect();
    beside_one_key(harness, &keys);
    let one = Memory::<u64, _>::new(PLENTY);
    let shadow = Memory::<u64, _>::new((Limit::new("user", PLENTY), Limit::new("next", PLENTY).shadow()));
    harness.compare("memory shadow", 1, &[decide("ours", &shadow, &keys), decide("without", &one, &keys)]);
    let two = Memory::<u64, _>::new((Limit::new("user", PLENTY), Limit::new("next", PLENTY)));
    harness.compare("memory two limits", 1, &[decide("ours", &two, &keys), decide("one", &one, &keys)]);
    let dynamic = Memory::<u64>::new(vec![DynLimit::new(Limit::new("user", PLENTY))]);
    harness.compare("memory Vec of one limit", 1, &[decide("ours", &dynamic, &keys), decide("typed", &one, &keys)]);
    let dynamic =
        Memory::<u64>::new(vec![DynLimit::new(Limit::new("user", PLENTY)), DynLimit::new(Limit::new("next", PLENTY))]);
    let contestants = [decide("ours", &dynamic, &keys), decide("typed", &two, &keys), decide("one", &one, &keys)];
    harness.compare("memory Vec of two limits", 1, &contestants);
    harness.compare("memory acquire", 1, &[acquire("ours", &one, &keys), decide("check", &one, &keys)]);
    conditions(harness, &keys);
    shares(harness, &keys);
    holds(harness, &keys);
    ids(harness);
    full_tables(harness);
    floods(harness);
    isolated(harness);
}

/// What a limit may have besides an algorithm: a condition, a mark, units that are kept free, a unit of its own.
fn conditions(harness: &Harness, keys: &[u64]) {
    let limit = |name: &'static str| Limit::new(name, PLENTY).keyed_by(|key: &u64| *key);
    let one = Memory::<u64, _>::new(PLENTY);
    let absent = Memory::<u64, _>::new((limit("user"), limit("next").only_if(|key: &u64| *key > 5_000)));
    let applies = Memory::<u64, _>::new((limit("user"), limit("next").only_if(|key: &u64| *key < 5_000)));
    let contestants = [decide("ours", &absent, keys), decide("applies", &applies, keys), decide("without", &one, keys)];
    harness.compare("memory only_if", 1, &contestants);
    let warned = Memory::<u64, _>::new(limit("user").warn_at(0.8));
    harness.compare("memory warn_at", 1, &[decide("ours", &warned, keys), decide("without", &one, keys)]);
    let keeping = Memory::<u64, _>::new(limit("user").keep_free_by(|key: &u64| key % 2 * 10));
    harness.compare("memory keep_free_by", 1, &[decide("ours", &keeping, keys), decide("without", &one, keys)]);
    let units = Memory::<u64, _>::new((limit("user"), limit("tokens").cost_of("tokens")));
    let of_units = each_key("ours", keys, |key| {
        let options = AcquireOptions::from(Costs::from(1).add("tokens", 7));
        black_box(units.check(key, options).is_allowed());
    });
    harness.compare("memory cost_of", 1, &[of_units, decide("without", &one, keys)]);
}

/// Guaranteed shares of one limit. A request within its share is charged to both, and a request above it to one limit.
fn shares(harness: &Harness, keys: &[u64]) {
    let one = Memory::<u64, _>::new(PLENTY);
    let within = Gcra::new(Quota::per_second(400_000)).burst(1 << 30);
    let borrowing = Gcra::new(Quota::per_day(1));
    for (share, scenario) in [(within, "memory share, within"), (borrowing, "memory share, borrowing")] {
        let share = Limit::new("share", share).keyed_by(|key: &u64| *key).guarantee(2);
        let all = Limit::new("all", PLENTY).keyed_by(|_: &u64| ());
        let shared = Memory::<u64, _>::new((share, all));
        harness.compare(scenario, 1, &[decide("ours", &shared, &keys[..2]), decide("without", &one, &keys[..2])]);
    }
}

/// Requests with an id of their own: one that is charged once, the same and its repeat, and a hold that is settled by its id.
fn ids(harness: &Harness) {
    let bucket = || TokenBucket::new(Quota::per_second(1_000_000)).burst(u32::MAX.into());
    let limiters: [Memory<u64, TokenBucket>; 4] = std::array::from_fn(|_| Memory::new(bucket()));
    let [once, repeated, held, check] = &limiters;
    let next = AtomicU64::new(0);
    let new = || next.fetch_add(1, Ordering::Relaxed);
    let charge = |limiter: &Memory<u64, TokenBucket>, number: u64| {
        let (key, id) = (number % 1_000, ReservationId::new(number.to_be_bytes()));
        let options = AcquireOptions::default().once(id, 1, Duration::from_secs(1));
        black_box(limiter.check(&key, options).is_allowed());
    };
    let charged = each_call("ours", || charge(once, new()));
    let twice = each_call("with_a_repeat", || {
        let number = new();
        charge(repeated, number);
        charge(repeated, number);
    });
    let settled = each_call("hold_and_settle", || {
        let number = new();
        let (key, id) = (number % 1_000, ReservationId::new(number.to_be_bytes()));
        let options = AcquireOptions::cost(2).id(id).expires_in(Duration::from_secs(1));
        black_box(ready(held.hold(&key, options)).decision.is_allowed());
        black_box(held.settle(&key, id, 1).try_ready().is_ok());
    });
    let plain = each_call("check", || {
        black_box(check.check(&(new() % 1_000), AcquireOptions::default()).is_allowed());
    });
    harness.compare("memory once", 1, &[charged, twice, settled, plain]);
}

fn each_call<'a>(name: &'static str, call: impl Fn() + Copy + Send + Sync + 'a) -> Contestant<'a> {
    Contestant::new(name, move |_| move |count| (0..count).for_each(|_| call()))
}

/// One key is blocked, or has a held cost, and all others are decided.
fn beside_one_key(harness: &Harness, keys: &[u64]) {
    let limiters = || -> [Memory<u64, Gcra>; 2] { [Memory::new(PLENTY), Memory::new(PLENTY)] };
    let [blocked, without] = limiters();
    drop(blocked.block("default", &u64::MAX, Duration::from_secs(86_400)));
    harness.compare("memory beside a block", 1, &[decide("ours", &blocked, keys), decide("without", &without, keys)]);
    let [held, without] = limiters();
    let hold = ready(held.hold(&u64::MAX, 1));
    harness.compare("memory beside a hold", 1, &[decide("ours", &held, keys), decide("without", &without, keys)]);
    drop(hold);
}

/// A cost that is held and settled, and a request in flight, beside a semaphore for each key.
fn holds(harness: &Harness, keys: &[u64]) {
    let bucket = Memory::<u64, _>::new(TokenBucket::new(Quota::per_second(1_000_000)).burst(u32::MAX.into()));
    let settled = each_key("ours", keys, |key| {
        let held = ready(bucket.hold(key, 2)).held.expect("an allowed request");
        black_box(held.settle(1).try_ready().is_ok());
    });
    harness.compare("memory hold and settle", 1, &[settled, decide("check", &bucket, keys)]);
    let both = Memory::<u64, _>::new((Limit::new("flights", InFlight::new(100)), Limit::new("rate", PLENTY)));
    let beside = each_key("ours", keys, |key| {
        drop(black_box(ready(both.acquire(key, AcquireOptions::default().keep_guard())).held));
    });
    harness.compare("memory in flight beside a rate", 1, &[beside, decide("check", &bucket, keys)]);
    let flights = Memory::<u64, _>::new(InFlight::new(100));
    let semaphores: Mutex<HashMap<u64, Arc<Semaphore>>> = Mutex::default();
    let in_flight = each_key("ours", keys, |key| {
        let outcome = ready(flights.acquire(key, AcquireOptions::default().keep_guard()));
        drop(black_box(outcome.held.expect("an allowed request")));
    });
    let semaphore = each_key("semaphores", keys, |key| {
        let mut map = semaphores.lock().expect("no panic");
        let semaphore = map.entry(*key).or_insert_with(|| Arc::new(Semaphore::new(100)));
        let permit = Arc::clone(semaphore).try_acquire_owned();
        drop(map);
        drop(black_box(permit.expect("a permit")));
    });
    harness.compare("memory in flight", 1, &[in_flight, semaphore]);
}

/// Keys at random in tables that are full: as many as the capacity, and as few as 60 % of it.
fn full_tables(harness: &Harness) {
    for (keys, name) in [(10_000, "10^4"), (100_000, "10^5"), (1_000_000, "10^6")] {
        for percent in [60, 100] {
            let scenario = format!("memory table of {name}, {percent} % full");
            if harness.wants(&scenario) {
                Contestants::new(keys, SLOW).compare_fast(harness, &scenario, &random_keys(keys / 100 * percent));
            }
        }
    }
}

/// New keys in a table whose keys are all live, so that each evicts one: one in a microsecond, and one in two milliseconds.
fn floods(harness: &Harness) {
    for (keys, name) in [(10_000, "10^4"), (1_000_000, "10^6")] {
        let scenario = format!("memory flood of a table of {name}");
        if harness.wants(&scenario) {
            let [fast, slow] = [1, 2_000].map(|micros| flood(keys, Duration::from_micros(micros)));
            harness.compare(&scenario, 1, &[Contestant::new("ours", fast), Contestant::new("one_in_2_ms", slow)]);
        }
    }
}

/// Returns workers on a full table. The clock advances by `step` before each new key.
fn flood(keys: usize, step: Duration) -> impl Fn(usize) -> Box<dyn FnMut(u64) + Send> {
    let clock = ManualClock::new();
    let quota = Gcra::new(Quota::per_day(1)).burst(1_000);
    let limiter: Memory<u64, _> =
        Memory::builder(quota).max_keys(keys).clock(clock.clone()).build().expect("a limiter");
    let next = Arc::new(AtomicU64::new(0));
    let decide = move || {
        let key = next.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        black_box(limiter.check(&key, AcquireOptions::default()).is_allowed());
    };
    (0..keys * 5 / 4).for_each(|_| decide());
    move |_| {
        let (decide, clock) = (decide.clone(), clock.clone());
        Box::new(move |count| {
            for _ in 0..count {
                clock.advance(step);
                decide();
            }
        })
    }
}

/// Decisions that do not overlap with the next one, as in a server that does other work between them.
fn isolated(harness: &Harness) {
    for (count, name) in [(1_000, "1000 keys"), (1_000_000, "10^6 keys")] {
        let scenario = format!("memory isolated, {name}");
        if harness.wants(&scenario) {
            Contestants::new(count, SLOW).compare_isolated(harness, &scenario, &random_keys(count));
        }
    }
}

fn random_keys(count: usize) -> Vec<u64> {
    (0..count as u64).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)).collect()
}

/// Returns the outcome of a limiter in memory.
fn ready(acquired: LimiterFuture<Outcome>) -> Outcome {
    acquired.try_ready().expect("memory decides at once").expect("a decision")
}

/// Runs `decide` on keys in a random order.
fn each_key<'a>(
    name: &'static str,
    keys: &'a [u64],
    decide: impl Fn(&u64) + Copy + Send + Sync + 'a,
) -> Contestant<'a> {
    Contestant::new(name, move |thread| {
        let mut sequence = KeySequence::new(keys.len(), thread);
        move |count| (0..count).for_each(|_| decide(&keys[sequence.next()]))
    })
}

/// Decides by the method that the layer calls.
fn acquire<'a>(name: &'static str, limiter: &'a Memory<u64, Gcra>, keys: &'a [u64]) -> Contestant<'a> {
    each_key(name, keys, |key| {
        black_box(match limiter.acquire(key, AcquireOptions::default()).try_ready() {
            Ok(outcome) => outcome.is_ok_and(|outcome| outcome.decision.is_allowed()),
            Err(_) => false,
        });
    })
}

/// A contestant whose decisions do not overlap: a fence separates them. The contestant `bare` is the fence.
pub(crate) fn separated<'a>(
    keys: &'a [u64],
    name: &'static str,
    decide: impl Fn(&u64) -> bool + Copy + Send + Sync + 'a,
) -> Contestant<'a> {
    each_key(name, keys, move |key| {
        black_box(*key);
        fence(Ordering::SeqCst);
        black_box(decide(key));
        fence(Ordering::SeqCst);
    })
}
