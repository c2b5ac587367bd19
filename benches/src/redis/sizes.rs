//! The bytes of a key in Redis, and the bytes of a decision on the wire.

use std::sync::Arc;

use serde_json::json;
use tokio::runtime::Runtime;
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, Limiter, Quota, Redis, SlidingLog, SlidingWindow};

use crate::harness::Harness;
use crate::server::Server;

const KEYS: u64 = 20_000;
const QUOTA: Quota = Quota::per_hour(100);

pub(super) fn run(harness: &Harness, runtime: &Runtime, server: &Server) {
    if !harness.wants("redis bytes") {
        return;
    }
    let sizes = [
        ("bucket", measure(runtime, server, "b", Gcra::new(QUOTA))),
        ("fixed_window", measure(runtime, server, "f", FixedWindow::new(QUOTA))),
        ("sliding_window_10", measure(runtime, server, "w", SlidingWindow::new(QUOTA))),
        ("sliding_log_1_hit", measure(runtime, server, "l", SlidingLog::new(QUOTA))),
    ];
    let of = |pick: fn(&Sizes) -> f64| sizes.iter().map(|(name, sizes)| (*name, pick(sizes))).collect::<Vec<_>>();
    harness.report("redis bytes per key", json!({}), "bytes", &of(|sizes| sizes.key));
    harness.report("redis bytes sent per decision", json!({ "tasks": 512 }), "bytes", &of(|sizes| sizes.sent));
    harness.report("redis bytes received per decision", json!({ "tasks": 512 }), "bytes", &of(|sizes| sizes.received));
}

struct Sizes {
    key: f64,
    sent: f64,
    received: f64,
}

fn measure(runtime: &Runtime, server: &Server, name: &str, limits: impl IntoRedisLimits<u64>) -> Sizes {
    server.command(&["FLUSHALL"]);
    let redis = Redis::builder(server.open(), name, limits)
        .deadline(std::time::Duration::from_secs(5))
        .build()
        .expect("limits");
    let redis = Arc::new(redis);
    let number_of = |name| server.number_of(name) as f64;
    let memory = number_of("used_memory:");
    decide_all_keys(runtime, &redis);
    let key = (number_of("used_memory:") - memory) / KEYS as f64;
    // The second pass reads and updates existing states.
    let wire = || (number_of("total_net_input_bytes:"), number_of("total_net_output_bytes:"));
    let before = wire();
    decide_all_keys(runtime, &redis);
    let after = wire();
    Sizes { key, sent: (after.0 - before.0) / KEYS as f64, received: (after.1 - before.1) / KEYS as f64 }
}

fn decide_all_keys(runtime: &Runtime, redis: &Arc<Redis<u64>>) {
    runtime.block_on(async {
        let tasks: Vec<_> = (0..512)
            .map(|task| {
                let redis = Arc::clone(redis);
                tokio::spawn(async move {
                    for key in (0..KEYS).filter(|key| key % 512 == task) {
                        let _ = redis.acquire(&(1_000_000 + key), AcquireOptions::default()).await.expect("a decision");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a task");
        }
    });
}
