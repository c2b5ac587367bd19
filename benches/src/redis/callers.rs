//! Decisions by 1 to 2048 concurrent callers: rates, latencies and processor time, on a runtime of one thread, and on a
//! runtime of several threads, which `#[tokio::main]` starts. A hold and its settlement are one decision.
//!
//! The contestants run in rounds, each round in another order. A ratio is the median of the ratios of each round, with
//! the lowest and the highest. The output is a Markdown table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use super::competitors::{self, Contestant, Keys};
use crate::harness::{Harness, median};
use crate::random::Random;
use crate::server::Server;

const CALLERS: [usize; 8] = [1, 8, 16, 32, 64, 128, 512, 2048];

/// One round of one contestant.
struct Round {
    per_second: f64,
    p50_micros: f64,
    p99_micros: f64,
    redis_micros: f64,
    client_micros: f64,
}

pub(super) fn run(harness: &Harness) {
    let decisions: &[super::Make] =
        &[competitors::gcra, competitors::cell, competitors::plain, competitors::pooled, competitors::ping];
    let scenarios: [(&str, &[super::Make]); 5] = [
        ("callers", decisions),
        ("holding callers", &[competitors::held, competitors::two_scripts, competitors::cell]),
        ("in flight callers", &[competitors::in_flight, competitors::two_scripts]),
        ("once callers", &[competitors::once, competitors::plain]),
        ("cell callers", &[competitors::cell_limiter, competitors::cell]),
    ];
    for threads in [1, std::thread::available_parallelism().map_or(2, usize::from)] {
        for (what, makers) in scenarios {
            let wanted = CALLERS.into_iter().filter(|callers| harness.wants(&format!("redis {what} {callers}")));
            let wanted: Vec<_> = wanted.collect();
            if wanted.is_empty() {
                continue;
            }
            let runtime = runtime(threads);
            let server = super::start_server();
            let contestants: Vec<_> = makers.iter().filter_map(|make| make(&server, &runtime)).collect();
            println!("{what}, {threads} client threads");
            println!("| Callers | Client | Per second | Ours to it | p50 us | p99 us | Redis us | Client us |");
            println!("|---|---|---|---|---|---|---|---|");
            for callers in wanted {
                compare(harness, &runtime, &server, &contestants, callers);
            }
        }
    }
}

fn runtime(threads: usize) -> Runtime {
    let mut builder = if threads == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.worker_threads(threads).enable_all().build().expect("a runtime")
}

fn compare(harness: &Harness, runtime: &Runtime, server: &Server, contestants: &[Contestant], callers: usize) {
    let (rounds, span) = if harness.is_quick() { (5, 200) } else { (10, 500) };
    let span = Duration::from_millis(span);
    let mut all: Vec<Vec<Round>> = contestants.iter().map(|_| Vec::new()).collect();
    for contestant in contestants {
        round(runtime, server, contestant, callers, span);
    }
    for turn in 0..rounds {
        for place in 0..contestants.len() {
            let index = (place + turn) % contestants.len();
            all[index].push(round(runtime, server, &contestants[index], callers, span));
        }
    }
    for (contestant, own) in contestants.iter().zip(&all) {
        let of = |pick: fn(&Round) -> f64| median(own.iter().map(pick).collect());
        let mut ratios: Vec<_> =
            all[0].iter().zip(own).map(|(ours, other)| ours.per_second / other.per_second).collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "| {callers} | {} | {:.0} | {:.2} ({:.2} to {:.2}) | {:.0} | {:.0} | {:.2} | {:.2} |",
            contestant.name,
            of(|round| round.per_second),
            median(ratios.clone()),
            ratios[0],
            ratios[ratios.len() - 1],
            of(|round| round.p50_micros),
            of(|round| round.p99_micros),
            of(|round| round.redis_micros),
            of(|round| round.client_micros),
        );
    }
}

fn round(runtime: &Runtime, server: &Server, contestant: &Contestant, callers: usize, span: Duration) -> Round {
    let (redis, client, started) = (server.cpu(), client_cpu(), Instant::now());
    let mut times = runtime.block_on(decide(contestant, callers, span));
    let (seconds, client, redis) = (started.elapsed().as_secs_f64(), client_cpu() - client, server.cpu() - redis);
    times.sort_unstable();
    let decisions = times.len() as f64;
    let quantile = |share: f64| f64::from(times[((decisions * share) as usize).min(times.len() - 1)]) / 1e3;
    Round {
        per_second: decisions / seconds,
        p50_micros: quantile(0.5),
        p99_micros: quantile(0.99),
        redis_micros: redis * 1e6 / decisions,
        client_micros: client * 1e6 / decisions,
    }
}

/// Runs all callers for `span`. Returns the nanoseconds of each decision.
async fn decide(contestant: &Contestant, callers: usize, span: Duration) -> Vec<u32> {
    let over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (over, decide) = (Arc::clone(&over), Arc::clone(&contestant.decide));
            tokio::spawn(async move {
                let (mut random, mut times) = (Random::new(caller as u64), Vec::new());
                let mut began = Instant::now();
                while !over.load(Ordering::Relaxed) {
                    decide(Keys::Spread.pick(random.number() >> 33)).await;
                    let now = Instant::now();
                    times.push(u32::try_from((now - began).as_nanos()).unwrap_or(u32::MAX));
                    began = now;
                }
                times
            })
        })
        .collect();
    tokio::time::sleep(span).await;
    over.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("a task"));
    }
    times
}

/// Returns the seconds of processor time that all threads of this process have used.
fn client_cpu() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e9
}
