//! A million new keys: the time for each, the worst of them, and the memory that they take.
//!
//! Each measurement is one of a process of its own: so that its memory is what it had to take, and not what another one
//! had left behind.

use std::process::Command;
use std::time::{Duration, Instant};

use governor::RateLimiter;
use serde_json::{Value, json};
use tower_ratelimit::{AcquireOptions, Gcra, Memory, Quota};

use crate::harness::{Harness, median};
use crate::peers::{Key, Terms, governor_quota, now};

/// A thousand an hour.
const TERMS: Terms = Terms { limit: 1_000, seconds: 3_600, burst: 1_000 };

const ORDER: &str = "TOWER_RATELIMIT_BENCH_INSERT";

const CONTENDERS: [&str; 3] = ["ours", "governor", "gcra"];

pub(crate) fn run(harness: &mut Harness) {
    let (count, rounds) = if harness.is_quick() { (200_000_u64, 1) } else { (1_000_000, 5) };
    for keys in ["u64", "string"] {
        let scenario = format!("insertion {keys}");
        if !harness.wants(&scenario) {
            continue;
        }
        let mut measured = CONTENDERS.map(|_| Vec::new());
        for _ in 0..rounds {
            for (name, measured) in CONTENDERS.iter().zip(&mut measured) {
                measured.push(elsewhere(name, keys, count));
            }
        }
        let figures = |unit: &str| -> Vec<(&str, f64)> {
            let of =
                |costs: &Vec<Value>| median(costs.iter().map(|cost| cost[unit].as_f64().unwrap_or(f64::NAN)).collect());
            CONTENDERS.into_iter().zip(measured.iter().map(of)).collect()
        };
        let units = ["ns", "worst_us", "bytes_a_key"].map(|unit| (unit, figures(unit)));
        let units: Vec<_> = units.iter().map(|(unit, figures)| (*unit, &**figures)).collect();
        harness.report_all(&scenario, &json!({ "threads": 1 }), &units);
    }
}

/// What it costs in another process.
fn elsewhere(name: &str, keys: &str, count: u64) -> Value {
    let this = std::env::current_exe().expect("this program");
    let output = Command::new(this).env(ORDER, format!("{name} {keys} {count}")).output().expect("a process");
    serde_json::from_slice(&output.stdout).expect("what it measured")
}

/// Measures, if this is a process that was started for that.
pub(crate) fn is_asked_of_this_process() -> bool {
    let Ok(order) = std::env::var(ORDER) else { return false };
    let order: Vec<_> = order.split(' ').collect();
    let &[name, keys, count] = &*order else { panic!("a contender, a kind of keys, a number") };
    let count = count.parse().expect("a number");
    let cost = if keys == "u64" {
        insert(name, &(0..count).map(|key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect::<Vec<_>>())
    } else {
        insert(name, &(0..count).map(|key| format!("customer-{key:011}")).collect::<Vec<_>>())
    };
    println!("{cost}");
    true
}

fn insert<K: Key>(name: &str, keys: &[K]) -> Value {
    match name {
        "ours" => measure(keys, || {
            let limit = Quota::new(TERMS.limit, Duration::from_secs(TERMS.seconds));
            let limiter = Memory::builder(Gcra::new(limit)).max_keys(keys.len()).build().expect("a limiter");
            move |key: &K| limiter.check(key, AcquireOptions::default()).is_allowed()
        }),
        "governor" => measure(keys, || {
            let limiter = RateLimiter::keyed(governor_quota(TERMS));
            move |key: &K| limiter.check_key(key).is_ok()
        }),
        "gcra" => measure(keys, || {
            let limit = gcra::RateLimit::new(TERMS.burst, Duration::from_secs(TERMS.seconds));
            // Without room made beforehand, as it can't know how many there will be.
            let limiter = gcra::RateLimiter::new(0);
            move |key: &K| now(limiter.check(key.clone(), &limit, 1)).is_ok()
        }),
        other => panic!("there is no {other}"),
    }
}

fn measure<K, I: FnMut(&K) -> bool>(keys: &[K], limiter: impl FnOnce() -> I) -> Value {
    let before = resident_bytes();
    let mut insert = limiter();
    let mut worst = Duration::ZERO;
    let started = Instant::now();
    let mut last = started;
    for key in keys {
        assert!(insert(key), "a new key has its burst");
        let now = Instant::now();
        worst = worst.max(now.duration_since(last));
        last = now;
    }
    let count = keys.len() as f64;
    json!({
        "ns": last.duration_since(started).as_secs_f64() * 1e9 / count,
        "worst_us": worst.as_secs_f64() * 1e6,
        "bytes_a_key": (resident_bytes() - before) / count,
    })
}

/// What this process has in memory. Zero where the system does not tell as Linux does.
fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or(0.0);
    pages * 4096.0
}
