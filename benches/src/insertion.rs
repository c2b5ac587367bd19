//! A million new keys: the time for each, the worst of them, and the memory that they take.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::time::Instant;

use governor::RateLimiter;
use serde_json::json;
use tower_ratelimit::{Ask, Gcra, Memory, Quota};

use crate::harness::{Harness, median};

pub(crate) fn run(harness: &mut Harness) {
    let count = if harness.is_quick() { 200_000_u64 } else { 1_000_000 };
    insert(
        harness,
        "insertion u64",
        &(0..count).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect::<Vec<_>>(),
    );
    insert(harness, "insertion string", &(0..count).map(|key| format!("customer-{key:011}")).collect::<Vec<_>>());
}

/// What inserting all keys took.
#[derive(Clone, Copy)]
struct Cost {
    nanos: f64,
    worst_micros: f64,
    bytes: f64,
}

fn insert<K: Hash + Eq + Clone>(harness: &Harness, scenario: &str, keys: &[K]) {
    if !harness.wants(scenario) {
        return;
    }
    let rounds = if harness.is_quick() { 1 } else { 5 };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(measure(keys, || {
            let limiter = Memory::builder(Gcra::new(Quota::per_hour(1_000))).max_keys(keys.len()).build();
            let limiter = limiter.expect("a limiter");
            move |key: &K| {
                limiter.decide(key, Ask::default());
            }
        }));
        theirs.push(measure(keys, || {
            let limiter = RateLimiter::keyed(governor::Quota::per_hour(NonZeroU32::new(1_000).expect("a limit")));
            move |key: &K| {
                let _ = limiter.check_key(key);
            }
        }));
    }
    for (unit, figure) in [
        ("ns", (|cost| cost.nanos) as fn(Cost) -> f64),
        ("worst_us", |cost| cost.worst_micros),
        ("bytes_a_key", |cost| cost.bytes),
    ] {
        let of = |costs: &[Cost]| median(costs.iter().map(|&cost| figure(cost)).collect());
        harness.report(scenario, json!({ "threads": 1 }), unit, &[("ours", of(&ours)), ("governor", of(&theirs))]);
    }
}

fn measure<K, I: FnMut(&K)>(keys: &[K], limiter: impl FnOnce() -> I) -> Cost {
    let before = resident_bytes();
    let mut insert = limiter();
    let mut worst = 0_u128;
    let started = Instant::now();
    let mut last = started;
    for key in keys {
        insert(key);
        let now = Instant::now();
        worst = worst.max(now.duration_since(last).as_nanos());
        last = now;
    }
    let nanos = last.duration_since(started).as_secs_f64() * 1e9 / keys.len() as f64;
    let bytes = (resident_bytes() - before) / keys.len() as f64;
    Cost { nanos, worst_micros: worst as f64 / 1e3, bytes }
}

/// What this process has in memory. Zero where the system does not tell as Linux does.
fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or(0.0);
    pages * 4096.0
}
