//! How long another client of the same Redis waits for a GET while 512 callers decide: per algorithm, and without load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::Client;
use tokio::runtime::Runtime;

use super::competitors::{self, Contestant, Keys};
use crate::harness::Harness;
use crate::random::Random;
use crate::server::Server;

const CALLERS: usize = 512;
/// The pause between two GETs of the neighbour.
const PAUSE: Duration = Duration::from_micros(500);

pub(super) fn run(harness: &Harness, runtime: &Runtime) {
    if !harness.wants("redis neighbour") {
        return;
    }
    let server = super::start_server();
    let makers = [
        competitors::gcra,
        competitors::fixed_window,
        competitors::sliding_window,
        competitors::sliding_log,
        competitors::three_limits,
        competitors::plain,
        competitors::cell,
    ];
    let names = ["bucket", "fixed_window", "sliding_window_10", "sliding_log_1000", "three_buckets"];
    let contestants: Vec<_> = makers.iter().filter_map(|make| make(&server, runtime)).collect();
    let span = Duration::from_millis(if harness.is_quick() { 500 } else { 2_000 });
    println!("| Load of {CALLERS} callers | Decisions per second | p50 us of a GET | p99 us | worst us |");
    println!("|---|---|---|---|---|");
    print_row("none", 0.0, &measure(&server, || std::thread::sleep(span)));
    for (index, contestant) in contestants.iter().enumerate() {
        let mut per_second = 0.0;
        let times = measure(&server, || {
            let started = Instant::now();
            let decisions = runtime.block_on(load(contestant, span));
            per_second = decisions / started.elapsed().as_secs_f64();
        });
        print_row(names.get(index).unwrap_or(&contestant.name), per_second, &times);
    }
}

fn print_row(name: &str, per_second: f64, times: &[Duration]) {
    let micros = |share: f64| times[((times.len() as f64 * share) as usize).min(times.len() - 1)].as_micros();
    println!("| {name} | {per_second:.0} | {} | {} | {} |", micros(0.5), micros(0.99), micros(1.0));
}

/// Returns the times of the neighbour's GETs while `load` runs, sorted.
fn measure(server: &Server, load: impl FnOnce()) -> Vec<Duration> {
    let over = Arc::new(AtomicBool::new(false));
    let mut connection = Client::open(server.address()).expect("an address").get_connection().expect("a connection");
    let ended = Arc::clone(&over);
    let neighbour = std::thread::spawn(move || {
        let mut times = Vec::new();
        while !ended.load(Ordering::Relaxed) {
            let started = Instant::now();
            let _: Option<String> = redis::cmd("GET").arg("neighbour").query(&mut connection).expect("a reply");
            times.push(started.elapsed());
            std::thread::sleep(PAUSE);
        }
        times
    });
    load();
    over.store(true, Ordering::Relaxed);
    let mut times = neighbour.join().expect("the neighbour");
    times.sort();
    times
}

/// Runs all callers for `span`. Returns the number of decisions.
async fn load(contestant: &Contestant, span: Duration) -> f64 {
    let until = Instant::now() + span;
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let decide = Arc::clone(&contestant.decide);
            tokio::spawn(async move {
                let (mut random, mut decisions) = (Random::new(caller as u64), 0_u32);
                while Instant::now() < until {
                    decide(Keys::Spread.pick(random.number() >> 33)).await;
                    decisions += 1;
                }
                decisions
            })
        })
        .collect();
    let mut decisions = 0.0;
    for task in tasks {
        decisions += f64::from(task.await.expect("a task"));
    }
    decisions
}
