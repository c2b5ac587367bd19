//! Decisions in Redis: ours beside a plain script on one multiplexed connection, and beside PING, which decides nothing.
//!
//! One client thread, so many tasks that each ask again as soon as they are answered. The server's processor time is what it
//! tells itself.

mod calls;
mod cluster;
mod contenders;
mod server;
mod sizes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::runtime::Runtime;

use self::contenders::{Contender, Keys};
use self::server::Server;
use crate::harness::{Harness, median};

pub(crate) fn run(harness: &Harness) {
    let scenarios: [(&str, usize, Keys, &[Make]); 10] = [
        (
            "redis alone 1",
            1,
            Keys::Hot,
            &[contenders::gcra, contenders::same_script, contenders::plain, contenders::one_line, contenders::ping],
        ),
        ("redis alone 1 three limits", 1, Keys::Hot, &[contenders::three_limits, contenders::gcra]),
        (
            "redis spread 64",
            64,
            Keys::Spread,
            &[contenders::gcra, contenders::plain, contenders::cell, contenders::ping],
        ),
        ("redis spread 64 fixed window", 64, Keys::Spread, &[contenders::fixed_window, contenders::plain_window]),
        (
            "redis spread 512",
            512,
            Keys::Spread,
            &[contenders::gcra, contenders::plain, contenders::cell, contenders::ping],
        ),
        ("redis hot 512", 512, Keys::Hot, &[contenders::gcra, contenders::plain, contenders::cell]),
        ("redis refused 512", 512, Keys::Spread, &[contenders::refused, contenders::refused_in_memory]),
        ("redis spread 512 three limits", 512, Keys::Spread, &[contenders::three_limits, contenders::gcra]),
        ("redis spread 512 sliding log", 512, Keys::Spread, &[contenders::sliding_log, contenders::gcra]),
        ("redis spread 512 sliding window", 512, Keys::Spread, &[contenders::sliding_window, contenders::gcra]),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    if scenarios.iter().any(|(scenario, ..)| harness.wants(scenario))
        || harness.wants("redis bytes")
        || harness.wants("redis call")
    {
        let server = Server::start();
        for (scenario, tasks, keys, makers) in scenarios {
            if harness.wants(scenario) {
                let contenders: Vec<_> = makers.iter().filter_map(|make| make(&server, &runtime)).collect();
                compare(harness, &runtime, scenario, tasks, keys, &contenders, &|_| server.cpu());
            }
        }
        sizes::run(harness, &runtime, &server);
        calls::run(harness, &runtime, &server);
    }
    cluster::run(harness, &runtime);
}

type Make = fn(&Server, &Runtime) -> Option<Contender>;

/// Lets all ask in turn. `cpu` is the processor time that the servers of a contender have used.
fn compare(
    harness: &Harness,
    runtime: &Runtime,
    scenario: &str,
    tasks: usize,
    keys: Keys,
    contenders: &[Contender],
    cpu: &dyn Fn(usize) -> f64,
) {
    let rounds = if harness.is_quick() { 3 } else { 7 };
    let span = Duration::from_millis(if harness.is_quick() { 250 } else { 1_000 });
    let mut rates = vec![Vec::new(); contenders.len()];
    let mut costs = vec![Vec::new(); contenders.len()];
    for contender in contenders {
        runtime.block_on(round(contender, tasks, keys, span / 4));
    }
    for _ in 0..rounds {
        for (index, contender) in contenders.iter().enumerate() {
            let before = cpu(index);
            let (decisions, seconds) = runtime.block_on(round(contender, tasks, keys, span));
            rates[index].push(decisions / seconds);
            costs[index].push((cpu(index) - before) * 1e6 / decisions);
        }
    }
    let names: Vec<_> = contenders.iter().map(|contender| contender.name).collect();
    let medians = |figures: Vec<Vec<f64>>| -> Vec<(&'static str, f64)> {
        names.iter().copied().zip(figures.into_iter().map(median)).collect()
    };
    harness.report_two(
        scenario,
        json!({ "tasks": tasks }),
        [("per_second", &medians(rates)), ("redis_cpu_us", &medians(costs))],
    );
}

/// Lets all tasks ask until the time is over. Returns the decisions made, and the seconds.
async fn round(contender: &Contender, tasks: usize, keys: Keys, span: Duration) -> (f64, f64) {
    let over = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let workers: Vec<_> = (0..tasks)
        .map(|task| {
            let (over, done, ask) = (Arc::clone(&over), Arc::clone(&done), Arc::clone(&contender.ask));
            tokio::spawn(async move {
                let mut key = task as u64;
                while !over.load(Ordering::Relaxed) {
                    // A walk through all keys that looks random.
                    key = key.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    ask(keys.pick(key >> 33)).await;
                    // What is ready at once must let the others, and the clock, have their turn.
                    if done.fetch_add(1, Ordering::Relaxed) % 64 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(span).await;
    over.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.expect("a worker");
    }
    (done.load(Ordering::Relaxed) as f64, started.elapsed().as_secs_f64())
}
