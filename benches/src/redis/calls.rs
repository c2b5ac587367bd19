//! The time that the server spends on a script call with the maximum number of decisions.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use serde_json::json;
use tokio::runtime::Runtime;
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{
    AcquireOptions, FixedWindow, Gcra, LeakyQueue, Limit, Limiter, ManualClock, Quota, Redis, SlidingLog, SlidingWindow,
};

use crate::harness::{Harness, median};
use crate::server::Server;

const KEYS: u64 = 1024;
const QUOTA: Quota = Quota::per_minute(1_000_000);

pub(super) fn run(harness: &Harness, runtime: &Runtime, server: &Server) {
    if !harness.wants("redis call") {
        return;
    }
    let window = |blocks| SlidingWindow::new(QUOTA).blocks(blocks);
    let (bucket, log) = (Gcra::new(QUOTA), SlidingLog::new(Quota::per_minute(1000)));
    let three = (Limit::new("a", bucket), Limit::new("b", window(10)), Limit::new("c", log));
    let calls = [
        ("bucket", measure(runtime, server, "b", bucket)),
        ("leaky_queue", measure(runtime, server, "q", LeakyQueue::new(QUOTA))),
        ("fixed_window", measure(runtime, server, "f", FixedWindow::new(QUOTA))),
        ("sliding_window_1", measure(runtime, server, "w1", window(1))),
        ("sliding_window_10", measure(runtime, server, "w10", window(10))),
        ("sliding_window_60", measure(runtime, server, "w60", window(60))),
        ("sliding_log", measure(runtime, server, "l", log)),
        ("bucket_window_10_log", measure(runtime, server, "t", three)),
    ];
    let of = |pick: fn(&Call) -> f64| calls.iter().map(|(name, call)| (*name, pick(call))).collect::<Vec<_>>();
    harness.report("redis call", json!({ "keys": KEYS }), "us", &of(|call| call.micros));
    harness.report("redis call", json!({ "keys": KEYS }), "decisions", &of(|call| call.decisions));
}

struct Call {
    micros: f64,
    decisions: f64,
}

fn measure(runtime: &Runtime, server: &Server, name: &str, limits: impl IntoRedisLimits<u64>) -> Call {
    const ROUNDS: u64 = 10;
    server.command(&["FLUSHALL"]);
    let clock = ManualClock::new();
    let limiter = Redis::builder(server.open(), name, limits)
        .deadline(Duration::from_secs(5))
        .clock_for_tests(clock.clone())
        .build()
        .expect("limits");
    let limiter = Arc::new(limiter);
    let round = || {
        clock.advance(Duration::from_secs(1));
        runtime.block_on(decide_all_keys(&limiter));
    };
    // Fill every block of the windows.
    (0..61).for_each(|_| round());
    server.command(&["CONFIG", "SET", "slowlog-max-len", "100000"]);
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    server.command(&["SLOWLOG", "RESET"]);
    (0..ROUNDS).for_each(|_| round());
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
    let micros = script_micros(server);
    Call { decisions: (ROUNDS * KEYS) as f64 / micros.len() as f64, micros: median(micros) }
}

async fn decide_all_keys(limiter: &Arc<Redis<u64>>) {
    let tasks: Vec<_> = (0..KEYS)
        .map(|key| {
            let limiter = Arc::clone(limiter);
            tokio::spawn(async move { limiter.acquire(&key, AcquireOptions::default()).await.expect("a decision") })
        })
        .collect();
    for task in tasks {
        drop(task.await.expect("a task"));
    }
}

/// Returns the times of the script calls in the slow log.
pub(super) fn script_micros(server: &Server) -> Vec<f64> {
    let entries: Vec<Value> =
        redis::cmd("SLOWLOG").arg("GET").arg(100_000).query(&mut server.connect()).expect("the slow log");
    let micros = |entry| {
        let Value::Array(entry) = entry else { return None };
        let (Value::Int(micros), Value::Array(command)) = (entry.get(2)?, entry.get(3)?) else { return None };
        let Value::BulkString(name) = command.first()? else { return None };
        name.starts_with(b"EVAL").then_some(*micros as f64)
    };
    entries.into_iter().filter_map(micros).collect()
}
