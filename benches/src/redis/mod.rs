//! Decisions in Redis, compared with plain scripts on one multiplexed connection, and with `PING`.
//!
//! One client thread runs the given number of tasks. Each task starts its next decision when it has the previous one.
//! The server's processor time is read from `INFO`.

mod callers;
mod calls;
mod cluster;
mod competitors;
mod hold_ladder;
mod instructions;
mod lease_cost;
mod lease_quota;
mod leases;
mod link;
mod logs;
mod neighbour;
mod open_loop;
mod overload;
mod sizes;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::runtime::Runtime;

use self::competitors::{Contestant, Keys};
use crate::harness::{Harness, median};
use crate::random::Random;
use crate::server::{Server, program};

/// Does the work of a child process of a scenario, if this is one.
pub(crate) fn run_as_child() -> bool {
    instructions::run_as_child() || lease_quota::run_as_child()
}

pub(crate) fn run(harness: &Harness) {
    let scenarios: [(&str, usize, Keys, &[Make]); 10] = [
        (
            "redis alone 1",
            1,
            Keys::Hot,
            &[
                competitors::gcra,
                competitors::same_script,
                competitors::plain,
                competitors::one_line,
                competitors::ping,
            ],
        ),
        ("redis alone 1 three limits", 1, Keys::Hot, &[competitors::three_limits, competitors::gcra]),
        (
            "redis spread 64",
            64,
            Keys::Spread,
            &[competitors::gcra, competitors::plain, competitors::cell, competitors::ping],
        ),
        ("redis spread 64 fixed window", 64, Keys::Spread, &[competitors::fixed_window, competitors::plain_window]),
        (
            "redis spread 512",
            512,
            Keys::Spread,
            &[competitors::gcra, competitors::plain, competitors::cell, competitors::ping],
        ),
        ("redis hot 512", 512, Keys::Hot, &[competitors::gcra, competitors::plain, competitors::cell]),
        ("redis denied 512", 512, Keys::Spread, &[competitors::denied_cache, competitors::denied_in_memory]),
        ("redis spread 512 three limits", 512, Keys::Spread, &[competitors::three_limits, competitors::gcra]),
        ("redis spread 512 sliding log", 512, Keys::Spread, &[competitors::sliding_log, competitors::gcra]),
        ("redis spread 512 sliding window", 512, Keys::Spread, &[competitors::sliding_window, competitors::gcra]),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    if scenarios.iter().any(|(scenario, ..)| harness.wants(scenario))
        || harness.wants("redis bytes")
        || harness.wants("redis call")
        || harness.wants("redis log")
    {
        let server = start_server();
        for (scenario, tasks, keys, makers) in scenarios {
            if harness.wants(scenario) {
                let contestants: Vec<_> = makers.iter().filter_map(|make| make(&server, &runtime)).collect();
                compare(harness, &runtime, scenario, tasks, keys, &contestants, &|_| server.cpu());
            }
        }
        sizes::run(harness, &runtime, &server);
        calls::run(harness, &runtime, &server);
        logs::run(harness, &runtime, &server);
    }
    instructions::run(harness);
    callers::run(harness);
    leases::run(harness, &runtime);
    lease_quota::run(harness);
    neighbour::run(harness, &runtime);
    cluster::run(harness, &runtime);
    overload::run(harness);
    hold_ladder::run(harness);
    lease_cost::run(harness);
}

/// Starts a server, by another program if one is given. Loads redis-cell if `REDIS_CELL` names its library.
fn start_server_under(runner: &[&str]) -> Server {
    let line: Vec<_> = runner.iter().map(OsString::from).chain([program()]).collect();
    let cell = std::env::var("REDIS_CELL").ok();
    let arguments: Vec<_> = cell.iter().flat_map(|library| ["--loadmodule", library]).collect();
    Server::of(&line, &arguments)
}

fn start_server() -> Server {
    start_server_under(&[])
}

type Make = fn(&Server, &Runtime) -> Option<Contestant>;

/// Runs the contestants in alternating rounds. `cpu` returns the processor time of a contestant's servers.
fn compare(
    harness: &Harness,
    runtime: &Runtime,
    scenario: &str,
    tasks: usize,
    keys: Keys,
    contestants: &[Contestant],
    cpu: &dyn Fn(usize) -> f64,
) {
    let rounds = if harness.is_quick() { 3 } else { 7 };
    let span = Duration::from_millis(if harness.is_quick() { 250 } else { 1_000 });
    let mut rates = vec![Vec::new(); contestants.len()];
    let mut costs = vec![Vec::new(); contestants.len()];
    for contestant in contestants {
        runtime.block_on(round(contestant, tasks, keys, span / 4));
    }
    for _ in 0..rounds {
        for (index, contestant) in contestants.iter().enumerate() {
            let before = cpu(index);
            let (decisions, seconds) = runtime.block_on(round(contestant, tasks, keys, span));
            rates[index].push(decisions / seconds);
            costs[index].push((cpu(index) - before) * 1e6 / decisions);
        }
    }
    let names: Vec<_> = contestants.iter().map(|contestant| contestant.name).collect();
    let medians = |values: Vec<Vec<f64>>| -> Vec<(&'static str, f64)> {
        names.iter().copied().zip(values.into_iter().map(median)).collect()
    };
    harness.report_two(
        scenario,
        json!({ "tasks": tasks }),
        [("per_second", &medians(rates)), ("redis_cpu_us", &medians(costs))],
    );
}

/// Runs all tasks for `span`. Returns the number of decisions, and the seconds.
async fn round(contestant: &Contestant, tasks: usize, keys: Keys, span: Duration) -> (f64, f64) {
    let over = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let workers: Vec<_> = (0..tasks)
        .map(|task| {
            let (over, done, decide) = (Arc::clone(&over), Arc::clone(&done), Arc::clone(&contestant.decide));
            tokio::spawn(async move {
                let mut random = Random::new(task as u64);
                while !over.load(Ordering::Relaxed) {
                    decide(keys.pick(random.number() >> 33)).await;
                    // Without this a decision that is ready at its first poll would never yield to the other tasks.
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
