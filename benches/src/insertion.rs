//! Insertion of a million new keys: the mean time, the longest time, and the memory per key.
//!
//! Each measurement runs in its own process, so that memory which an earlier measurement freed does not count.

use std::process::Command;
use std::time::{Duration, Instant};

use governor::RateLimiter;
use serde_json::{Value, json};
use tower_ratelimit::{AcquireOptions, Gcra, Memory, Quota};

use crate::harness::{Harness, median};
use crate::peers::{BenchQuota, Key, governor_quota, now};

/// 1000 per hour.
const QUOTA: BenchQuota = BenchQuota { limit: 1_000, seconds: 3_600, burst: 1_000 };

const TASK_VARIABLE: &str = "TOWER_RATELIMIT_BENCH_INSERT";

const CONTESTANTS: [&str; 4] = ["ours", "governor", "governor_foldhash", "gcra"];

pub(crate) fn run(harness: &mut Harness) {
    let (count, rounds) = if harness.is_quick() { (200_000_u64, 1) } else { (1_000_000, 5) };
    let large = (format!("insertion u64, {} keys", 10 * count), "u64", 10 * count);
    for (scenario, keys, count) in
        [("insertion u64".to_owned(), "u64", count), ("insertion string".to_owned(), "string", count), large]
    {
        if !harness.wants(&scenario) {
            continue;
        }
        let rounds = if count > 1_000_000 { 1 } else { rounds };
        let mut measured = CONTESTANTS.map(|_| Vec::new());
        for _ in 0..rounds {
            for (name, measured) in CONTESTANTS.iter().zip(&mut measured) {
                measured.push(measure_in_child(name, keys, count));
            }
        }
        let values = |unit: &str| -> Vec<(&str, f64)> {
            let of =
                |costs: &Vec<Value>| median(costs.iter().map(|cost| cost[unit].as_f64().unwrap_or(f64::NAN)).collect());
            CONTESTANTS.into_iter().zip(measured.iter().map(of)).collect()
        };
        let units = ["ns", "worst_us", "bytes_per_key"].map(|unit| (unit, values(unit)));
        let units: Vec<_> = units.iter().map(|(unit, values)| (*unit, &**values)).collect();
        harness.report_all(&scenario, &json!({ "threads": 1 }), &units);
    }
    let scenario = "insertion in 61 limiters";
    if harness.wants(scenario) {
        let cost = measure_in_child("ours", "limiters", 61);
        let megabytes = cost["megabytes"].as_f64().unwrap_or(f64::NAN);
        harness.report(scenario, json!({ "threads": 1 }), "megabytes", &[("ours", megabytes)]);
    }
}

/// Returns the resident memory of limiters with the default capacity and few keys.
fn few_keys_each(limiters: u64) -> Value {
    let before = resident_bytes();
    let limiters: Vec<Memory<u64, Gcra>> = (0..limiters).map(|_| Memory::new(Gcra::new(Quota::per_hour(1)))).collect();
    for limiter in &limiters {
        assert!((0..10).all(|key| limiter.check(&key, AcquireOptions::default()).is_allowed()));
    }
    json!({ "megabytes": (resident_bytes() - before) / 1e6 })
}

/// Measures one contestant in a child process.
fn measure_in_child(name: &str, keys: &str, count: u64) -> Value {
    let this = std::env::current_exe().expect("this program");
    let output = Command::new(this).env(TASK_VARIABLE, format!("{name} {keys} {count}")).output().expect("a process");
    serde_json::from_slice(&output.stdout).expect("the measurements")
}

/// Measures if this process is such a child process. Returns whether it is.
pub(crate) fn run_as_child() -> bool {
    let Ok(task) = std::env::var(TASK_VARIABLE) else { return false };
    let task: Vec<_> = task.split(' ').collect();
    let &[name, keys, count] = &*task else { panic!("{TASK_VARIABLE}: expected CONTESTANT KEYS COUNT") };
    let count = count.parse().expect("a number");
    let cost = if keys == "limiters" {
        few_keys_each(count)
    } else if keys == "u64" {
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
            let limit = Quota::new(QUOTA.limit, Duration::from_secs(QUOTA.seconds));
            let limiter = Memory::builder(Gcra::new(limit)).max_keys(keys.len()).build().expect("a limiter");
            move |key: &K| limiter.check(key, AcquireOptions::default()).is_allowed()
        }),
        "governor" => measure(keys, || {
            let limiter = RateLimiter::keyed(governor_quota(QUOTA));
            move |key: &K| limiter.check_key(key).is_ok()
        }),
        "governor_foldhash" => measure(keys, || {
            let hasher = foldhash::quality::RandomState::default();
            let limiter = RateLimiter::dashmap_with_hasher(governor_quota(QUOTA), hasher);
            move |key: &K| limiter.check_key(key).is_ok()
        }),
        "gcra" => measure(keys, || {
            let limit = gcra::RateLimit::new(QUOTA.burst, Duration::from_secs(QUOTA.seconds));
            // No reserved capacity: a server does not know its number of keys in advance.
            let limiter = gcra::RateLimiter::new(0);
            move |key: &K| now(limiter.check(key.clone(), &limit, 1)).is_ok()
        }),
        other => panic!("unknown contestant {other}"),
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
        "bytes_per_key": (resident_bytes() - before) / count,
    })
}

/// Returns the resident memory of this process, or zero on systems without `/proc/self/statm`.
fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or(0.0);
    pages * 4096.0
}
